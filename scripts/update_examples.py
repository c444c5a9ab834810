"""Run the commands that docs/compare.md shows and write what they print into it."""

import argparse
import sys

import harness  # noqa: F401  must come first: it settles whether Triton interprets
from harness import doc_examples, paths
from harness.atomic_file import write_atomically

PAGE = paths.DOCS / "compare.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only tell whether it is up to date")
    check = parser.parse_args().check
    old = PAGE.read_text()
    try:
        new = doc_examples.renewed(old)
    except ValueError as error:
        print(f"{PAGE.name}: {error}", file=sys.stderr)
        return 1
    if check and new != old:
        print(f"{PAGE.name} is out of date: run `make examples`", file=sys.stderr)
        return 1
    if not check:
        write_atomically(PAGE, new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
