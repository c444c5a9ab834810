"""Write the table of our solutions in docs/backends.md anew, from each solution.toml and from traces/."""

import argparse
import sys

from harness.core import paths
from harness.core.atomic_file import write_atomically
from harness.packing import manifest
from harness.report import backend_table
from harness.results.trace_files import TraceSetError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def main(args: argparse.Namespace) -> int:
    try:
        text = backend_table.renewed(paths.BACKENDS.read_text())
    except (ValueError, TraceSetError, manifest.PackingError) as error:
        print(error, file=sys.stderr)
        return 1
    write_atomically(paths.BACKENDS, text)
    return 0
