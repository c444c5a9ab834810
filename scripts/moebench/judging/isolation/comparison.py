"""Outputs against what the reference computes, where no solution runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from flashinfer_bench import BenchmarkConfig, Correctness, Definition, Evaluation, Performance
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
    """One output of a trial that has the right shape and dtype. place: among the outputs."""

    trial: Trial
    place: int
    tensor: torch.Tensor

    @property
    def expected(self) -> torch.Tensor:
        return self.trial.expected[self.place]


@dataclass(frozen=True)
class Comparison:
    """An output against the reference.

    matched_ratios: by tolerance; "matched_ratio" is by the run's own.
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
    """What was found about a solution on a workload.

    sentences: why it is wrong, or what is odd about an output that passes. log: what it prints,
    with how it ended.
    """

    status: Status
    correctness: Correctness | None = None
    sentences: Sequence[str] = ()
    performance: Performance | None = None
    log: str = ""

    @classmethod
    def by_fib(cls, evaluation: Evaluation) -> "Finding":
        """Return what FIB has found, in whose process outputs were compared."""
        return cls(
            status=evaluation.status,
            correctness=evaluation.correctness,
            performance=evaluation.performance,
            log=evaluation.log,
        )


def compare(
    definition: Definition, trial: Trial, outputs: list[torch.Tensor], config: BenchmarkConfig
) -> list[Comparison] | Finding:
    """Return a comparison for each output, or why one cannot be compared."""
    comparisons = []
    for place, tensor in enumerate(outputs):
        output = Output(trial, place, tensor)
        if not tensor.float().isfinite().all():
            return not_finite(definition, output, config)
        comparisons.append(compare_finite(output, config))
    return comparisons


def not_finite(definition: Definition, output: Output, config: BenchmarkConfig) -> Finding:
    error = math.inf if output.tensor.float().isinf().any() else math.nan
    correctness = Correctness(max_relative_error=error, max_absolute_error=error)
    sentences = diagnosed(definition, output, config)
    return Finding(Status.INCORRECT_NUMERICAL, correctness, sentences)


def compare_finite(output: Output, config: BenchmarkConfig) -> Comparison:
    """Return the comparison as FIB makes it, and what it would be at every other tolerance."""
    absolute, relative, _, matched = fib.compute_error_stats(output.tensor, output.expected, config)
    ratios = {"matched_ratio": matched}
    for name, ratio in matched_ratios(output.tensor, output.expected).items():
        ratios[f"matched_ratio_{name}"] = ratio
    return Comparison(output, absolute, relative, ratios)


def finding_of(
    definition: Definition, comparisons: list[Comparison], config: BenchmarkConfig
) -> Finding:
    """Return PASSED, with what is odd, or INCORRECT_NUMERICAL with a diagnosis of the worst one."""
    correctness = summary(comparisons)
    worst = min(comparisons, key=lambda comparison: comparison.matched_ratio)
    if worst.matched_ratio >= config.required_matched_ratio:
        return Finding(Status.PASSED, correctness, oddities(definition, comparisons))

    sentences = diagnosed(definition, worst.output, config)
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


def oddities(definition: Definition, comparisons: list[Comparison]) -> list[str]:
    """Return what is systematically wrong with outputs that are within the tolerance."""
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


def diagnosed(definition: Definition, output: Output, config: BenchmarkConfig) -> list[str]:
    tolerance = Tolerance("the run's", config.rtol, config.atol, config.required_matched_ratio)
    return diagnose(
        definition, output.trial.inputs, output.place, output.tensor, output.expected, tolerance
    )
