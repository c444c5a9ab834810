"""The definitions of this data set and their workloads, with the roofline bound of each on an H200.

Without KEY all definitions are listed, with it the workloads of these, yours among them. --write
writes definitions/, workloads/ and blob/ anew; a line that you have added to a workload file stays.
"""

import argparse

from moebench.core import paths
from moebench.models.add_model import write
from moebench.operators import workloads
from moebench.operators.catalogue import definition_name, layer_key_named, layer_sizes
from moebench.operators.roofline import MEASURED_ON
from moebench.reports.table import Table
from moebench.reports.terminal import InTerminal, console

# Size of a layer -> how the table calls it
SIZES = {
    "num_experts": "E",
    "hidden_size": "H",
    "intermediate_size": "I",
    "n": "N",
    "k": "K",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "definition",
        nargs="*",
        type=layer_key_named,
        metavar="KEY",
        help="list their workloads; default: definitions",
    )
    add(
        "--write",
        action="store_true",
        help="write their files and tensors, of all by default",
    )


def main(args: argparse.Namespace) -> int:
    if args.write:
        for key in args.definition or layer_sizes():
            print(write(key))
        return 0

    tables = [workloads_table(key) for key in args.definition] or [definitions_table()]
    screen = console()
    for table in tables:
        screen.print(InTerminal(table))
    return 0


def definitions_table() -> Table:
    """Return a row for each definition of this data set."""
    rows = []
    for key, sizes in layer_sizes().items():
        tokens = [workload.axes["seq_len"] for workload in workloads.recorded(key)]
        span = f"{min(tokens)} to {max(tokens)}" if tokens else "-"
        parts = []
        for name, short in SIZES.items():
            if name in sizes:
                parts.append(f"{short} {sizes[name]}")
        sizes_text = ", ".join(parts)
        rows.append([key, definition_name(key), sizes_text, span, len(tokens)])
    return Table(
        ["key", "definition", "sizes", "T", "workloads"], [rows], word_columns=4
    )


def workloads_table(key: str) -> Table:
    """Return a row for each workload of a definition, with its roofline bound."""
    name = definition_name(key)
    rows = []
    for workload in workloads.recorded(key):
        label, *_ = workloads.label(workload, key).split(" ")
        bound = workloads.recorded_bound(name, workload, paths.ROOT)
        cells = [None] * 6
        if bound:
            limit = "bytes" if bound.limit == "bytes" else "FLOPs"
            megabytes = f"{bound.bytes / 1e6:.1f}"
            gigaflops = f"{bound.flops / 1e9:.1f}"
            ms = f"{bound.ms:.4f}"
            cells = [bound.rows, bound.active, megabytes, gigaflops, limit, ms]
        rows.append([label, workload.axes["seq_len"], *cells])
    head = ["name", "T", "rows", "active", "MB", "GFLOP", "by", "bound ms"]
    return Table(head, [rows], title=f"{name}, {MEASURED_ON}", word_columns=1)
