"""The program `moebench`, and `python -m harness`, which is the same."""

import sys

from harness.cli import main

if __name__ == "__main__":
    sys.exit(main())
