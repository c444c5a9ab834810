"""The program `moebench`, and `python -m moebench`, which is the same."""

import sys

from moebench.core.environment import (
    leave_working_folder,
    remove_changing_variables,
    use_caches_without_spaces,
)

leave_working_folder()  # before anything else is imported

from moebench.cli import main as run_command  # noqa: E402


def main() -> int:
    """Run the command line's subcommand; return its exit status."""
    remove_changing_variables()
    use_caches_without_spaces()
    return run_command()


if __name__ == "__main__":
    sys.exit(main())
