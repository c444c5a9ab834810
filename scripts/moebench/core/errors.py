"""Errors that a user gets as one line, without a traceback."""

import sys
from collections.abc import Callable


class UserError(Exception):
    """A bad argument. The message is one line: "--ep: got 3, want a divisor of 256, the experts".

    status: the exit status of the command.
    """

    status = 2


class CannotRun(UserError):
    """The arguments are right, but this machine or its files do not allow what they ask for."""

    status = 1


def exit_with(main: Callable[[list[str]], int]) -> None:
    """End a program that is started as `python -m moebench...` with main's status."""
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.status)
