"""What a solution's author is told: the cause of a wrong output, and the place of an error."""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
