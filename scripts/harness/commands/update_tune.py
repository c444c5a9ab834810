"""Write the tables in docs/tune.md again, from the records in docs/data/tune/."""

import argparse

from harness.core import paths
from harness.core.atomic_file import write_atomically
from harness.report import marked_block, tuning

PAGE = paths.DOCS / "tune.md"
BEGIN = "<!-- tuning: written by scripts/update_tune.py -->"
END = "<!-- end of tuning -->"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def main(args: argparse.Namespace) -> int:
    write_atomically(PAGE, marked_block.replaced(PAGE.read_text(), BEGIN, END, tuning.block(), PAGE.name))
    return 0
