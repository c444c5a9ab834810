"""What was measured: traces in files and as rows, whether a trace is stale and what a run need not
repeat, one DataFrame of all measurements, means over it, and what a change did.
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
