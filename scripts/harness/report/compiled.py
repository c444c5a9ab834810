"""What mma_fused's kernel takes on each architecture that it is compiled for."""

import json

from harness.core import paths
from harness.report.table import Table

RECORD = paths.DOCS / "data" / "compiled" / "mma_fused.jsonl"
RECORD_MANY = paths.DOCS / "data" / "compiled" / "mma_fused_many.jsonl"
HEAD = ["architecture", "registers", "bytes spilled", "shared memory", "MMA instructions", "copies of weights"]

HEAD_MANY = ["architecture", "kernel", "rows x columns x K", "warps, stages", "registers", "spilled values read"]
HEAD_MANY += ["shared memory"]


def counted(names: dict[str, int]) -> str:
    """'448 HMMA.16816.F32'; none are counted where the disassembler does not know the architecture."""
    if not names:
        return "not decoded"
    return ", ".join(f"{count} {name}" for name, count in names.items())


def block() -> str:
    rows = [json.loads(line) for line in RECORD.read_text().splitlines()]
    kib = {row["architecture"]: f"{row['shared'] / 1024:.1f} KiB" for row in rows}
    cells = [
        [row["architecture"], str(row["registers"]), str(row["spilled"]), kib[row["architecture"]]]
        + [counted(row["mma"]), counted(row["copies"])]
        for row in rows
    ]
    return Table(HEAD, [cells], caption="Instructions in the machine code, all sizes of chunks together.").markdown()


def many() -> str:
    """A row for each tile of each architecture."""
    rows = [json.loads(line) for line in RECORD_MANY.read_text().splitlines()]
    cells = [
        [row["architecture"], row["kernel"].removesuffix("_kernel"), " x ".join(map(str, row["tile"]))]
        + [f"{row['num_warps']}, {row['num_stages']}", str(row["registers"])]
        + ["not decoded" if row["reloads"] is None else str(row["reloads"]), f"{row['shared'] / 1024:.1f} KiB"]
        for row in rows
    ]
    return Table(HEAD_MANY, [cells], words=3).markdown()
