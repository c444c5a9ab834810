"""A forward pass: all MoE layers of a model in one CUDA graph, as a server replays them.

resident    the layers in memory
forward     a pass over them, as a graph or launch by launch, and how long it takes
rounds      every solution's passes, checked and timed in turns
record      the record that is written

`moebench served` makes a Resident and measures by `rounds.measure`; reports/served.py draws the
table of the record.
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
