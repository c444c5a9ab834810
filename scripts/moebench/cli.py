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

from moebench.core import paths
from moebench.core.errors import UserError
from moebench.core.interruption import end_descendants, on_interrupt
from moebench.core.names import unknown
from moebench.core.printable import printable

# What each command does. moebench.commands.<name> has add_arguments(parser) and main(args), which
# returns the exit status.
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
    "submit": "prepare a pull request to FlashInfer-Bench's data set, or an entry to its contest",
}
# An import of these that fails is a fault of this repository, not of the installation.
OWN_PACKAGES = ("moebench", "definitions", "solutions")
INSTALLING = "run `make setup`" if paths.IN_CLONE else "install it with pip"


class Parser(argparse.ArgumentParser):
    """Reports bad arguments in one line, as every other error is."""

    def _check_value(self, action: argparse.Action, value: object):
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(
                action, unknown("value", str(value), action.choices)
            )

    def error(self, message: str):
        raise UserError(f"{self.prog}: {message}; see {self.prog} -h")


def parser_for(command: str | None) -> Parser:
    """Return the parser with all commands, and the arguments of this one alone.

    Only its module is imported, and with it torch.
    """
    layout = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="moebench", description=__doc__, formatter_class=layout)
    version = importlib.metadata.version("moebench")
    parser.add_argument("--version", action="version", version=version)

    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, purpose in COMMANDS.items():
        if name != command:
            subparsers.add_parser(name, help=purpose)
            continue
        module = importlib.import_module(f"moebench.commands.{name}")
        subparser = subparsers.add_parser(
            name, help=purpose, description=module.__doc__, formatter_class=layout
        )
        module.add_arguments(subparser)
        subparser.set_defaults(main=module.main)
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the arguments, with `command_line`, the text that a record names.

    Raises UserError for bad arguments.
    """
    command = argv[0] if argv else None
    if command and not command.startswith("-") and command not in COMMANDS:
        raise UserError(f"moebench: {unknown('command', command, COMMANDS)}")

    args = parser_for(command).parse_args(argv)
    args.command_line = shlex.join(["moebench", *argv])
    return args


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand and return its exit status; errors for the user are printed here.

    argv: the process's arguments by default.
    """
    if not paths.IN_CLONE:  # child processes may be started elsewhere
        os.environ.setdefault(paths.FILES_VARIABLE, str(paths.ROOT))
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
        with on_interrupt(end_descendants):
            status = args.main(args)
        sys.stdout.flush()
        return status
    except UserError as error:  # it may quote names and files of others
        print(printable(str(error)), file=sys.stderr)
        return error.status
    except BrokenPipeError:  # the reader has seen enough, as head has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ImportError as error:
        print(import_fault(error), file=sys.stderr)
        return 1
    except OSError as error:
        print(printable(str(error)), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def import_fault(error: ImportError) -> str:
    """Return what the user has to install, in one line. Raises the error if the fault is ours."""
    package = (error.name or "a package").partition(".")[0]
    if package in OWN_PACKAGES:
        raise error
    if isinstance(error, ModuleNotFoundError):
        return f"{package} is not installed: {INSTALLING}"
    reason = str(error).splitlines()[0]
    return f"{package} cannot be imported: {reason}: {INSTALLING}"
