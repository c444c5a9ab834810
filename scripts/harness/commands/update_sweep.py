"""Write the tables in docs/sweep.md and their pictures anew, from the records in docs/data/sweep/."""

import argparse
import sys

from harness.core import paths
from harness.core.atomic_file import write_atomically
from harness.evaluation.sweep_record import Sweep
from harness.packing import manifest
from harness.report import marked_block, plot_sweep
from harness.report import sweep as report
from harness.report.pictures import Picture, fingerprint

PAGE = paths.DOCS / "sweep.md"
BEGIN = "<!-- sweeps: written by scripts/update_sweep.py -->"
END = "<!-- end of sweeps -->"


def picture(sweep: Sweep) -> Picture:
    below = report.origin(sweep)
    made_from = fingerprint([[p.model_dump() for p in sweep.points], below], plot_sweep)
    return Picture(f"sweep-{sweep.head.solution}.svg", made_from, lambda: plot_sweep.draw(sweep, below))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="only tell whether they are up to date")


def main(args: argparse.Namespace) -> int:
    check = args.check
    try:
        old = PAGE.read_text()
        new = marked_block.replaced(old, BEGIN, END, report.block(), PAGE.name)
        pictures = list(map(picture, report.recorded()))
    except (ValueError, OSError, manifest.PackingError) as error:
        print(error, file=sys.stderr)
        return 1
    if check and (new != old or not all(p.is_in(paths.DOCS) for p in pictures)):
        print("docs/sweep.md or a picture of it is out of date: run `make sweep`", file=sys.stderr)
        return 1
    if not check:
        write_atomically(PAGE, new)
        for drawn in pictures:
            write_atomically(paths.DOCS / drawn.file, drawn.svg())
    return 0
