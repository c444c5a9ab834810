"""`python -m harness`, the same as `moebench`."""

import sys

from harness.cli import main

sys.exit(main())
