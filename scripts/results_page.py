"""Write docs/results.html, the results as a page to explore, from traces/."""

import argparse
import sys
from pathlib import Path

import harness  # noqa: F401  must come first: it settles whether Triton interprets
from harness import comparison, paths, results_page
from harness.atomic_file import write_atomically
from harness.trace_sets import TraceSetError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add(
        "--traces",
        nargs="+",
        type=Path,
        default=[paths.ROOT],
        metavar="PATH",
        help="trace sets, folders of JSONL files, or such files, taken together; default: this repository",
    )
    add("--output", type=Path, metavar="FILE", default=paths.RESULTS_PAGE, help="default: docs/results.html")
    args = parser.parse_args()
    # the page in docs/ is of the FP8 layer; other operators have pages of their own
    definition = "full" if args.traces == [paths.ROOT] else None
    try:
        found = comparison.build(args.traces, definition)
        write_atomically(args.output, results_page.page(found))
    except (TraceSetError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    for warning in found.warnings:
        print(warning, file=sys.stderr)
    print(f"wrote {args.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
