"""Errors that a user gets as one line, without a traceback, and how any other becomes one line."""

import re
import sys
from collections.abc import Callable, Collection

OUT_OF_MEMORY = re.compile(r"(CUDA out of memory\..*? is free\.).*")


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


def first_line(error: BaseException) -> str:
    """Return 'ValueError: what is wrong': an error's type and the first line of its message."""
    text = f"{type(error).__name__}: {str(error).strip()}"
    return shortened(text.splitlines()[0])


def telling_line(output: str, marks: Collection[str] = ()) -> str:
    """Return the line of a program's output that tells what is wrong: the first with one of these
    marks, which later ones follow from, or else the last.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in lines:
        if any(mark in line for mark in marks):
            return line
    return lines[-1] if lines else "no output"


def shortened(line: str) -> str:
    """Return torch's line on a lack of device memory, cut behind how much was free; others as they
    are.
    """
    return OUT_OF_MEMORY.sub(r"\1", line)
