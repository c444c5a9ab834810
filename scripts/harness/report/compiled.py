"""What mma_fused's kernels take on each architecture that they are compiled for, and what DRAM allows there."""

import json
from collections import defaultdict
from pathlib import Path

from harness.core import paths
from harness.operators.workloads import cases_by_uuid, generated_bound
from harness.report.table import Table

RECORD = paths.DATA / "compiled" / "mma_fused.jsonl"
RECORD_MANY = paths.DATA / "compiled" / "mma_fused_many.jsonl"
BOUND_TOKENS = (1, 16, 80)
# GPU -> its architecture, and bytes a second of DRAM by NVIDIA's data sheet
DRAM = {
    "A100 80 GB": ("sm_80", 2.04e12),
    "A10": ("sm_86", 0.60e12),
    "L40S": ("sm_89", 0.86e12),
    "H100 SXM": ("sm_90", 3.35e12),
    "H200": ("sm_90", 4.8e12),
    "B200": ("sm_100", 8.0e12),
    "B300": ("sm_103", 8.0e12),
    "RTX PRO 6000": ("sm_120", 1.79e12),
}
NOT_DECODED = "not decoded"  # the disassembler does not know the architecture


def read(record: Path) -> list[dict]:
    return [json.loads(line) for line in record.read_text().splitlines()]


def kib(row: dict) -> str:
    return f"{row['shared'] / 1024:.1f} KiB"


def counted(names: dict[str, int]) -> str:
    """'448 HMMA.16816.F32'."""
    return ", ".join(f"{count} {name}" for name, count in names.items()) or NOT_DECODED


def block() -> str:
    head = ["architecture", "registers", "bytes spilled", "shared memory", "MMA instructions", "copies of weights"]
    cells = [
        [row["architecture"], row["registers"], row["spilled"], kib(row), counted(row["mma"]), counted(row["copies"])]
        for row in read(RECORD)
    ]
    caption = "Instructions are counted in the machine code, which has a loop each for chunks of 8 and 16 rows."
    return Table(head, [cells], caption=caption).markdown()


def joined(values: list[int | str]) -> str:
    """One of the architectures' values if they are the same, else each."""
    return str(values[0]) if len(set(values)) == 1 else ", ".join(map(str, values))


def many() -> str:
    """A row for each kernel and tile, with the architectures that launch it alike."""
    alike = defaultdict(list)
    for row in read(RECORD_MANY):
        tile, launch = " x ".join(map(str, row["tile"])), f"{row['num_warps']}, {row['num_stages']}"
        alike[row["kernel"].removesuffix("_kernel"), tile, launch, kib(row)].append(row)
    cells = []
    for launched, rows in alike.items():
        reloads = [NOT_DECODED if row["reloads"] is None else row["reloads"] for row in rows]
        names = ", ".join(row["architecture"] for row in rows)
        cells.append([names, *launched, joined([row["registers"] for row in rows]), joined(reloads)])
    head = ["architectures", "kernel", "rows x columns x K", "warps, stages", "shared memory", "registers"]
    caption = "Registers in the order of the architectures."
    return Table([*head, "spilled values read"], [cells], words=3, caption=caption).markdown()


def bounds() -> str:
    """The least time in which DRAM brings the layer's bytes, by data sheets: most of these GPUs nobody here has."""
    bytes_of = {case.seq_len: generated_bound("full", uuid).bytes for uuid, case in cases_by_uuid("full").items()}
    cells = [
        [gpu, architecture, f"{rate / 1e12:.2f}", *(f"{bytes_of[tokens] / rate * 1e6:.0f}" for tokens in BOUND_TOKENS)]
        for gpu, (architecture, rate) in DRAM.items()
    ]
    return Table(["GPU", "architecture", "TB/s", *(f"T={tokens}, us" for tokens in BOUND_TOKENS)], [cells]).markdown()
