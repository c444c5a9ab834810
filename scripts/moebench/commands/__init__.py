"""One module for each subcommand of `moebench`: its arguments, what it prints, its exit status.

moebench/cli.py calls `add_arguments(parser)` and `main(args)`. A module's docstring is what
`moebench COMMAND --help` shows. What several commands need is in other rooms.
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
