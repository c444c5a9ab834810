"""Where a solution's time goes: calls, profilers, records of stages."""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
