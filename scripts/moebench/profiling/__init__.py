"""Where a solution's time goes: which kernels a call launches, and how long each takes.

calls.py            what is called, and how: as FIB calls it
torch_profiler.py   times of kernels by torch.profiler
ncu.py              hardware counters by Nsight Compute
stages.py           which stage of the layer a kernel belongs to
profile.py          all of it together
record.py           the ProfileRecord of a solution, which is written

`moebench profile` calls `profile_all`; reports/profiles.py draws the table of the records.
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
