"""What is in the files that a plan's traces go to, and what a run that is resumed need not do
again.
"""

from dataclasses import replace

from flashinfer_bench import Trace

from moebench.core.errors import UserError
from moebench.core.provenance import of_trace
from moebench.judging.plan import Part, Plan
from moebench.results import staleness, trace_files


def checked(plan: Plan, resume: bool) -> Plan:
    """The plan, or with resume what of it is left. Raises UserError for a file of something else,
    before anything runs.

    Whatever else the files hold stays there.
    """
    parts = {}
    for name, part in plan.parts.items():
        try:
            there = trace_files.load(part.path) if part.path else []
        except ValueError as error:
            raise UserError(
                f"{part.path}: has lines that are no traces; fix it, or choose another --output"
            ) from error
        parts[name] = part.without(current(plan, part, there)) if resume else part
    return replace(plan, parts=parts)


def current(plan: Plan, part: Part, traces: list[Trace]) -> dict[tuple[str, str], Trace]:
    """(workload's uuid, solution) -> its trace, if it is of the source as it is now and of the
    plan's conditions.

    What was wrong is there as well: it would be wrong again.
    """
    names = {packed.name: name for name, packed in part.solutions.items()}
    found, wanted = {}, (plan.device.hardware, str(plan.tolerance), plan.protocol)
    for trace in traces:
        by, name = of_trace(trace), names.get(trace.solution)
        alike = (
            by.hardware,
            by.tolerance,
            by.protocol,
        ) == wanted and trace.definition == part.full.name
        if (
            name
            and alike
            and staleness.judge(by, staleness.hashes([part.solutions[name]])) == "current"
        ):
            found[trace.workload.uuid, name] = trace
    return found
