"""Draw the pictures in docs/ from traces/ and docs/profile/: speed-up and latency, roofline, stages.

--check draws nothing and tells whether the pictures are those of the traces, by a fingerprint in each.
"""

import argparse
import sys
from pathlib import Path

import harness  # noqa: F401  must come first: it settles whether Triton interprets
from harness import comparison, paths
from harness.atomic_file import write_atomically
from harness.pictures import pictures
from harness.profile_record import read_record
from harness.tolerances import TOLERANCES
from harness.trace_sets import TraceSetError


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--traces", nargs="+", type=Path, default=[paths.ROOT], metavar="PATH", help="default: this repository")
    add("--profiles", type=Path, default=paths.PROFILES, metavar="FOLDER", help="default: docs/profile")
    add("--tolerance", choices=list(TOLERANCES), default="relaxed", help="default: relaxed")
    add("--output", type=Path, default=paths.DOCS, metavar="FOLDER", help="default: docs")
    add("--check", action="store_true", help="only tell whether the pictures are up to date")
    return parser.parse_args(argv)


def main() -> int:
    args = parse(sys.argv[1:])
    try:
        found = comparison.build(args.traces)
        records = [read_record(file) for file in sorted(args.profiles.glob("*.json"))]
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


if __name__ == "__main__":
    sys.exit(main())
