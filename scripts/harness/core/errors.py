"""Errors that are told to the user in one line, without a traceback."""


class UserError(Exception):
    """What was asked for cannot be followed; the message is one line. The command exits with `status`."""

    status = 2


class CannotRun(UserError):
    """What was asked for is in order, but nothing of it can be run here."""

    status = 1
