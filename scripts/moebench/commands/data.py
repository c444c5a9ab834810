"""The definitions of this data set and their workloads, with the roofline bound of each on an H200.

Without KEY all definitions are listed, with it the workloads of these, yours among them. --write
writes definitions/, workloads/ and blob/ anew; a line that you have added to a workload file stays.
"""

import argparse

from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.operators import workloads
from moebench.operators.catalogue import GEOMETRIES, definition, definition_name, geometry_named
from moebench.operators.roofline import MEASURED_ON
from moebench.reports.table import Table, console, decimal

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


def write(geometry: str) -> str:
    """Write a definition's JSON, its workloads and their tensors; says what was done."""
    stated = definition(geometry)
    write_atomically(
        paths.definition_file(stated.name),
        stated.model_dump_json(indent=2, exclude_unset=True) + "\n",
    )
    made, kept = workloads.make(geometry)
    own = len(workloads.recorded(geometry)) - made - kept
    return f"{stated.name}: {made} tensor files written, {kept} already good" + (
        f"; {own} of your own" if own else ""
    )


def listed() -> Table:
    rows = []
    for key, sizes in GEOMETRIES.items():
        known = workloads.recorded(key)
        lengths = sorted({workload.axes["seq_len"] for workload in known}) or ["-"]
        stated = ", ".join(
            f"{short} {sizes[name]}" for name, short in SIZES.items() if name in sizes
        )
        rows.append(
            [key, definition_name(key), stated, f"{lengths[0]} to {lengths[-1]}", len(known)]
        )
    return Table(["key", "definition", "sizes", "T", "workloads"], [rows], words=4)


def workloads_of(geometry: str) -> Table:
    name, rows = definition_name(geometry), []
    for workload in workloads.recorded(geometry):
        least = workloads.recorded_bound(name, workload, paths.ROOT)
        cells = [None] * 7
        if least:
            cells = [
                least.rows,
                least.active,
                f"{least.bytes / 1e6:.1f}",
                f"{least.flops / 1e9:.1f}",
            ]
            cells += [decimal(ms, 4) for ms in (least.memory_ms, least.compute_ms, least.ms)]
        rows.append(
            [
                workload.axes["seq_len"],
                *cells,
                workloads.label(workload, geometry).partition(" ")[0],
            ]
        )
    head = ["T", "rows", "active", "MB", "GFLOP", "memory ms", "compute ms", "bound ms", "name"]
    return Table(head, [rows], title=f"{name}, {MEASURED_ON}", words=0)


def main(args: argparse.Namespace) -> int:
    if args.write:
        for geometry in args.definition or GEOMETRIES:
            print(write(geometry))
        return 0
    for table in map(workloads_of, args.definition) if args.definition else [listed()]:
        console().print(table.terminal())
    return 0
