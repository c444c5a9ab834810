"""One module for each subcommand: arguments, messages and exit codes. The work is in the other rooms."""

from harness.core import interpreter  # noqa: F401
