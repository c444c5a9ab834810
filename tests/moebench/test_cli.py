"""The command `moebench`: help, version, errors and exit codes, alike for every subcommand."""

import errno
import importlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import psutil
import pytest
from moebench import cli
from moebench.commands import data
from moebench.core import paths
from moebench.core.arguments import writable
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import CannotRun, UserError
from process_tree import goes_on

MOEBENCH = paths.ROOT / "scripts" / "moebench"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_of_a_subcommand_is_its_docstring(name, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main([name, "--help"])

    shown = capsys.readouterr()
    docstring = importlib.import_module(f"moebench.commands.{name}").__doc__
    assert left.value.code == 0
    assert shown.err == ""
    assert docstring.strip() in shown.out
    assert f"usage: moebench {name} " in shown.out


def test_every_command_is_listed():
    files = (MOEBENCH / "commands").glob("[a-z]*.py")
    assert {path.stem for path in files} == set(cli.COMMANDS)


BAD_ARGUMENTS = {  # a command -> names in the line of its error
    "": ["moebench", "COMMAND"],
    "rnu": ["moebench", "'rnu'", "run?"],
    "zzz": ["moebench", "'zzz'", *cli.COMMANDS],
    "data --zzz": ["--zzz", "moebench -h"],
    "data fill": ["'fill'", "full?"],
    "pack ''": ["''"],
    "pack cutlass": ["'cutlass'", "cutlass_grouped?"],
    "profile torch_moe --definition small --workloads odd:8": ["'odd:8'"],
    "profile triton_mxfp8 --definition mxfp8_small --workloads skewed:8": [
        "'skewed:8'"
    ],
    "run gone.json": ["gone.json"],
    "run --dataset gone": ["--dataset", "gone"],
    "run --definition ''": ["''"],
    "run --definition huge": ["huge", "full"],
    "run --definition small --workloads 8": ["'8'", "T=0, T=1, T=5, T=16"],
    "run --definition small --workloads no-token": ["no-tokens?"],
    "run --num-trials 0": ["run: argument --num-trials", "'0'", "run -h"],
    "run --output /dev/full": ["/dev/full"],
    "run --resume": ["--resume", "--output"],
    "run --routing uniform": ["--routing", "--tokens"],
    "run --solutions ''": ["''"],
    "run --solutions hoper_fused": ["'hoper_fused'", "hopper_fused?"],
    "run --solutions torch_moe Torch_Moe": ["'Torch_Moe'", "torch_moe?"],
    "run --timeout -3": ["run: argument --timeout", "'-3'", "run -h"],
    "run --timeout x": ["run: argument --timeout", "'x'", "run -h"],
    "run --tokens 4 --workloads 16": ["--tokens", "--workloads"],
    "run --tolerance relax": ["'relax'", "relaxed?"],
    "run --warmup-runs -1": ["run: argument --warmup-runs", "'-1'", "run -h"],
    "served --definition bf16_small": ["--definition"],
}
CANNOT_RUN = {
    "profile triton_mxfp8 --definition mxfp8_small": ["CUDA device"],
    "run --clock gpu": ["--clock gpu"],
    "run --definition full": ["full", "small"],
    "run --solutions hopper_fused": ["hopper_fused", "sm_90"],
    "run --solutions triton_mxfp8 --definition small": [
        "triton_mxfp8",
        "--definition mxfp8_small",
    ],
    "run --tokens 4 --definition mxfp8_small": ["--tokens", "mxfp8_small"],
    "served --definition full": ["full"],
}


@pytest.mark.parametrize("command", [*BAD_ARGUMENTS, *CANNOT_RUN])
def test_what_is_mistyped_or_cannot_be_run_gets_one_line(command, no_gpu, refusal):
    status, line = refusal(*shlex.split(command))
    if command in CANNOT_RUN:
        names = CANNOT_RUN[command]
        assert status == 1
    else:
        names = BAD_ARGUMENTS[command]
        assert status == 2
    assert all(name in line for name in names)


@pytest.mark.parametrize(
    ("error", "status", "named"),
    [
        (UserError("--solutions: got x, want y"), 2, "--solutions: got x, want y"),
        (CannotRun("no device"), 1, "no device"),
        (FileNotFoundError(2, "No such file or directory", "x"), 2, "'x'"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ModuleNotFoundError("No module named 'x.y'", name="x.y"), 1, "x is"),
        (ImportError("libx.so: no such file", name="x"), 1, "libx.so"),
    ],
)
def test_errors_have_a_status_and_one_line(error, status, named, monkeypatch, refusal):
    monkeypatch.setattr(data, "main", mock.Mock(side_effect=error))
    returned, line = refusal("data")
    assert returned == status
    assert named in line


def test_a_fault_of_our_own_is_not_blamed_on_the_installation(monkeypatch):
    fault = ModuleNotFoundError("No module named 'moebench.x'", name="moebench.x")
    monkeypatch.setattr(data, "main", mock.Mock(side_effect=fault))
    with pytest.raises(ModuleNotFoundError):
        cli.main(["data"])


def test_ctrl_c_ends_what_was_started(monkeypatch, capfd):
    processes = []

    def main(args):
        script = "trap '' INT; sleep 60 & echo $!; wait"
        shell = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE)
        sleeping = psutil.Process(int(shell.stdout.readline()))
        processes.extend([shell, sleeping])
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    monkeypatch.setattr(data, "main", main)
    assert cli.main(["data"]) == 130
    assert capfd.readouterr().err == "interrupted\n"

    shell, sleeping = processes
    assert shell.wait(10) == -signal.SIGTERM
    deadline = time.monotonic() + 10
    while goes_on(sleeping) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not goes_on(sleeping)


def test_without_torch_the_command_that_installs_it_is_named(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('', name='torch')")
    folders = [tmp_path, MOEBENCH.parent, paths.ROOT]
    search_path = os.pathsep.join(map(str, folders))
    done = subprocess.run(
        [sys.executable, "-m", "moebench", "run"],
        env=os.environ | {"PYTHONPATH": search_path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert done.stdout == ""
    assert "make setup" in line


WRITING = [
    "run --output",
    "profile triton_mxfp8 --records",
    "served --output",
    "compare --html",
    "compare --csv",
    "compare --json",
    "pack --package",
    "submit triton_fused_v2 --into",
]


@pytest.mark.parametrize("command", WRITING)
def test_what_cannot_be_written_is_refused_at_once(command, tmp_path, refusal):
    """Not an hour later, when there are results."""
    (tmp_path / "file").write_text("")
    output = tmp_path / "file" / "x"
    *arguments, option = command.split()
    status, line = refusal(*arguments, option, output)
    assert status == 2
    assert f"argument {option}: got {str(output)!r}" in line


def test_where_a_file_can_be_written(tmp_path, monkeypatch):
    new = tmp_path / "new" / "file"
    assert writable(new) == new
    assert list(tmp_path.iterdir()) == []

    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for path in (tmp_path, file, Path("/dev/null")):
        with pytest.raises(UserError, match=re.escape(repr(str(path)))):
            writable(path)


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "replace", mock.Mock(side_effect=full))
    with pytest.raises(CannotRun, match="results.*No space"):
        write_atomically(tmp_path / "results", "x")


def test_a_file_is_never_half_written(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, "old")

    monkeypatch.setattr(os, "replace", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, "new")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]


CLOSED_PIPE = """
import sys
from types import SimpleNamespace
from moebench import cli
cli.parse = lambda argv: SimpleNamespace(main=lambda args: print("x\\n" * 200000))
sys.exit(cli.main([]))
"""

EARLY_TRITON = """
import os, sys
from moebench import cli
cli.parser_for(None).format_help()
assert not {"torch", "triton"} & set(sys.modules)
import moebench.core.provenance
import triton
from moebench.core import interpreter as ours
from triton.runtime import interpreter
assert os.environ["TRITON_INTERPRET"] == "1" and interpreter._convert_float is ours.convert_float
"""


def shell(command, script):
    """Run a shell's command with a Python script as $1, where there is no CUDA device."""
    env = dict(os.environ)
    env.pop("TRITON_INTERPRET", None)
    env["CUDA_VISIBLE_DEVICES"] = ""
    with_python = command.replace("python", f"'{sys.executable}'")
    return subprocess.run(
        ["bash", "-c", with_python, "bash", script],
        env=env,
        capture_output=True,
        text=True,
        timeout=170,
    )


def test_a_closed_pipe_is_quiet():
    done = shell('python -c "$1" | head -n 1; exit ${PIPESTATUS[0]}', CLOSED_PIPE)
    assert done.returncode == 0
    assert done.stdout == "x\n"
    assert done.stderr == ""


def test_help_needs_no_torch_and_triton_is_decided_before_it_is_imported():
    done = shell('python -c "$1"', EARLY_TRITON)
    assert done.returncode == 0, done.stderr
