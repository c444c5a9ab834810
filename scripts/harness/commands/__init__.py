"""One module for each group of subcommands: arguments, messages and exit codes. The work is in the other rooms."""

from harness.core import interpreter  # noqa: F401
