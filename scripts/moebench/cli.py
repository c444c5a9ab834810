"""The command `moebench` and its subcommands; `moebench COMMAND --help` describes each.

Exit status of every one: 0 done, 1 something failed its check or nothing could be run, 2 bad
arguments, 130 interrupted.
"""

import argparse
import importlib
import importlib.metadata
import os
import shlex
import sys

from moebench.core.errors import UserError
from moebench.core.interruption import end_descendants, on_interrupt
from moebench.core.names import unknown

# name -> what it does; moebench.commands.<name> has `add_arguments(parser)` and `main(args) -> exit
# status`
COMMANDS = {
    "run": "judge solutions on workloads, in one table",
    "compare": "recorded results side by side: which solution is fastest where, and how exact",
    "served": "time a forward pass: all MoE layers of a model in one CUDA graph",
    "profile": "where a solution's time goes, stage by stage",
    "pack": "pack solutions into the JSON that FlashInfer-Bench reads",
    "model": "a checkpoint's config.json: its MoE layer, its bound, and which solutions serve it",
    "data": "definitions and workloads: list them with their roofline bounds, or write them",
    "docs": "write, or check, the generated tables and figures of README.md and docs/",
    "new": "start a solution: a manifest and a file that runs",
    "submit": "prepare a pull request to FlashInfer-Bench's data set, or a submission to its contest",
}
OURS = (
    "moebench",
    "definitions",
    "solutions",
)  # an import of these that fails is a fault of this repository


class Parser(argparse.ArgumentParser):
    """Reports bad arguments in one line, as every other error is."""

    def _check_value(self, action: argparse.Action, value: object):
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, unknown("value", str(value), action.choices))

    def error(self, message: str):
        raise UserError(f"{self.prog}: {message}; see {self.prog} -h")


def parser_for(wanted: str | None) -> Parser:
    """The parser, with the arguments of the wanted subcommand alone: only its module, and so torch,
    is imported.
    """
    form = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="moebench", description=__doc__, formatter_class=form)
    version = importlib.metadata.version("moebench")
    parser.add_argument("--version", action="version", version=version)
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, help in COMMANDS.items():
        if name != wanted:
            subparsers.add_parser(name, help=help)
            continue
        module = importlib.import_module(f"moebench.commands.{name}")
        own = subparsers.add_parser(
            name, help=help, description=module.__doc__, formatter_class=form
        )
        module.add_arguments(own)
        own.set_defaults(main=module.main)
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    """The arguments, and `command_line`, the text that a record names. Raises UserError for bad
    arguments.
    """
    wanted = argv[0] if argv else None
    if wanted and not wanted.startswith("-") and wanted not in COMMANDS:
        raise UserError(f"moebench: {unknown('command', wanted, COMMANDS)}")
    args = parser_for(wanted).parse_args(argv)
    args.command_line = shlex.join(["moebench", *argv])
    return args


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand; return its exit status. Errors for the user are printed here, each in one
    line.

    argv: of the process by default.
    """
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
        with on_interrupt(end_descendants):
            status = args.main(args)
        sys.stdout.flush()
        return status
    except UserError as error:
        print(error, file=sys.stderr)
        return error.status
    except BrokenPipeError:  # the reader has seen enough, as head has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ImportError as error:
        package = (error.name or "a package").partition(".")[0]
        if package in OURS:
            raise
        missing = isinstance(error, ModuleNotFoundError)
        fault = (
            "is not installed" if missing else f"cannot be imported: {str(error).splitlines()[0]}"
        )
        print(f"{package} {fault}: run `make setup`", file=sys.stderr)
        return 1
    except OSError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
