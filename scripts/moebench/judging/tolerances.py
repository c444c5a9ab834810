"""How exact outputs have to be: three settings of FIB's comparison, element by element.

`moebench run --tolerance` names one; every trace has the share of elements within each of them.

At "relaxed" 85% of the elements have to be within 0.1 of the reference's, or within 20% of it.
"""

from dataclasses import dataclass

import torch
from flashinfer_bench import BenchmarkConfig

from moebench.judging.fib import compute_error_stats


@dataclass(frozen=True)
class Tolerance:
    """An element fails if it is off by more than atol, and by more than rtol times the right value.
    The share `ratio` of all elements must not fail.
    """

    name: str
    rtol: float
    atol: float
    ratio: float

    def __str__(self) -> str:
        return (
            f"{self.name}: rtol={self.rtol:g} atol={self.atol:g} ratio={self.ratio:g}"
        )

    def config(self, **settings) -> BenchmarkConfig:
        """Return FIB's configuration at this tolerance. settings: others, as num_trials=3."""
        return BenchmarkConfig(
            rtol=self.rtol,
            atol=self.atol,
            required_matched_ratio=self.ratio,
            **settings,
        )


TOLERANCES = {
    "relaxed": Tolerance("relaxed", rtol=0.2, atol=0.1, ratio=0.85),
    "contest": Tolerance("contest", rtol=0.3, atol=1.0, ratio=0.9),
    "default": Tolerance("default", rtol=0.01, atol=0.01, ratio=0.95),
}


def matched_ratios(output: torch.Tensor, expected: torch.Tensor) -> dict[str, float]:
    """Return tolerance -> share of elements within it, as FIB counts: {"relaxed": 0.98, ...}.

    The share of an empty output is 1. That of one that is not finite is 0: FIB refuses it before it
    counts, and would count a NaN as right.
    """
    if not output.float().isfinite().all():
        return dict.fromkeys(TOLERANCES, 0.0)

    ratios = {}
    for name, tolerance in TOLERANCES.items():
        _, _, _, ratios[name] = compute_error_stats(
            output, expected, tolerance.config()
        )
    return ratios


def compared_at(
    tolerance: Tolerance, output: torch.Tensor, expected: torch.Tensor
) -> tuple[float, str | None]:
    """Return the share of elements within a tolerance, and None if it suffices, else a line on why
    the output is wrong.

    Raises ValueError for an output of another shape or dtype than expected.
    """
    if output.shape != expected.shape or output.dtype != expected.dtype:
        got = f"{tuple(output.shape)} {output.dtype}"
        raise ValueError(
            f"output: got {got}, want {tuple(expected.shape)} {expected.dtype}"
        )

    share = matched_ratios(output, expected)[tolerance.name]
    if share >= tolerance.ratio:
        return share, None
    return share, f"matched {share:.4f}, want {tolerance.ratio:g} at {tolerance.name}"
