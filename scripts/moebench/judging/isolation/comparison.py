"""Compare outputs with what the reference computes, in a process in which no solution runs.

runner.py compares each trial's outputs (`compare`), and makes one Finding of all (`finding_of`).

A Comparison is of one output of one trial; a Finding is what all comparisons of a solution on a
workload amount to.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from flashinfer_bench import (
    BenchmarkConfig,
    Correctness,
    Definition,
    Evaluation,
    Performance,
)
from flashinfer_bench import EvaluationStatus as Status

from moebench.judging import fib
from moebench.judging.explaining.bias import bias
from moebench.judging.explaining.diagnosis import diagnose
from moebench.judging.tolerances import Tolerance, matched_ratios


@dataclass(frozen=True)
class Trial:
    """The inputs of one call, and what the reference computes from them."""

    inputs: list
    expected: list[torch.Tensor]


@dataclass(frozen=True)
class Output:
    """One output of a trial, of the right shape and dtype. place: its number among the outputs."""

    trial: Trial
    place: int
    tensor: torch.Tensor

    @property
    def expected(self) -> torch.Tensor:
        return self.trial.expected[self.place]


@dataclass(frozen=True)
class Comparison:
    """How far an output is from the reference's.

    matched_ratios: shares of elements within a tolerance, {"matched_ratio": 0.97,
    "matched_ratio_contest": 0.99, ...}; the first is at the tolerance of the run.
    """

    output: Output
    max_absolute_error: float
    max_relative_error: float
    matched_ratios: dict[str, float]

    @property
    def matched_ratio(self) -> float:
        return self.matched_ratios["matched_ratio"]


@dataclass(frozen=True)
class Finding:
    """What is found about a solution on a workload.

    sentences: why it is wrong, or what is odd about an output that passes. log: what the solution
    printed, tracebacks too, and how its process ended if it has.
    """

    status: Status
    correctness: Correctness | None = None
    sentences: Sequence[str] = ()
    performance: Performance | None = None
    log: str = ""

    @classmethod
    def by_fib(cls, evaluation: Evaluation) -> "Finding":
        """Return what FIB has found, which compares and times by itself."""
        return cls(
            status=evaluation.status,
            correctness=evaluation.correctness,
            performance=evaluation.performance,
            log=evaluation.log,
        )


def compare(
    definition: Definition,
    trial: Trial,
    outputs: list[torch.Tensor],
    config: BenchmarkConfig,
) -> list[Comparison] | Finding:
    """Return a comparison for each output of a trial, or the finding that one is not finite."""
    comparisons = []
    for place, tensor in enumerate(outputs):
        output = Output(trial, place, tensor)
        if not tensor.float().isfinite().all():
            error = math.inf if output.tensor.float().isinf().any() else math.nan
            correctness = Correctness(
                max_relative_error=error, max_absolute_error=error
            )
            sentences = diagnosis_of(definition, output, config)
            return Finding(Status.INCORRECT_NUMERICAL, correctness, sentences)

        absolute, relative, _, matched = fib.compute_error_stats(
            output.tensor, output.expected, config
        )
        ratios = {"matched_ratio": matched}
        for name, ratio in matched_ratios(output.tensor, output.expected).items():
            ratios[f"matched_ratio_{name}"] = ratio
        comparisons.append(Comparison(output, absolute, relative, ratios))
    return comparisons


def finding_of(
    definition: Definition, comparisons: list[Comparison], config: BenchmarkConfig
) -> Finding:
    """Return PASSED with what is odd, or INCORRECT_NUMERICAL with a diagnosis of the worst output.

    comparisons: all of a solution's on a workload.
    """
    correctness = summary(comparisons)
    worst = min(comparisons, key=lambda comparison: comparison.matched_ratio)
    if worst.matched_ratio >= config.required_matched_ratio:
        return Finding(Status.PASSED, correctness, oddities(definition, comparisons))

    sentences = diagnosis_of(definition, worst.output, config)
    return Finding(Status.INCORRECT_NUMERICAL, correctness, sentences)


def summary(comparisons: list[Comparison]) -> Correctness:
    """Return the largest errors and, in `extra`, the lowest matched ratios, of all comparisons."""
    lowest = {}
    for name in comparisons[0].matched_ratios:
        ratios = [comparison.matched_ratios[name] for comparison in comparisons]
        lowest[name] = min(ratios)

    absolute = [comparison.max_absolute_error for comparison in comparisons]
    relative = [comparison.max_relative_error for comparison in comparisons]
    return Correctness(
        max_absolute_error=max(absolute),
        max_relative_error=max(relative),
        extra=lowest,
    )


def oddities(definition: Definition, comparisons: list[Comparison]) -> list[str]:
    """Return sentences on what is systematically wrong with outputs within the tolerance."""
    names = list(definition.outputs)
    sentences = []
    for comparison in comparisons:
        output = comparison.output
        sentence = bias(output.tensor, output.expected)
        if sentence and len(names) > 1:
            sentence = f"{names[output.place]}: {sentence}"
        if sentence and sentence not in sentences:
            sentences.append(sentence)
    return sentences


def diagnosis_of(
    definition: Definition, output: Output, config: BenchmarkConfig
) -> list[str]:
    """Return sentences on why an output is wrong."""
    tolerance = Tolerance(
        "the run's", config.rtol, config.atol, config.required_matched_ratio
    )
    return diagnose(
        definition,
        output.trial.inputs,
        output.place,
        output.tensor,
        output.expected,
        tolerance,
    )
