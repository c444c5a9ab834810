"""The command `moebench`: help, version, errors and exit codes, alike for every subcommand."""

import errno
import importlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from moebench import cli
from moebench.commands import data
from moebench.core import paths
from moebench.core.arguments import writable
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import CannotRun, UserError

MOEBENCH = paths.ROOT / "scripts" / "moebench"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_of_a_subcommand_is_its_docstring(name, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main([name, "--help"])
    shown = capsys.readouterr()
    assert left.value.code == 0 and not shown.err
    assert importlib.import_module(f"moebench.commands.{name}").__doc__.strip() in shown.out
    assert f"usage: moebench {name} " in shown.out


def test_every_command_is_listed():
    found = {path.stem for path in (MOEBENCH / "commands").glob("[a-z]*.py")}
    assert found == set(cli.COMMANDS)


VALUES = (("--num-trials", "0"), ("--timeout", "-3"), ("--timeout", "x"), ("--warmup-runs", "-1"))


@pytest.mark.parametrize(
    ("argv", "status", "named"),
    [
        ([], 2, ["moebench", "COMMAND"]),
        (["rnu"], 2, ["moebench", "'rnu'", "run?"]),
        (["zzz"], 2, ["moebench", "'zzz'", *cli.COMMANDS]),
        (["data", "--zzz"], 2, ["--zzz", "moebench -h"]),
        *(
            (["run", *of], 2, [f"moebench run: argument {of[0]}", repr(of[1]), "moebench run -h"])
            for of in VALUES
        ),
        (["run", "--solutions", "hoper_fused"], 2, ["'hoper_fused'", "hopper_fused?"]),
        (
            ["run", "--solutions", "triton_fused_v2", "Hopper_Fused"],
            2,
            ["'Hopper_Fused'", "hopper_fused?"],
        ),
        *(
            (argv, 2, ["''"])
            for argv in (["run", "--solutions", ""], ["run", "--definition", ""], ["pack", ""])
        ),
        (["run", "--tolerance", "relax"], 2, ["'relax'", "relaxed?"]),
        (
            ["run", "--definition", "small", "--workloads", "no-token"],
            2,
            ["'no-token'", "no-tokens?"],
        ),
        (["run", "--definition", "small", "--workloads", "8"], 2, ["'8'", "T=0, T=1, T=5, T=16"]),
        (["run", "gone.json"], 2, ["gone.json"]),
        (["run", "--dataset", "gone"], 2, ["--dataset", "gone"]),
        (["pack", "cutlass"], 2, ["'cutlass'", "cutlass_grouped?"]),
        (["data", "fill"], 2, ["'fill'", "full?"]),
        (
            ["profile", "triton_fused_v2", "--definition", "small", "--workloads", "odd:8"],
            2,
            ["'odd:8'"],
        ),
        (
            ["profile", "triton_mxfp8", "--definition", "mxfp8_small", "--workloads", "skewed:8"],
            2,
            ["'skewed:8'"],
        ),
        (["profile", "triton_mxfp8", "--definition", "mxfp8_small"], 1, ["CUDA device"]),
        (["served", "--definition", "bf16_small"], 2, ["--definition"]),
        (["served", "--definition", "full"], 1, ["full"]),
    ],
)
def test_what_is_wrong_or_mistyped_gets_one_line(argv, status, named, no_gpu, capsys):
    assert cli.main(argv) == status
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert all(name in line for name in named) and "[1/" not in shown.out


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
def test_errors_have_a_status_and_one_line(error, status, named, monkeypatch, capsys):
    def main(args):
        raise error

    monkeypatch.setattr(data, "main", main)
    assert cli.main(["data"]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line


def is_running(pid):
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes() != b""
        )  # what has ended and was not waited for has none
    except OSError:
        return False


def test_ctrl_c_ends_what_was_started(monkeypatch, capfd):
    """A user would miss: a compiler that goes on with all cores, and a terminal that waits for
    it.
    """
    started = []

    def main(args):
        started.append(
            subprocess.Popen(
                ["bash", "-c", "trap '' INT; sleep 60 & echo $!; wait"], stdout=subprocess.PIPE
            )
        )
        started.append(int(started[0].stdout.readline()))
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    monkeypatch.setattr(data, "main", main)
    assert cli.main(["data"]) == 130 and capfd.readouterr().err == "interrupted\n"
    shell, sleeping = started
    assert shell.wait(10) == -signal.SIGTERM
    deadline = time.monotonic() + 10
    while is_running(sleeping) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(sleeping)


def test_without_torch_the_command_that_installs_it_is_named(tmp_path):
    """A user would miss: one line and not a traceback before `make setup`."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('', name='torch')")
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(MOEBENCH.parent), str(paths.ROOT)])
    }
    done = subprocess.run(
        [sys.executable, "-m", "moebench", "run"],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "") and "make setup" in line


OUTPUTS = [
    ["run", "--output"],
    ["profile", "triton_mxfp8", "--records"],
    ["served", "--output"],
    ["compare", "--html"],
    ["compare", "--csv"],
    ["compare", "--json"],
    ["pack", "--package"],
    ["submit", "triton_fused_v2", "--into"],
]


@pytest.mark.parametrize("argv", OUTPUTS, ids=" ".join)
def test_what_cannot_be_written_is_refused_at_once(argv, tmp_path, capsys):
    """A user would miss: the hour before it turns out that its results cannot be kept."""
    (tmp_path / "file").write_text("")
    wanted = str(tmp_path / "file" / "x")
    assert cli.main([*argv, wanted]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"argument {argv[-1]}: got {wanted!r}" in line


def test_where_a_file_can_be_written(tmp_path, monkeypatch):
    """A user would miss, as root: /dev/null, replaced by a file."""
    new, device = tmp_path / "new" / "file", Path("/dev/null")
    assert writable(new) == new and not any(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for path in (tmp_path, tmp_path / "file", device):
        with pytest.raises(UserError, match=re.escape(repr(str(path)))):
            writable(path)


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    """A user would miss: results that were "saved" and are not there."""

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CannotRun, match="results.*No space"):
        write_atomically(tmp_path / "results", "x")


def test_a_file_is_never_half_written(tmp_path, monkeypatch):
    """A user would miss: the old content, after Ctrl-C while the new one was written."""
    path = tmp_path / "file"
    write_atomically(path, "old")

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, "new")
    assert [found.read_text() for found in tmp_path.iterdir()] == ["old"]


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


def shell(command, *arguments, **variables):
    """A shell's command with a Python script as $1, where there is no CUDA device."""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"} | {
        "CUDA_VISIBLE_DEVICES": ""
    }
    words = ["bash", "-c", command.replace("python", f"'{sys.executable}'"), "bash", *arguments]
    return subprocess.run(words, env=env | variables, capture_output=True, text=True, timeout=170)


def test_a_closed_pipe_is_quiet():
    """A user would miss: a traceback below `moebench ... | head`."""
    done = shell('python -c "$1" | head -n 1; exit ${PIPESTATUS[0]}', CLOSED_PIPE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "x\n", "")


def test_help_needs_no_torch_and_triton_is_decided_before_it_is_imported():
    """A user would miss: help at once; and a CPU run that Triton refuses, since it was imported too
    early.
    """
    done = shell('python -c "$1"', EARLY_TRITON)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "room", sorted(path.parent.name for path in MOEBENCH.glob("*/__init__.py"))
)
def test_every_room_decides_about_tritons_interpreter_first(room):
    text = (MOEBENCH / room / "__init__.py").read_text()
    assert room == "core" or "\nfrom moebench.core import interpreter " in text
