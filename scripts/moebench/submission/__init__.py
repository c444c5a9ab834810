"""`moebench submit`.

pull_request, data_set, runs         to FIB's data set: what it lacks, and what was run
contest, clean_build, build_alone    to the contest: a folder, and whether it builds alone
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
