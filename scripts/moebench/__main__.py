"""The program `moebench`, and `python -m moebench`, which is the same."""

import sys

from moebench.cli import main

if __name__ == "__main__":
    sys.exit(main())
