"""The program `moebench`, and `python -m harness`, which is the same."""

import signal
import sys

from harness.core.interruption import leave


def main(argv: list[str] | None = None) -> int:
    """harness.cli.main, where Ctrl-C leaves at once while modules are still imported."""
    signal.signal(signal.SIGINT, leave)
    from harness import cli

    return cli.main(argv)


if __name__ == "__main__":
    sys.exit(main())
