"""The settings of an element-wise comparison."""

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

    def config(self, **settings) -> BenchmarkConfig:
        """Return FIB's configuration with this tolerance, and its other settings."""
        return BenchmarkConfig(
            rtol=self.rtol, atol=self.atol, required_matched_ratio=self.ratio, **settings
        )


TOLERANCES = {
    "relaxed": Tolerance("relaxed", rtol=0.2, atol=0.1, ratio=0.85),
    "contest": Tolerance("contest", rtol=0.3, atol=1.0, ratio=0.9),
    "default": Tolerance("default", rtol=0.01, atol=0.01, ratio=0.95),
}


def matched_ratios(output: torch.Tensor, expected: torch.Tensor) -> dict[str, float]:
    """Return tolerance -> share of elements within it, as FIB counts.

    1 of an empty output, 0 of one that is not finite: a NaN exceeds nothing, and FIB refuses such
    an output before it counts.
    """
    if not output.float().isfinite().all():
        return dict.fromkeys(TOLERANCES, 0.0)

    ratios = {}
    for name, tolerance in TOLERANCES.items():
        _, _, _, ratios[name] = compute_error_stats(output, expected, tolerance.config())
    return ratios


def compared_at(
    tolerance: Tolerance, output: torch.Tensor, expected: torch.Tensor
) -> tuple[float, str | None]:
    """Return the share of elements within a tolerance, and why the output is wrong, in one line, or
    None.

    Raises ValueError for another shape or dtype.
    """
    if output.shape != expected.shape or output.dtype != expected.dtype:
        got = f"{tuple(output.shape)} {output.dtype}"
        raise ValueError(f"output: got {got}, want {tuple(expected.shape)} {expected.dtype}")

    share = matched_ratios(output, expected)[tolerance.name]
    fault = None
    if share < tolerance.ratio:
        fault = f"matched {share:.4f}, want {tolerance.ratio:g} at {tolerance.name}"
    return share, fault
