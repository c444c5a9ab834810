"""What mma_fused's kernel takes on each architecture that it is compiled for."""

import json

from harness.core import paths
from harness.report.table import Table

RECORD = paths.DOCS / "data" / "compiled" / "mma_fused.jsonl"
HEAD = ["architecture", "registers", "bytes spilled", "shared memory", "MMA instructions", "copies of weights"]


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
