"""Write the results in README.md anew from traces/."""

import argparse
import sys

from harness import paths, results_block
from harness.atomic_file import write_atomically
from harness.trace_sets import TraceSetError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only tell whether it is up to date")
    check = parser.parse_args().check
    old = paths.README.read_text()
    try:
        new = results_block.renewed(old)
    except (ValueError, TraceSetError) as error:
        print(error, file=sys.stderr)
        return 1
    if check and new != old:
        print("README.md is out of date: run `make readme`", file=sys.stderr)
        return 1
    if not check:
        write_atomically(paths.README, new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
