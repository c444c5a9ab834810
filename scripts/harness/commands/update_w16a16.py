"""Write the tables in docs/w16a16.md and its picture anew, from traces/ and docs/data/launches_bf16.json."""

import argparse
import sys

from harness.core import paths
from harness.core.atomic_file import write_atomically
from harness.packing import manifest
from harness.report import plot_w16a16, w16a16_page
from harness.report.comparison_tables import versions
from harness.report.pictures import Picture, fingerprint
from harness.results.comparison import Comparison
from harness.results.trace_sets import TraceSetError


def picture(found: Comparison) -> Picture | None:
    """Of the first machine and protocol; None before anything was timed."""
    for section in found.sections:
        for group in section.groups:
            data = plot_w16a16.data(group)
            title = f"{section.definition}\n{section.hardware}, {group.tolerance}"
            below = f"{versions(section)}; {group.protocol}; {' to '.join(group.days)}"
            made_from = fingerprint([data, title, below], plot_w16a16)
            return Picture("w16a16.svg", made_from, lambda d=data, t=title, b=below: plot_w16a16.draw(d, t, b))
    return None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="only tell whether they are up to date")


def main(args: argparse.Namespace) -> int:
    check = args.check
    try:
        old, found = w16a16_page.PAGE.read_text(), w16a16_page.traces()
        new, drawn = w16a16_page.renewed(old, found), picture(found)
    except (TraceSetError, ValueError, OSError, manifest.PackingError) as error:
        print(error, file=sys.stderr)
        return 1
    if check and (new != old or drawn and not drawn.is_in(paths.DOCS)):
        print("docs/w16a16.md or its picture is out of date: run `make w16a16`", file=sys.stderr)
        return 1
    if not check:
        write_atomically(w16a16_page.PAGE, new)
        if drawn:
            write_atomically(paths.DOCS / drawn.file, drawn.svg())
    return 0
