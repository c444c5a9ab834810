"""A comparison for other programs: everything as JSON, and the cells or ratios as one flat CSV table."""

import csv
import io
import json
from dataclasses import asdict, fields

from harness.results.comparison import Cell, Comparison

WHERE = ("definition", "hardware", "versions", "tolerance", "protocol", "uuid", "seq_len")
LEFT_OUT = {"uuid", "seq_len", "log"}  # the first two are in WHERE, a log is no table cell
CELL_FIELDS = [f.name for f in fields(Cell) if f.name not in LEFT_OUT]


def as_json(comparison: Comparison) -> str:
    """Every field of the model, indented; a figure that is not known is null."""
    return json.dumps(asdict(comparison), indent=2, allow_nan=False) + "\n"


def _csv(head: list[str], rows: list[list]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return out.getvalue()


def _groups(comparison: Comparison):
    """Each run group with its values for WHERE, without uuid and seq_len."""
    for section in comparison.sections:
        versions = "; ".join(f"{name} {version}" for name, version in section.versions.items())
        for group in section.groups:
            yield group, [section.definition, section.hardware, versions, group.tolerance, group.protocol]


def cells_csv(comparison: Comparison) -> str:
    """A line for each cell; empty where a figure is not known."""
    rows = []
    for group, where in _groups(comparison):
        for row in group.rows:
            info = row.workload
            for cell in row.cells.values():
                own = [getattr(cell, name) for name in CELL_FIELDS]
                rows.append([*where, info.uuid, info.seq_len, info.bound_ms, *own, int(cell.solution == row.winner)])
    return _csv([*WHERE, "bound_ms", *CELL_FIELDS, "winner"], rows)


def ratios_csv(comparison: Comparison) -> str:
    """A line for each workload of each ratio; empty where it is not known."""
    rows = []
    for group, where in _groups(comparison):
        for ratio in group.ratios:
            for row in ratio.rows:
                rows.append([*where, row.uuid, row.seq_len, ratio.a, ratio.b, row.a_ms, row.b_ms, row.ratio])
    return _csv([*WHERE, "a", "b", "a_ms", "b_ms", "ratio"], rows)
