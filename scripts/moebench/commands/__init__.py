"""One module for each subcommand: its arguments, what it prints, exit codes; what several need is
in other rooms.
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
