"""Draw the pictures in docs/ from traces/ and docs/data/profile/: speed-up and latency, roofline, stages.

--check draws nothing and tells whether the pictures are those of the traces, by a fingerprint in each.
"""

import argparse
import sys
from pathlib import Path

from harness.core import paths
from harness.core.atomic_file import write_atomically
from harness.evaluation.tolerances import TOLERANCES
from harness.profiling.record import read_records
from harness.report.pictures import pictures
from harness.results import comparison
from harness.results.trace_files import TraceSetError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--traces", nargs="+", type=Path, default=[paths.ROOT], metavar="PATH", help="default: this repository")
    add("--profiles", type=Path, default=paths.PROFILES, metavar="FOLDER", help="default: docs/profile")
    add("--tolerance", choices=list(TOLERANCES), default="relaxed", help="default: relaxed")
    add("--output", type=Path, default=paths.DOCS, metavar="FOLDER", help="default: docs")
    add("--check", action="store_true", help="only tell whether the pictures are up to date")


def main(args: argparse.Namespace) -> int:
    try:
        found = comparison.build(args.traces)
        records = read_records(args.profiles)
        drawn, lines = pictures(found, args.tolerance, records)
        for line in [*found.warnings, *lines]:
            print(line, file=sys.stderr)
        old = [picture.file for picture in drawn if args.check and not picture.is_in(args.output)]
        for file in old:
            print(f"{args.output / file} is out of date: run `make plots`", file=sys.stderr)
        for picture in [] if args.check else drawn:
            write_atomically(args.output / picture.file, picture.svg())
            print(args.output / picture.file)
    except (TraceSetError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if old or not drawn else 0
