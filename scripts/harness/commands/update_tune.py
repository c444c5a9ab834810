"""Write the tables in docs/tune.md anew, from the records in docs/data/tune/."""

import argparse
import sys

from harness.core.atomic_file import write_atomically
from harness.report import tune_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def main(args: argparse.Namespace) -> int:
    try:
        text = tune_page.renewed(tune_page.PAGE.read_text())
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    write_atomically(tune_page.PAGE, text)
    return 0
