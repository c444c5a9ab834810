"""Write the tables in docs/mxfp8.md anew from the records in docs/data/profile/mxfp8/ and from traces/."""

import argparse
import sys

from harness.core.atomic_file import write_atomically
from harness.packing import manifest
from harness.report import mxfp8_page
from harness.results.trace_sets import TraceSetError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def main(args: argparse.Namespace) -> int:
    try:
        text = mxfp8_page.renewed(mxfp8_page.PAGE.read_text())
    except (ValueError, OSError, TraceSetError, manifest.PackingError) as error:
        print(error, file=sys.stderr)
        return 1
    write_atomically(mxfp8_page.PAGE, text)
    return 0
