"""Print each workload's roofline bound on an H200, from its own routing."""

import argparse

from rich.console import Console

from harness.operators import workloads
from harness.operators.arguments import add_definition
from harness.operators.catalogue import definition_name
from harness.operators.roofline import MEASURED_ON
from harness.report.table import Table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_definition(parser, default="full", help="default: full")


def main(args: argparse.Namespace) -> int:
    geometry = args.definition
    rows, total = [], 0.0
    for uuid in workloads.cases_by_uuid(geometry):
        bound = workloads.generated_bound(geometry, uuid)
        total += bound.ms
        counts = [str(count) for count in (bound.seq_len, bound.rows, bound.active)]
        sizes = [f"{bound.bytes / 1e6:.1f}", f"{bound.flops / 1e9:.1f}"]
        rows.append([*counts, *sizes, *(f"{ms:.4f}" for ms in (bound.memory_ms, bound.compute_ms, bound.ms))])
    head = ["T", "rows", "active", "MB", "GFLOP", "memory ms", "compute ms", "bound ms"]
    mean = ["mean", *[""] * 6, f"{total / len(rows):.4f}"]
    title = f"{definition_name(geometry)}, {MEASURED_ON}"
    Console().print(Table(head, [rows, [mean]], title=title, words=0).terminal())
    return 0
