"""Examples in documentation: a command, and what it really prints.

`moebench ...`, alone or at the head of a pipe, runs inside this process; any other command is left to a shell. The
examples of one page share a working folder, which holds links to the repository's files and takes what they write.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.core import paths
from harness.core.errors import UserError

# variables, moebench's arguments, and what follows: a pipe, or `; echo $?` to show the exit status
OURS = re.compile(r"((?:[A-Z_]+=\S+ )*)moebench ((?:'[^']*'|[^'|;&<>$])*?)(?: \| (.*)|(; echo \$\?))?")
NOT_LINKED = {".git", ".venv", "bench"}


Moebench = Callable[[list[str]], int]  # the command, from arguments to exit status


class ExampleError(UserError):
    """An example's command failed."""


@contextlib.contextmanager
def working_folder() -> Iterator[None]:
    """A temporary current folder that looks like the repository; no GPU, and no colours or width of a terminal."""
    before, environment = os.getcwd(), dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        for path in paths.ROOT.iterdir():
            if path.name not in NOT_LINKED:
                (Path(folder) / path.name).symlink_to(path)
        for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
            os.environ.pop(name, None)
        os.environ |= {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "120", "FIB_CACHE_PATH": f"{folder}/.cache"}
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
            os.environ.clear()
            os.environ.update(environment)


def output_of(command: str, moebench: Moebench) -> str:
    """What the command prints on standard output, in the current folder.

    Raises ExampleError when it fails, unless the command ends with `; echo $?`.
    """
    found = OURS.fullmatch(command)
    if not found:
        return shell(command, "", command)
    variables, arguments, pipe, status_wanted = found.groups()
    environment = dict(os.environ)
    os.environ |= dict(word.split("=", 1) for word in variables.split())
    out, errors = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            status = run_here(moebench, arguments)
    finally:
        os.environ.clear()
        os.environ.update(environment)
    if status_wanted:
        return f"{out.getvalue()}{status}\n"
    if status and not (pipe and out.getvalue()):  # of a pipe, the last command's status is what a shell gives
        raise failed(command, status, errors.getvalue())
    return shell(pipe, out.getvalue(), command) if pipe else out.getvalue()


def run_here(moebench: Moebench, arguments: str) -> int:
    try:
        return moebench(shlex.split(arguments))
    except SystemExit as error:  # argparse, on bad arguments or --help
        return error.code or 0


def shell(command: str, given: str, example: str) -> str:
    """What a shell prints for the command; given: its standard input."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    argv = ["bash", "-o", "pipefail", "-c", command]
    done = subprocess.run(argv, env=environment, input=given, capture_output=True, text=True)
    if done.returncode:
        raise failed(example, done.returncode, done.stderr)
    return done.stdout


def failed(command: str, status: int, errors: str) -> ExampleError:
    said = (errors.strip().splitlines() or ["nothing on standard error"])[-1]
    return ExampleError(f"`{command}` ended with exit status {status}: {said}")


def console_block(commands: str, moebench: Moebench) -> str:
    """Markdown: the commands, one a line, each after a prompt and with its output below."""
    lines = []
    for command in commands.splitlines():
        lines += [f"$ {command}", *(line.rstrip() for line in output_of(command, moebench).rstrip().splitlines())]
    return "\n".join(["```", *lines, "```"])
