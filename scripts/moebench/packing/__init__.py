"""From a solution's folder to what others load: FIB Solutions and Python packages.

    solutions/mine/solution.toml   what the solution needs and serves      manifest.py, serves.py
    -> its files, and those of solutions/common/ that they import          gather.py, references.py
    -> the sizes of one definition, as files among them                     problem.py
    -> a FIB Solution for each definition                                  pack.py
    -> those as files of other kinds
       a single folder, for the contest                                    flat.py
       Python packages                                                     python_package.py
       solutions that FlashInfer's calls find                              trace_apply.py

eligibility.py tells whether a packed solution can run on this machine, fingerprint.py whether two
are the same program. build_ahead.py has FIB build them, solution_files.py reads those of others.
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
