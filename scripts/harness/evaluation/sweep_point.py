"""One solution at one routing: is its answer right, the same again, and how far from its target is its time."""

from dataclasses import dataclass

import torch
from flashinfer_bench import Definition
from flashinfer_bench.bench.evaluators.utils import allocate_outputs, normalize_result
from flashinfer_bench.bench.timing import time_runnable
from flashinfer_bench.bench.utils import compute_error_stats
from flashinfer_bench.compile import Runnable

from harness.evaluation.cpu_judge import config_for
from harness.evaluation.tolerances import TOLERANCES, Tolerance
from harness.operators.roofline import Bound

WARMUP_RUNS = 3
ITERATIONS = 20
FEW_TOKENS = 1024  # up to here weights bound the time, above tensor cores do


@dataclass(frozen=True)
class Verdict:
    """matched: share of elements inside each tolerance, by name; 0 where the output is not finite."""

    matched: dict[str, float]
    repeatable: bool

    def why_wrong(self, tolerance: Tolerance) -> str | None:
        """One line, or None for a right answer."""
        if self.matched[tolerance.name] < tolerance.ratio:
            return f"matched {self.matched[tolerance.name]:.4f}, want {tolerance.ratio:g} at {tolerance.name}"
        return None if self.repeatable else "two runs differ"


def call(definition: Definition, runnable: Runnable, inputs: list, device: str) -> torch.Tensor:
    """The output [T, hidden] bf16; NaN wherever a destination-passing solution writes nothing."""
    with torch.no_grad():
        if not runnable.metadata.destination_passing_style:
            return normalize_result(definition, runnable(*inputs), device)[0]
        (output,) = allocate_outputs(definition, inputs, device)
        output.fill_(float("nan"))
        runnable(*inputs, output)
        return output


def judge(definition: Definition, runnable: Runnable, inputs: list, expected: torch.Tensor, device: str) -> Verdict:
    """Call twice and compare with expected and with each other.

    Raises ValueError for an output of another shape or dtype than expected, and whatever the solution raises.
    """
    first, second = (call(definition, runnable, inputs, device) for _ in range(2))
    if (first.shape, first.dtype) != (expected.shape, expected.dtype):
        got, want = (f"{tuple(x.shape)} {x.dtype}" for x in (first, expected))
        raise ValueError(f"output: got {got}, want {want}")
    repeatable = torch.equal(first.view(torch.int16), second.view(torch.int16))
    if not first.isfinite().all():
        return Verdict(dict.fromkeys(TOLERANCES, 0.0), repeatable)
    matched = {name: compute_error_stats(first, expected, config_for(t))[3] for name, t in TOLERANCES.items()}
    return Verdict(matched, repeatable)


def time_ms(definition: Definition, runnable: Runnable, inputs: list, device: str) -> float:
    """Mean latency as FIB takes it: L2 flushed, inputs cloned, host time included."""
    outputs = allocate_outputs(definition, inputs, device) if runnable.metadata.destination_passing_style else []
    with torch.no_grad():
        return time_runnable(runnable, [*inputs, *outputs], WARMUP_RUNS, ITERATIONS, device)


def loose(least: Bound) -> float:
    """Target in ms for any token count and routing: 1.5 x bound + 0.03."""
    return 1.5 * least.ms + 0.03


def tight(least: Bound) -> float:
    """Target in ms that the workloads are held to: 1.10 x bound + 0.025 for few tokens, else 1.25 x bound."""
    return 1.10 * least.ms + 0.025 if least.seq_len <= FEW_TOKENS else 1.25 * least.ms


TARGETS = {"loose": loose, "tight": tight}


def in_words(target: str) -> str:
    """'1.5 x bound + 0.03' of a name in TARGETS."""
    return TARGETS[target].__doc__.split(": ")[1].rstrip(".")
