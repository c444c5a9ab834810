"""Solutions in processes of their own: inputs go in, outputs come out and are compared here.

runner.py evaluates -> processes.py starts core/nursery.py, which forks -> worker.py, there, calls a
solution -> channel.py carries tensors -> comparison.py compares.
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
