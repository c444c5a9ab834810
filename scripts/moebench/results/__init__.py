"""What was measured: traces are read from files, merged into one table, and compared.

In the order of use, from a file to a comparison:

trace_files, any_trace    read the traces in files, and add those of a run
trace_rows                make a row of a DataFrame of each trace
staleness                 tell whether a trace is of a solution's source as it is today
bounds                    compute the roofline bound of each trace
measurements, spread      merge the runs of a cell into one row, with a range and a rank
summary                   take means over workloads, and choose the best solution
against                   compare two sets of traces, before a change and after it

reports/ draws the tables of these rows. `moebench run` uses trace_files and staleness alone.
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
