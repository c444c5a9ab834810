"""Evaluate a plan's tasks on this machine's device, one after another."""

from collections.abc import Iterator
from contextlib import closing

from moebench.judging.building import Say, build_slow
from moebench.judging.device import survey
from moebench.judging.evaluate import Evaluator, Outcome
from moebench.judging.plan import Plan


class Here:
    """This machine. It has what on_ray.Cluster has, so that a run may take either."""

    text = ""  # nothing is said of where a run is, if it is here
    survey = staticmethod(survey)

    def outcomes(self, plan: Plan, say: Say) -> Iterator[Outcome]:
        """Yield each task's outcome, in order. say: takes lines on what is built beforehand."""
        for part in plan.parts.values():
            build_slow(part.ours_to_run, say)

        with closing(Evaluator(plan)) as evaluator:
            for task in plan:
                yield evaluator.evaluate(task)
