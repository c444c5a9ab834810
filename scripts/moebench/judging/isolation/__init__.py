"""Solutions in processes of their own: inputs go in, outputs come out and are compared outside.

runner.py      evaluates solutions on a workload
processes.py   starts their processes, by core/nursery.py, which forks them
ask.py         asks one of them to build a solution, to call it, to time it
worker.py      answers, in that process
channel.py     carries JSON and tensors between the two
comparison.py  compares outputs with the reference's
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
