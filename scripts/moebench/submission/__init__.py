"""What `moebench submit` prepares: a pull request to FIB's data set, or a folder for the contest.

pull_request     the pull request: what is written, and its description
data_set         what the data set has of the definition, and what it lacks
runs             the recorded runs of a solution, and whose traces go along; contest uses it, too
contest          the folder, and why a solution is refused
clean_build      builds the folder in a clean process; build_alone is that process's program
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
