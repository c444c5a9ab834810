"""The workloads of a definition, run or not, with the roofline bound of each."""

from dataclasses import dataclass
from pathlib import Path

from flashinfer_bench import Trace, Workload
from flashinfer_bench.data import load_jsonl_file

from harness.core import paths
from harness.operators import roofline
from harness.operators.workloads import recorded_bound
from harness.results.trace_files import Recorded


@dataclass(frozen=True)
class WorkloadInfo:
    """A workload; rows, active, bytes and flops are None where its routing is not known.

    rows: (token, local expert) pairs. active: experts with a row. bound_ms: the least time it can take, None also on a
    machine other than the one whose ceilings were measured.
    """

    uuid: str
    seq_len: int
    rows: int | None
    active: int | None
    bytes: int | None
    flops: int | None
    bound_ms: float | None


def recorded_workloads(definition: str, root: Path) -> list[Workload]:
    """A data set's workloads of a definition; [] where it keeps none or they cannot be read."""
    files = sorted((root / "workloads").rglob(f"{definition}.jsonl"))
    try:
        return [trace.workload for file in files for trace in load_jsonl_file(Trace, file)]
    except ValueError:
        return []  # those in the traces are enough for a comparison


def workload_infos(definition: str, hardware: str, recorded: list[Recorded]) -> list[WorkloadInfo]:
    """Every workload of the data sets that these traces lie in, and of the traces, by number of tokens."""
    known = {}
    for root in sorted({found.root or paths.ROOT for found in recorded}):
        known |= {workload.uuid: (workload, root) for workload in recorded_workloads(definition, root)}
    known |= {found.trace.workload.uuid: (found.trace.workload, found.root) for found in recorded}
    infos = []
    for uuid, (workload, root) in known.items():
        needs = recorded_bound(definition, workload, root)
        # Without a row the bound is next to nothing, and a ratio to it says nothing.
        comparable = needs is not None and needs.rows > 0 and hardware == roofline.MEASURED_ON
        figures = (needs.rows, needs.active, needs.bytes, needs.flops) if needs else (None,) * 4
        infos.append(WorkloadInfo(uuid, workload.axes["seq_len"], *figures, needs.ms if comparable else None))
    return sorted(infos, key=lambda info: (info.seq_len, info.uuid))
