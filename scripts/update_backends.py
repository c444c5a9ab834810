"""Write the table of our solutions in docs/backends.md anew, from each solution.toml and from traces/."""

import argparse
import sys

from harness import backend_table, packing, paths
from harness.atomic_file import write_atomically
from harness.trace_sets import TraceSetError


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    try:
        text = backend_table.renewed(paths.BACKENDS.read_text())
    except (ValueError, TraceSetError, packing.PackingError) as error:
        print(error, file=sys.stderr)
        return 1
    write_atomically(paths.BACKENDS, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
