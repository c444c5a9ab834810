"""The command `moebench` and its subcommands.

Exit status of every one: 0 done, 1 something failed its check or nothing could be run, 2 bad arguments,
130 interrupted.
"""

import argparse
import importlib
import os
import shlex
import sys

from harness.core.errors import UserError

# name -> what it does; harness.commands.<name> has `add_arguments(parser)` and `main(args) -> exit status`
COMMANDS = {
    "run": "judge solutions on workloads, in one table",
    "compare": "recorded results side by side: which solution is fastest where, and how exact",
    "sweep": "time and check solutions at many token counts and four kinds of routing",
    "profile": "where a solution's time goes, stage by stage",
    "tune": "find tiles for triton_fused_v2 on this GPU",
    "bound": "each workload's roofline bound, the least time it can take",
    "pack": "pack solutions into the JSON that FlashInfer-Bench reads",
    "workloads": "write workloads/ and the tensors under blob/",
    "definitions": "write FIB's JSON of the definitions",
    "docs": "write, or check, every generated block and figure of README.md and docs/",
    "page": "write docs/results.html, the results as a page to explore",
    "submit": "prepare a leaderboard submission, or say all that speaks against it",
    "regression": "compare traces from before and after a change",
    "apply": "call the layer through flashinfer_bench.apply",
    "new": "start a solution: a manifest and a file that runs",
}


def parser_for(wanted: str | None) -> argparse.ArgumentParser:
    """The parser, with the arguments of the wanted subcommand alone: only its module is imported."""
    parser = argparse.ArgumentParser(
        prog="moebench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, says in COMMANDS.items():
        if name != wanted:
            subparsers.add_parser(name, help=says)
            continue
        module = importlib.import_module(f"harness.commands.{name}")
        form = argparse.RawDescriptionHelpFormatter
        own = subparsers.add_parser(name, help=says, description=module.__doc__, formatter_class=form)
        module.add_arguments(own)
        own.set_defaults(main=module.main)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand; `args.command_line` is what a record of it names."""
    argv = sys.argv[1:] if argv is None else argv
    args = parser_for(argv[0] if argv else None).parse_args(argv)
    args.command_line = shlex.join(["moebench", *argv])
    try:
        status = args.main(args)
        sys.stdout.flush()
        return status
    except UserError as error:
        print(error, file=sys.stderr)
        return error.status
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(error, file=sys.stderr)
            return 2
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has seen enough, as head has
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
