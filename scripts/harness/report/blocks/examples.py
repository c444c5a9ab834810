"""Examples in documentation: a command, and what it really prints.

`moebench ...`, alone or at the head of a pipe, runs inside this process; any other command is left to a shell. The
examples of one page share a working folder, which holds links to the repository's files and takes what they write.
"""

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from harness.core import paths
from harness.core.errors import UserError

# variables, moebench's arguments, and what follows: a pipe, or `; echo $?` to show the exit status
OURS = re.compile(r"((?:[A-Z_]+=\S+ )*)moebench ((?:'[^']*'|[^'|;&<>$])*?)(?: \| (.*)|(; echo \$\?))?")
NOT_LINKED = {".git", ".venv", "bench"}
TERMINAL = ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE")

Moebench = Callable[[list[str]], int]  # the command, from arguments to exit status


@contextlib.contextmanager
def working_folder() -> Iterator[None]:
    """A temporary current folder that looks like the repository; no GPU, and no colours or width of a terminal."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ), contextlib.chdir(folder):
        for path in paths.ROOT.iterdir():
            if path.name not in NOT_LINKED:
                Path(path.name).symlink_to(path)
        for name in TERMINAL:
            os.environ.pop(name, None)
        os.environ |= {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "120", "FIB_CACHE_PATH": f"{folder}/.cache"}
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        yield


def output_of(command: str, moebench: Moebench) -> str:
    """What the command prints on standard output, in the current folder.

    Raises UserError when it fails, unless the command ends with `; echo $?`.
    """
    ours = OURS.fullmatch(command)
    variables, arguments, rest, status_wanted = ours.groups() if ours else ("", "", command, None)
    out, errors, status = io.StringIO(), io.StringIO(), 0
    if ours:
        with (
            mock.patch.dict(os.environ, dict(word.split("=", 1) for word in variables.split())),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(errors),
        ):
            try:
                status = moebench(shlex.split(arguments))
            except SystemExit as error:  # argparse, on --help
                status = error.code or 0
    printed, said = out.getvalue(), errors.getvalue()
    if status_wanted:
        return f"{printed}{status}\n"
    if rest and (not status or printed):  # of a pipe, the last command's status is what a shell gives
        argv = ["bash", "-o", "pipefail", "-c", rest]
        done = subprocess.run(argv, input=printed, capture_output=True, text=True)
        printed, said, status = done.stdout, done.stderr, done.returncode
        status = 0 if status == 128 + signal.SIGPIPE else status  # head has seen enough of what is before it
    if status:
        last = (said.strip().splitlines() or ["nothing on standard error"])[-1]
        raise UserError(f"`{command}` ended with exit status {status}: {last}")
    return printed


def block(commands: str, moebench: Moebench) -> str:
    """Markdown: the commands, one a line or continued by a backslash, each after a prompt and above its output."""
    lines = []
    for command in re.split(r"(?<!\\)\n", commands):
        printed = output_of(re.sub(r"\\\n *", "", command), moebench)
        lines += [f"$ {command}", *(line.rstrip() for line in printed.rstrip().splitlines())]
    return "\n".join(["```", *lines, "```"])
