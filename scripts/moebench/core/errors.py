"""Errors that the user gets as one line, without a traceback."""

import sys
from collections.abc import Callable


class UserError(Exception):
    """A bad argument. The message is one line: what is bad, what came, what is wanted.

    status: the command's exit status.
    """

    status = 2


class CannotRun(UserError):
    """The arguments are right, but nothing can be run here, or what is here fails its check."""

    status = 1


def exit_with(main: Callable[[list[str]], int]) -> None:
    """End a program that is started as `python -m moebench...` with main's status."""
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.status)
