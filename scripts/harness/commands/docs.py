"""Write every generated table, example and figure of README.md and docs/, from traces/ and docs/data/.

--check writes nothing and says what is out of date. Exit status: 0, or 1 when something is out of date or could not be
made.
"""

import argparse
import sys

from harness.report import docs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="README, compare, sweep ...; default: all pages")
    parser.add_argument("--check", action="store_true", help="only say what is out of date")


def main(args: argparse.Namespace) -> int:
    problems = docs.update(docs.chosen_pages(args.pages), args.check, args.moebench)
    for line in problems:
        print(line, file=sys.stderr)
    return 1 if problems else 0
