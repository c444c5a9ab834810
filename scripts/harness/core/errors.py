"""Errors that the command line prints as one line, without a traceback."""


class UserError(Exception):
    """A bad argument. The message is one line that names it, what came and what is wanted; `status`: of the command."""

    status = 2


class CannotRun(UserError):
    """The arguments are right, but nothing can be run here, or what is here fails its check."""

    status = 1
