"""Write workloads/moe/<definition>.jsonl and the tensors they refer to, under blob/.

A tensor file that is there and has the recorded checksum is not written again.
"""

import argparse
import sys

from harness import workloads
from harness.catalogue import GEOMETRIES, definition_name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("geometry", nargs="*", help=f"of {', '.join(GEOMETRIES)}; default: all")
    wanted = parser.parse_args().geometry or list(GEOMETRIES)
    if unknown := [name for name in wanted if name not in GEOMETRIES]:
        parser.error(f"unknown geometry {unknown[0]!r}; there are: {', '.join(GEOMETRIES)}")
    for geometry in wanted:
        try:
            written, kept = workloads.make(geometry)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 1
        print(f"{definition_name(geometry)}: {written} tensor files written, {kept} already good")
    return 0


if __name__ == "__main__":
    sys.exit(main())
