"""A comparison for other programs: everything as JSON, and the cells or ratios as one flat CSV table."""

from collections.abc import Iterator

import pandas as pd
from pydantic import TypeAdapter

from harness.results.comparison import Comparison, RunGroup


def as_json(comparison: Comparison) -> str:
    """Every field of the model, indented; a figure that is not known is null."""
    return TypeAdapter(Comparison).dump_json(comparison, indent=2).decode() + "\n"


def _groups(comparison: Comparison) -> Iterator[tuple[RunGroup, dict[str, str]]]:
    """Each run group with its condition, the first columns of its lines."""
    for section in comparison.sections:
        where = {"definition": section.definition, "hardware": section.hardware, "versions": section.versions_text}
        for group in section.groups:
            yield group, where | {"tolerance": group.tolerance, "protocol": group.protocol}


def cells_csv(comparison: Comparison) -> str:
    """A line for each cell, without its log; empty where a figure is not known."""
    lines = []
    for group, where in _groups(comparison):
        for row in group.rows:
            info = row.workload
            first = where | {"uuid": info.uuid, "seq_len": info.seq_len, "bound_ms": info.bound_ms}
            lines += [first | vars(cell) | {"winner": int(name == row.winner)} for name, cell in row.cells.items()]
    return pd.DataFrame(lines).drop(columns="log").to_csv(index=False)


def ratios_csv(comparison: Comparison) -> str:
    """A line for each workload of each ratio; empty where it is not known."""
    lines = []
    for group, where in _groups(comparison):
        for ratio in group.ratios:
            for row in group.rows:
                info, a_ms, b_ms = row.workload, row.ms(ratio.a), row.ms(ratio.b)
                line = {
                    "uuid": info.uuid,
                    "seq_len": info.seq_len,
                    "a": ratio.a,
                    "b": ratio.b,
                    "a_ms": a_ms,
                    "b_ms": b_ms,
                }
                lines.append(where | line | {"ratio": ratio.by_workload.get(info.uuid)})
    return pd.DataFrame(lines).to_csv(index=False)
