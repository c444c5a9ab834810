"""What was measured: trace files, when a figure is stale, what a run need not repeat, the table of
all, comparisons.
"""

from moebench.core import interpreter  # noqa: F401
