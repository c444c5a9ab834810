"""The program `moebench`, and `python -m moebench`, which is the same."""

import sys

from moebench.core.environment import (
    forget_inherited,
    leave_working_folder,
    use_caches_without_spaces,
)

leave_working_folder()  # before anything else is imported

from moebench.cli import main as run_command  # noqa: E402


def main() -> int:
    """Run the command line's subcommand; return its exit status."""
    forget_inherited()
    use_caches_without_spaces()
    return run_command()


if __name__ == "__main__":
    sys.exit(main())
