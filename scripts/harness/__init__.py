"""The harness behind the command `moebench`. Its rooms import downwards only:

core <- operators <- packing <- evaluation <- results <- profiling, tuning <- report <- submission <- commands

Importing it settles whether Triton interprets kernels, which has to be known before Triton is imported.
"""

from harness.core import interpreter  # noqa: F401
