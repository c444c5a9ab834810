"""What was measured.

trace_files, any_trace    traces in files
trace_rows                a trace as a row
staleness, bounds         whether it is of the source now, and so what a run need not repeat; its
                          roofline bound
measurements, spread      the one table: all runs of a cell as a row, its range and rank
summary                   means over workloads, and which solution is the best
against                   what a change did: two sets of traces compared
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
