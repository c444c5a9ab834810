"""Write the tables in docs/mxfp8.md anew from the records in docs/profile/mxfp8/ and from traces/."""

import argparse
import sys

from harness import mxfp8_page, packing
from harness.atomic_file import write_atomically
from harness.trace_sets import TraceSetError


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    try:
        text = mxfp8_page.renewed(mxfp8_page.PAGE.read_text())
    except (ValueError, OSError, TraceSetError, packing.PackingError) as error:
        print(error, file=sys.stderr)
        return 1
    write_atomically(mxfp8_page.PAGE, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
