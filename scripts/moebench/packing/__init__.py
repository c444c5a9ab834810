"""From a solution's folder to what others load: FIB Solutions and Python packages.

    solutions/mine/solution.toml   what the solution needs and serves      manifest.py, serves.py
    -> its files, and those of solutions/common/ that they import          gather.py, references.py
    -> sizes and arguments of one definition, as files among them          problem.py
    -> a FIB Solution for each definition                                  pack.py
    -> one folder, a Python package, FlashInfer's Trace Apply              flat.py, ...

fingerprint.py says whether two packed solutions are the same program.
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
