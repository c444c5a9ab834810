"""Write the tables in docs/sweep.md and their pictures anew, from the records in docs/data/sweep/."""

import argparse
import sys

from harness.core import paths
from harness.core.atomic_file import write_atomically
from harness.evaluation import sweep_record
from harness.evaluation.sweep_record import SweepPoint
from harness.packing import manifest
from harness.report import plot_sweep, sweep_page
from harness.report.pictures import Picture, fingerprint


def picture(points: list[SweepPoint]) -> Picture:
    name, below = points[0].solution, sweep_page.below(points)
    made_from = fingerprint([[p.model_dump() for p in points], below], plot_sweep)
    return Picture(f"sweep-{name}.svg", made_from, lambda: plot_sweep.draw(points, name, below))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="only tell whether they are up to date")


def main(args: argparse.Namespace) -> int:
    check = args.check
    try:
        sweeps = [sweep_record.read(path) for path in sorted(paths.SWEEPS.glob("*.jsonl"))]
        old = sweep_page.PAGE.read_text()
        new, pictures = sweep_page.renewed(old, sweeps), list(map(picture, sweeps))
    except (ValueError, OSError, manifest.PackingError) as error:
        print(error, file=sys.stderr)
        return 1
    if check and (new != old or not all(p.is_in(paths.DOCS) for p in pictures)):
        print("docs/sweep.md or a picture of it is out of date: run `make sweep`", file=sys.stderr)
        return 1
    if not check:
        write_atomically(sweep_page.PAGE, new)
        for drawn in pictures:
            write_atomically(paths.DOCS / drawn.file, drawn.svg())
    return 0
