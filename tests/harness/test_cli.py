"""The command `moebench`: help, version, errors and exit codes, alike for every subcommand."""

import builtins
import importlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from harness import cli
from harness.commands import bound
from harness.core import paths
from harness.core.arguments import writable
from harness.core.atomic_file import write_atomically
from harness.core.errors import CannotRun, UserError

HARNESS = paths.ROOT / "scripts" / "harness"


@pytest.fixture
def read_only(monkeypatch):
    """Opening a file of the repository for writing, or making one, fails."""

    def guarded(function, folder_of):
        def call(*args, **kwargs):
            folder = folder_of(*args, **kwargs)
            assert folder is None or not Path(folder).resolve().is_relative_to(paths.ROOT), f"writes {folder}"
            return function(*args, **kwargs)

        return call

    def opened(file, mode="r", *args, **kwargs):
        return file if isinstance(file, str | Path) and set(mode) & set("wax+") else None

    for module, name, folder_of in (
        (builtins, "open", opened),
        (io, "open", opened),
        (tempfile, "mkstemp", lambda *args, **kwargs: kwargs.get("dir") or tempfile.gettempdir()),
        (os, "replace", lambda old, new, **kwargs: new),
        (os, "mkdir", lambda path, *args, **kwargs: path),
    ):
        monkeypatch.setattr(module, name, guarded(getattr(module, name), folder_of))


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_of_a_subcommand_is_its_docstring_and_writes_nothing(name, read_only, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main([name, "--help"])
    shown = capsys.readouterr()
    assert left.value.code == 0 and not shown.err
    assert importlib.import_module(f"harness.commands.{name}").__doc__.strip() in shown.out
    assert f"usage: moebench {name} " in shown.out


def test_every_command_is_listed():
    found = {path.stem for path in (HARNESS / "commands").glob("[a-z]*.py")}
    assert found == set(cli.COMMANDS)


def test_the_general_help_lists_every_subcommand(capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert left.value.code == 0 and all(f"{name} {says}" in shown for name, says in cli.COMMANDS.items())


def test_the_version_is_the_packages(capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["--version"])
    assert left.value.code == 0 and f'version = "{capsys.readouterr().out.strip()}"' in (
        (paths.ROOT / "pyproject.toml").read_text()
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "moebench: the following arguments are required: COMMAND; see moebench -h"),
        (["rnu"], "moebench: unknown command 'rnu'; did you mean run?"),
        (["zzz"], f"moebench: unknown command 'zzz'; there are: {', '.join(cli.COMMANDS)}"),
        (["--zzz"], "moebench: the following arguments are required: COMMAND; see moebench -h"),
        (["bound", "--zzz"], "moebench: unrecognized arguments: --zzz; see moebench -h"),
        (
            ["run", "--timeout", "x"],
            "moebench run: argument --timeout: got 'x', want a whole number, 1 or more; see moebench run -h",
        ),
        *(
            (
                ["run", name, value],
                f"moebench run: argument {name}: got {value!r}, want a whole number, {least} or more; "
                "see moebench run -h",
            )
            for name, value, least in (
                ("--num-trials", "0", 1),
                ("--timeout", "-3", 1),
                ("--iterations", "0", 1),
                ("--warmup-runs", "-1", 0),
            )
        ),
    ],
)
def test_bad_arguments_get_one_line(argv, message, capsys):
    assert cli.main(argv) == 2
    assert capsys.readouterr().err.splitlines() == [message]


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (UserError("--solutions: got x, want y"), 2, "--solutions: got x, want y"),
        (CannotRun("no device"), 1, "no device"),
        (FileNotFoundError(2, "No such file or directory", "x"), 2, "[Errno 2] No such file or directory: 'x'"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ModuleNotFoundError("No module named 'x.y'", name="x.y"), 1, "x is not installed: run `make setup`"),
        (
            ImportError("libx.so: no such file", name="x"),
            1,
            "x cannot be imported: libx.so: no such file: run `make setup`",
        ),
    ],
)
def test_errors_have_a_status_and_one_line(error, status, message, monkeypatch, capsys):
    def main(args):
        raise error

    monkeypatch.setattr(bound, "main", main)
    assert cli.main(["bound"]) == status
    assert capsys.readouterr().err.splitlines() == [message]


def test_a_module_of_ours_that_is_missing_is_no_matter_of_setup(monkeypatch):
    def main(args):
        raise ModuleNotFoundError("No module named 'harness.zzz'", name="harness.zzz")

    monkeypatch.setattr(bound, "main", main)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["bound"])


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""  # what has ended and was not waited for has none
    except OSError:
        return False


def test_ctrl_c_ends_what_was_started(monkeypatch, capfd):
    """A user would miss: a compiler that goes on with all cores, and a terminal that waits for it."""
    started = []

    def main(args):
        started.append(
            subprocess.Popen(["bash", "-c", "trap '' INT; sleep 60 & echo $!; wait"], stdout=subprocess.PIPE)
        )
        started.append(int(started[0].stdout.readline()))
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    monkeypatch.setattr(bound, "main", main)
    assert cli.main(["bound"]) == 130 and capfd.readouterr().err == "interrupted\n"
    shell, sleeping = started
    assert shell.wait(10) == -signal.SIGTERM
    deadline = time.monotonic() + 10
    while is_running(sleeping) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(sleeping)


# Stands in for torch, and takes Ctrl-C for a fault of its own, as the import of some packages does.
INTERRUPTED = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
except BaseException:
    raise ImportError("torch: initialization failed")
"""


@pytest.mark.parametrize(
    ("torch", "status", "line"),
    [
        (INTERRUPTED, 130, "interrupted"),
        ("raise ModuleNotFoundError('', name='torch')", 1, "torch is not installed: run `make setup`"),
    ],
)
def test_while_torch_is_imported(torch, status, line, tmp_path):
    """A user would miss: one line and not a traceback, on Ctrl-C in the first seconds and without `make setup`."""
    (tmp_path / "torch.py").write_text(torch)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(HARNESS.parent), str(paths.ROOT)])}
    done = subprocess.run([sys.executable, "-m", "harness", "run"], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.splitlines()) == (status, "", [line])


UNWRITABLE = [
    ["run", "--output"],
    ["sweep", "--output"],
    ["ep", "--output"],
    ["profile", "triton_mxfp8", "--output"],
    ["profile", "triton_mxfp8", "--records"],
    ["profile", "triton_mxfp8", "--chrome-trace"],
    ["tune", "--record"],
    ["compare", "--output"],
    ["page", "--output"],
    ["regression", "--before", "x", "--after", "y", "--output"],
    ["pack", "--into"],
    ["submit", "triton_fused_v2", "--into"],
]


@pytest.mark.parametrize("argv", UNWRITABLE, ids=" ".join)
def test_what_cannot_be_written_is_refused_at_once(argv, tmp_path, capsys):
    """A user would miss: the hour before it turns out that its results cannot be kept."""
    (tmp_path / "file").write_text("")
    wanted = str(tmp_path / "file" / "x")
    assert cli.main([*argv, wanted]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"moebench {argv[0]}: argument {argv[-1]}: got {wanted!r}, want a f")
    assert ": Not a directory; see" in line


def test_where_a_file_can_be_written(tmp_path, monkeypatch):
    new, device = tmp_path / "new" / "file", Path("/dev/null")
    assert [writable(path) for path in (new, device)] == [new, device] and not any(tmp_path.iterdir())
    with pytest.raises(UserError, match="want a file that can be written: it is a folder"):
        writable(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="want a file that can be written: it is protected"):
        writable(tmp_path / "file")


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


def test_what_is_no_regular_file_is_written_to_and_not_replaced(tmp_path):
    """A user would miss: /dev/stdout, or as root a machine without /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, "x")
    assert os.read(reader, 2) == b"x" and pipe.is_fifo()
    os.close(reader)


def test_a_command_knows_the_text_that_repeats_it(monkeypatch):
    seen = []
    monkeypatch.setattr(bound, "main", lambda args: seen.append(args.command_line) or 0)
    monkeypatch.setattr(bound, "add_arguments", lambda parser: parser.add_argument("--x"))
    assert cli.main(["bound", "--x", "two words"]) == 0
    assert seen == ["moebench bound --x 'two words'"]


CLOSED_PIPE = """
import sys
from types import SimpleNamespace
from harness import cli
cli.parse = lambda argv: SimpleNamespace(main=lambda args: print("x\\n" * 200000))
sys.exit(cli.main([]))
"""

EARLY_TRITON = """
import os, sys
from harness import cli
cli.parser_for(None).format_help()
assert not {"torch", "triton"} & set(sys.modules)
import harness.core.provenance
import triton
from harness.core import interpreter as ours
from triton.runtime import interpreter
assert os.environ["TRITON_INTERPRET"] == "1" and interpreter._convert_float is ours.convert_float
"""


def shell(command, script):
    """A shell's command with a Python script as $1, where there is no CUDA device."""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    arguments = ["bash", "-c", command.replace("python", f"'{sys.executable}'"), "bash", script]
    return subprocess.run(
        arguments, env=env | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=170
    )


def test_a_closed_pipe_is_quiet():
    """A user would miss: a traceback below `moebench ... | head`."""
    done = shell('python -c "$1" | head -n 1; exit ${PIPESTATUS[0]}', CLOSED_PIPE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "x\n", "")


def test_help_needs_no_torch_and_triton_is_decided_before_it_is_imported():
    """A user would miss: help at once; and a CPU run that Triton refuses, since it was imported too early."""
    done = shell('python -c "$1"', EARLY_TRITON)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("room", sorted(path.parent.name for path in HARNESS.glob("*/__init__.py")))
def test_every_room_decides_about_tritons_interpreter_first(room):
    text = (HARNESS / room / "__init__.py").read_text()
    assert room == "core" or "\nfrom harness.core import interpreter " in text
