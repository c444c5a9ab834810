"""Outputs against what the reference computes, where no solution runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from flashinfer_bench import BenchmarkConfig, Correctness, Definition, Performance
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
class Comparison:
    """One output of one trial that has the right shape and dtype, against the reference.

    matched_ratios: by tolerance; "matched_ratio" is by the run's own.
    """

    trial: Trial
    place: int
    output: torch.Tensor
    max_absolute_error: float
    max_relative_error: float
    matched_ratios: dict[str, float]

    @property
    def expected(self) -> torch.Tensor:
        return self.trial.expected[self.place]


@dataclass(frozen=True)
class Finding:
    """What was found about a solution on a workload.

    sentences: why it is wrong, or what is odd about an output that passes. log: what it prints,
    with how it ended.
    """

    status: Status
    correctness: Correctness | None = None
    sentences: Sequence[str] = ()
    performance: Performance | None = None
    log: str = ""


def compare(
    full: Definition, trial: Trial, outputs: list[torch.Tensor], config: BenchmarkConfig
) -> list[Comparison] | Finding:
    """Return a comparison for each output, or why one cannot be compared."""
    comparisons = []
    for place, output in enumerate(outputs):
        expected = trial.expected[place]
        if not output.float().isfinite().all():
            return not_finite(full, trial, place, output, config)

        absolute, relative, _, matched = fib.compute_error_stats(output, expected, config)
        ratios = {"matched_ratio": matched}
        for name, ratio in matched_ratios(output, expected).items():
            ratios[f"matched_ratio_{name}"] = ratio
        comparisons.append(Comparison(trial, place, output, absolute, relative, ratios))
    return comparisons


def not_finite(
    full: Definition, trial: Trial, place: int, output: torch.Tensor, config: BenchmarkConfig
) -> Finding:
    error = math.inf if output.float().isinf().any() else math.nan
    correctness = Correctness(max_relative_error=error, max_absolute_error=error)
    sentences = diagnosed(full, trial, place, output, config)
    return Finding(Status.INCORRECT_NUMERICAL, correctness, sentences)


def finding_of(full: Definition, comparisons: list[Comparison], config: BenchmarkConfig) -> Finding:
    """Return PASSED, with what is odd, or INCORRECT_NUMERICAL with a diagnosis of the worst one."""
    worst = min(comparisons, key=lambda comparison: comparison.matched_ratios["matched_ratio"])
    correctness = summary(comparisons)
    if worst.matched_ratios["matched_ratio"] >= config.required_matched_ratio:
        return Finding(Status.PASSED, correctness, oddities(full, comparisons))

    sentences = diagnosed(full, worst.trial, worst.place, worst.output, config)
    return Finding(Status.INCORRECT_NUMERICAL, correctness, sentences)


def summary(comparisons: list[Comparison]) -> Correctness:
    """Return the largest errors and, in `extra`, the lowest shares that matched."""
    lowest = {}
    for name in comparisons[0].matched_ratios:
        lowest[name] = min(comparison.matched_ratios[name] for comparison in comparisons)

    return Correctness(
        max_absolute_error=max(comparison.max_absolute_error for comparison in comparisons),
        max_relative_error=max(comparison.max_relative_error for comparison in comparisons),
        extra=lowest,
    )


def oddities(full: Definition, comparisons: list[Comparison]) -> list[str]:
    """Return what is systematically wrong with outputs that are within the tolerance."""
    sentences = []
    for comparison in comparisons:
        sentence = bias(comparison.output, comparison.expected)
        if sentence and len(full.outputs) > 1:
            sentence = f"{list(full.outputs)[comparison.place]}: {sentence}"
        if sentence and sentence not in sentences:
            sentences.append(sentence)
    return sentences


def diagnosed(
    full: Definition, trial: Trial, place: int, output: torch.Tensor, config: BenchmarkConfig
) -> list[str]:
    tolerance = Tolerance("the run's", config.rtol, config.atol, config.required_matched_ratio)
    return diagnose(full, trial.inputs, place, output, trial.expected[place], tolerance)
