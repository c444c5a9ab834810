"""The operators: their sizes, workloads, routing and roofline bound. Imports core alone."""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
