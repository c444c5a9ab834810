"""Submissions: a pull request to FIB's data set; the contest's bundle, a clean build, what speaks
against it.
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
