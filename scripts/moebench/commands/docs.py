"""Write the generated tables and figures of README.md and docs/, and the numbers in sentences, from
traces/ and records/.

--check writes nothing and says what is out of date. Exit status: 0, or 1 when something is out of
date or could not be made, or a number stands in a sentence that no trace or record gives.
"""

import argparse
import sys

from moebench.core import paths
from moebench.reports.docs import generated, sentences
from moebench.reports.docs.computed import FUNCTIONS
from moebench.reports.docs.pages import FIGURES, TABLES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--check", action="store_true", help="only say what is out of date"
    )


def main(args: argparse.Namespace) -> int:
    paths.require_clone("moebench docs")
    problems = generated.update(args.check, TABLES, FIGURES)
    problems += sentences.update(args.check, sentences.listed(), FUNCTIONS)
    for line in problems:
        print(line, file=sys.stderr)
    return 1 if problems else 0
