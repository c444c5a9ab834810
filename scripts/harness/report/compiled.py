"""What mma_fused's kernels take on each architecture that they are compiled for."""

import json
from pathlib import Path

from harness.core import paths
from harness.report.table import Table

RECORD = paths.DATA / "compiled" / "mma_fused.jsonl"
RECORD_MANY = paths.DATA / "compiled" / "mma_fused_many.jsonl"
HEAD = ["architecture", "registers", "bytes spilled", "shared memory", "MMA instructions", "copies of weights"]
HEAD_MANY = [
    "architectures",
    "kernel",
    "rows x columns x K",
    "warps, stages",
    "shared memory",
    "registers",
    "spilled values read",
]
NOT_DECODED = "not decoded"  # the disassembler does not know the architecture


def read(record: Path) -> list[dict]:
    return [json.loads(line) for line in record.read_text().splitlines()]


def kib(row: dict) -> str:
    return f"{row['shared'] / 1024:.1f} KiB"


def counted(names: dict[str, int]) -> str:
    """'448 HMMA.16816.F32'."""
    return ", ".join(f"{count} {name}" for name, count in names.items()) or NOT_DECODED


def block() -> str:
    cells = [
        [row["architecture"], str(row["registers"]), str(row["spilled"]), kib(row)]
        + [counted(row["mma"]), counted(row["copies"])]
        for row in read(RECORD)
    ]
    caption = "Instructions are counted in the machine code, which has a loop each for chunks of 8, 16 and 24 rows."
    return Table(HEAD, [cells], caption=caption).markdown()


def joined(values: list[str]) -> str:
    """One of the architectures' values if they are the same, else each."""
    return values[0] if len(set(values)) == 1 else ", ".join(values)


def many() -> str:
    """A row for each kernel and tile, with the architectures that launch it alike."""
    alike = {}
    for row in read(RECORD_MANY):
        tile, launch = " x ".join(map(str, row["tile"])), f"{row['num_warps']}, {row['num_stages']}"
        alike.setdefault((row["kernel"].removesuffix("_kernel"), tile, launch, kib(row)), []).append(row)
    cells = [
        [
            ", ".join(row["architecture"] for row in rows),
            *launched,
            joined([str(row["registers"]) for row in rows]),
            joined([NOT_DECODED if row["reloads"] is None else str(row["reloads"]) for row in rows]),
        ]
        for launched, rows in alike.items()
    ]
    return Table(HEAD_MANY, [cells], words=3, caption="Registers in the order of the architectures.").markdown()
