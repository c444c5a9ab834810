"""The definitions of this data set and their workloads, with the roofline bound of each on an H200.

Without KEY all definitions are listed, with it the workloads of these, yours among them. --write
writes definitions/, workloads/ and blob/ anew; a line that you have added to a workload file stays.
"""

import argparse

from moebench.core import paths
from moebench.operators import workloads
from moebench.operators.add_model import write
from moebench.operators.catalogue import definition_name, geometries, geometry_named
from moebench.operators.roofline import MEASURED_ON
from moebench.reports.table import console, decimal

SIZES = {"num_experts": "E", "hidden_size": "H", "intermediate_size": "I", "n": "N", "k": "K"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "definition",
        nargs="*",
        type=geometry_named,
        metavar="KEY",
        help="list their workloads; default: definitions",
    )
    add("--write", action="store_true", help="write their files and tensors, of all by default")


def main(args: argparse.Namespace) -> int:
    if args.write:
        for geometry in args.definition or geometries():
            print(write(geometry))
        return 0
    if not args.definition:
        print("\n".join(definitions_listed()))
    for geometry in args.definition:
        print("\n".join(workloads_listed(geometry)))
    return 0


def definitions_listed() -> list[str]:
    """Return a line for each definition; its name stands last, if the terminal is wide enough."""
    rows = [["key", "sizes", "T", "workloads", "definition"]]
    for key, sizes in geometries().items():
        known = workloads.recorded(key)
        lengths = sorted({workload.axes["seq_len"] for workload in known}) or ["-"]
        parts = [f"{short} {sizes[name]}" for name, short in SIZES.items() if name in sizes]
        tokens = f"{lengths[0]} to {lengths[-1]}"
        rows.append([key, ", ".join(parts), tokens, str(len(known)), definition_name(key)])

    lines = aligned(rows, words=len(rows[0]))
    if max(map(len, lines)) > console().width:
        lines = aligned([row[:-1] for row in rows], words=len(rows[0]))
    return lines


def workloads_listed(geometry: str) -> list[str]:
    """Return a title and a line for each workload of a definition."""
    name = definition_name(geometry)
    rows = [["name", "T", "rows", "active", "MB", "GFLOP", "bound ms", "by"]]
    for workload in workloads.recorded(geometry):
        shown = workloads.label(workload, geometry).partition(" ")[0]
        bound = workloads.recorded_bound(name, workload, paths.ROOT)
        cells = ["-"] * 6
        if bound:
            cells = [
                str(bound.rows),
                str(bound.active),
                f"{bound.bytes / 1e6:.1f}",
                f"{bound.flops / 1e9:.1f}",
                decimal(bound.ms, 4),
                "bytes" if bound.memory_ms >= bound.compute_ms else "FLOPs",
            ]
        rows.append([shown, str(workload.axes["seq_len"]), *cells])
    return [f"{name}, {MEASURED_ON}", *aligned(rows, words=1)]


def aligned(rows: list[list[str]], words: int) -> list[str]:
    """Return the rows as lines; nothing is cut, as keys and names are there to be typed.

    words: so many columns begin at the left, the others end at the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for at, (cell, width) in enumerate(zip(row, widths, strict=True)):
            cells.append(cell.ljust(width) if at < words else cell.rjust(width))
        lines.append("  ".join(cells).rstrip())
    return lines
