"""From a solution's folder to FIB Solutions and Python packages, and what can run here."""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
