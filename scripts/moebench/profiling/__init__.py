"""Where a solution's time goes: which kernels a call launches, and how long each takes.

calls.py            what is called, and how: as FIB calls it
torch_profiler.py   times of kernels by torch.profiler
ncu.py              hardware counters by Nsight Compute
stages.py           which stage of the layer a kernel belongs to
profile.py          all of it together, a record.ProfileRecord for each solution
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
