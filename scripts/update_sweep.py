"""Write the tables in docs/sweep.md and their pictures anew, from the records in docs/sweep/."""

import argparse
import sys

import harness  # noqa: F401  must come first: it settles whether Triton interprets
from harness import packing, paths, plot_sweep, sweep_page, sweep_record
from harness.atomic_file import write_atomically
from harness.pictures import Picture, fingerprint
from harness.sweep_record import SweepPoint


def picture(points: list[SweepPoint]) -> Picture:
    name, below = points[0].solution, sweep_page.below(points)
    made_from = fingerprint([[p.model_dump() for p in points], below], plot_sweep)
    return Picture(f"sweep-{name}.svg", made_from, lambda: plot_sweep.draw(points, name, below))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only tell whether they are up to date")
    check = parser.parse_args().check
    try:
        sweeps = [sweep_record.read(path) for path in sorted(paths.SWEEPS.glob("*.jsonl"))]
        old = sweep_page.PAGE.read_text()
        new, pictures = sweep_page.renewed(old, sweeps), list(map(picture, sweeps))
    except (ValueError, OSError, packing.PackingError) as error:
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


if __name__ == "__main__":
    sys.exit(main())
