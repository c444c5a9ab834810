"""Kernels of a solution's calls through Nsight Systems, from the statistics that it exports.

The report is cuda_gpu_kern_sum with the innermost NVTX range before each kernel's name: `moe_call_0/gemm1_kernel`.
It has kernels only, no copies and fills by the driver.
"""

import csv
import io
import re
import tempfile
from pathlib import Path

from harness.packing.stages import plain_name
from harness.profiling.child_process import finished, run_under
from harness.profiling.profile_record import Seen
from harness.profiling.profiled_calls import ProfileError, range_name

REPORT = "cuda_gpu_kern_sum:nvtx-name:base"
COLUMNS = ("Total Time (ns)", "Instances", "Name")


def record(solution: str, geometry: str, calls: int, points: list[str]) -> str:
    """The report, as CSV, of a process that calls the solution on these points. Raises ProfileError."""
    with tempfile.TemporaryDirectory() as folder:
        report = str(Path(folder) / "calls")
        tool = ["nsys", "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", f"--output={report}"]
        run_under(tool, [solution, geometry, str(calls), *points])
        stats = ["nsys", "stats", "--report", REPORT, "--format", "csv", f"{report}.nsys-rep"]
        return finished(stats)


def kernels(report: str, index: int) -> tuple[list[Seen], list[Seen]]:
    """What ran for the calls on the index-th point, and what ran outside all calls.

    report: CSV, with or without the lines that nsys prints before it. Raises ProfileError where it is none.
    """
    lines = report.splitlines()
    head = next((at for at, line in enumerate(lines) if all(column in line for column in COLUMNS)), None)
    if head is None:
        raise ProfileError(f"nsys: no table with the columns {', '.join(COLUMNS)} in its report {REPORT}")
    ours, others = [], []
    for row in csv.DictReader(io.StringIO("\n".join(lines[head:]))):
        if not row["Name"]:  # a blank line or a remark after the table
            continue
        inside = re.match(rf":?({range_name(0)[:-1]}\d+)/(.*)", row["Name"])
        name = plain_name(inside[2] if inside else row["Name"])
        seen = Seen(name, int(row["Instances"]), float(row["Total Time (ns)"]) / 1e3)
        if inside is None:
            others.append(seen)
        elif inside[1] == range_name(index):
            ours.append(seen)
    return ours, others
