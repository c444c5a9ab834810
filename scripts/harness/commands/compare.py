"""Compare solutions side by side, from recorded traces: which is fastest where, and how exact each is.

MODEL prints a line instead: which solution to use for its layer, how fast it is and how far from the roofline bound,
and how to call it.

Everything that is averaged comes from one machine, one set of versions, one tolerance and one protocol. Where several
traces are of one cell, those of the current source come first, and the newest of them counts.
"""

import argparse
import json
import sys

import pandas as pd
from rich.console import Console

from harness.core import paths
from harness.core.arguments import Names, add_traces, output_file
from harness.core.atomic_file import write_atomically
from harness.core.errors import UserError
from harness.core.provenance import CLOCKS
from harness.operators.arguments import METAVAR, listed
from harness.report import comparison as report
from harness.report.blocks.model_advice import advice
from harness.results import comparison, models
from harness.results.comparison import Comparison, cell_table
from harness.results.model_names import layers_named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_traces(parser)
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="Qwen3-235B-A22B, DeepSeek-V3, DeepSeek-V3-EP4, Kimi-K2 ...")
    add("--gpu", metavar="NAME", help="of MODEL: H200, sm_90 ...; default: every machine that was recorded")
    add("--definition", metavar=METAVAR, help="of another data set, too; default: all that were recorded")
    add("--tolerance", metavar="NAME", help="default: all that were recorded")
    add("--clock", choices=CLOCKS, help="of traces, each in tables of its own; default: all of --traces, else events")
    add("--solutions", nargs="+", action=Names, default=[], metavar="NAME", help="default: all that were recorded")
    add("--ratio", nargs=2, metavar=("A", "B"), help="only this: how many times as fast A is as B")
    add("--format", choices=FORMATS, default="terminal", help="default: terminal")
    add("--output", type=output_file, metavar="FILE", help="write there, not to the terminal")
    parser.epilog = listed()


def as_csv(found: Comparison) -> str:
    """A line for each cell, without its log, or each workload of the ratio; empty where a figure is not known."""
    if not found.pair:
        hidden = ["log", "stale", "passed", "counts", "tolerance_name"]
        return cell_table(found).drop(columns=hidden).astype({"level": int}).to_csv(index=False)
    lines = []
    for section, group, row in [(*run, row) for run in found.runs for row in run[1].rows]:
        first = {"definition": section.definition, "hardware": section.hardware, "versions": section.versions_text}
        first |= {"tolerance": group.tolerance, "protocol": group.protocol}
        first |= {"uuid": row.workload.uuid, "seq_len": row.workload.seq_len}
        for ratio in group.ratios:
            times = {"a_ms": row.ms(ratio.a), "b_ms": row.ms(ratio.b)}
            times["ratio"] = ratio.by_workload.get(row.workload.uuid)
            lines.append(first | {"a": ratio.a, "b": ratio.b} | times)
    return pd.DataFrame(lines).to_csv(index=False)


def as_json(found: Comparison) -> str:
    """Every field of the model; null where a figure is not known."""
    return json.dumps(found, default=vars, indent=2, ensure_ascii=False) + "\n"


FORMATS = {"terminal": report.plain_text, "markdown": report.markdown, "csv": as_csv, "json": as_json}


def about_model(args: argparse.Namespace) -> str:
    """Lines for each degree of expert parallelism. Raises UserError for options that choose among tables."""
    for option in ("definition", "tolerance", "clock", "solutions", "ratio"):
        if getattr(args, option):
            raise UserError(f"--{option}: got it beside a MODEL, whose answer has no tables to choose from")
    if args.format != "terminal":
        raise UserError(f"--format: got {args.format} beside a MODEL, whose answer is text alone")
    chosen = layers_named(args.model)
    given = args.traces or models.trace_files(chosen)
    found = comparison.build(given, clock="events") if given else Comparison([])
    warn(found)
    return "".join(f"{line}\n" for layer in chosen for line in advice(layer, found, args.gpu))


def warn(found: Comparison) -> None:
    for warning in found.warnings:
        print(warning, file=sys.stderr)


def main(args: argparse.Namespace) -> int:
    if args.gpu and not args.model:
        raise UserError("--gpu: want a MODEL beside it; the tables have every machine")
    if args.model:
        text = about_model(args)
    else:
        pair = tuple(args.ratio) if args.ratio else None
        if args.clock == "gpu" and not args.traces and not paths.GPU_CLOCK.exists():
            raise UserError(
                "--clock gpu: nothing is recorded by the GPU's clock; `moebench run --clock gpu` records it"
            )
        given = args.traces or [paths.GPU_CLOCK if args.clock == "gpu" else paths.ROOT]
        chosen = (args.definition, args.tolerance, args.solutions, pair, args.clock)
        found = comparison.build(given, *chosen)
        if not found.sections:
            raise UserError(f"--clock: got {args.clock}, but none of these traces was timed by it")
        warn(found)
        if args.format == "terminal" and not args.output and sys.stdout.isatty():
            report.show(found, Console())
            return 0
        text = FORMATS[args.format](found)
    if args.output:
        write_atomically(args.output, text)
    else:
        sys.stdout.write(text)
    return 0
