"""What a solution's author is told, in sentences.

diagnosis.py   how far a wrong output is off, where, and the likely mistake
bias.py        what is systematically wrong with an output that passes
frames.py      the error that a log ends with, and its place in the solution's sources
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
