"""Write the tables in docs/profile.md anew from the records in docs/data/profile/."""

import argparse
import sys

from harness.core.atomic_file import write_atomically
from harness.packing import manifest
from harness.report import profile_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="only tell whether they are up to date")


def main(args: argparse.Namespace) -> int:
    check = args.check
    try:
        old = profile_page.PAGE.read_text()
        new = profile_page.renewed(old)
    except (ValueError, OSError, manifest.PackingError) as error:
        print(error, file=sys.stderr)
        return 1
    if check and new != old:
        print("docs/profile.md is out of date: run `make profile`", file=sys.stderr)
        return 1
    if not check:
        write_atomically(profile_page.PAGE, new)
    return 0
