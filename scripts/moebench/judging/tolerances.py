"""The settings that an element-wise comparison is judged by."""

from dataclasses import dataclass

import torch
from flashinfer_bench import BenchmarkConfig

from moebench.judging.fib import compute_error_stats


@dataclass(frozen=True)
class Tolerance:
    """An element fails beyond atol and rtol both; the share `ratio` must not fail."""

    name: str
    rtol: float
    atol: float
    ratio: float

    def __str__(self) -> str:
        return f"{self.name}: rtol={self.rtol:g} atol={self.atol:g} ratio={self.ratio:g}"

    def config(self, **rest) -> BenchmarkConfig:
        """FIB's, with this tolerance."""
        return BenchmarkConfig(
            rtol=self.rtol, atol=self.atol, required_matched_ratio=self.ratio, **rest
        )


TOLERANCES = {
    t.name: t
    for t in (
        Tolerance("relaxed", rtol=0.2, atol=0.1, ratio=0.85),
        Tolerance("contest", rtol=0.3, atol=1.0, ratio=0.9),
        Tolerance("default", rtol=0.01, atol=0.01, ratio=0.95),
    )
}


def matched_ratios(output: torch.Tensor, expected: torch.Tensor) -> dict[str, float]:
    """Tolerance -> share of elements within it, as FIB counts; 1 of an empty output, 0 of one that
    is not finite.
    """
    if (
        not output.float().isfinite().all()
    ):  # a NaN exceeds nothing, and FIB refuses such an output before it counts
        return dict.fromkeys(TOLERANCES, 0.0)
    return {
        name: compute_error_stats(output, expected, t.config())[3] for name, t in TOLERANCES.items()
    }


def judged(
    output: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance
) -> tuple[dict[str, float], str | None]:
    """matched_ratios, and why the output is wrong, in one line. Raises ValueError for another shape
    or dtype.
    """
    if (output.shape, output.dtype) != (expected.shape, expected.dtype):
        got, want = (f"{tuple(x.shape)} {x.dtype}" for x in (output, expected))
        raise ValueError(f"output: got {got}, want {want}")
    matched = matched_ratios(output, expected)
    wrong = f"matched {matched[tolerance.name]:.4f}, want {tolerance.ratio:g} at {tolerance.name}"
    return matched, wrong if matched[tolerance.name] < tolerance.ratio else None
