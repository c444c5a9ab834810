"""Print the least time that each workload can take on an H200, from its own routing."""

import argparse

from rich.console import Console
from rich.table import Table

from harness.operators import workloads
from harness.operators.catalogue import GEOMETRIES, definition_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("geometry", nargs="?", choices=list(GEOMETRIES), default="full")


def main(args: argparse.Namespace) -> int:
    geometry = args.geometry
    table = Table(title=definition_name(geometry))
    for heading in ("T", "rows", "active", "MB", "GFLOP", "memory ms", "compute ms", "bound ms"):
        table.add_column(heading, justify="right")
    bounds = []
    for case in workloads.cases_by_uuid(geometry).values():
        least = workloads.maker(geometry).bound(case, geometry)
        bounds.append(least.ms)
        counts = [least.seq_len, least.rows, least.active]
        sizes = [f"{least.bytes / 1e6:.1f}", f"{least.flops / 1e9:.1f}"]
        times = [f"{ms:.4f}" for ms in (least.memory_ms, least.compute_ms, least.ms)]
        table.add_row(*map(str, counts), *sizes, *times)
    table.add_section()
    table.add_row("mean", *[""] * 6, f"{sum(bounds) / len(bounds):.4f}")
    Console().print(table)
    return 0
