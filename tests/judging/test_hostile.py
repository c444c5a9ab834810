"""Solutions that cheat, or that would take a run down: each is its own result and nobody else's."""

import errno
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from unittest import mock

import judged
import psutil
import pytest
import torch
from moebench.judging.isolation import runner
from plain_solution import RIGHT, solution, source

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(),
    reason="commands of a CPU; on a GPU FIB's workers isolate ours",
)

SUFFIX = "_h512_i256"
# of a child that a solution leaves behind; no other program sleeps so long
SECONDS_ASLEEP = 7919


@dataclass(frozen=True)
class Hostile:
    """What a solution does, its status, and what its trace's log names."""

    status: str
    body: str = "pass"
    main: str | None = None
    named: str = ""


def lines(*statements):
    """Return statements as the body of `run`."""
    return "\n    ".join(statements)


WALKS_FRAMES = lines(
    "import sys",
    "frame = sys._getframe()",
    "while frame:",
    "    for value in list(frame.f_locals.values()):",
    "        for each in value if isinstance(value, list) else [value]:",
    "            alike = isinstance(each, torch.Tensor) and each.shape == output.shape",
    "            if alike and each.dtype == output.dtype and each is not output:",
    "                output.copy_(each)",
    "    frame = frame.f_back",
)
PATCHES_THE_COMPARISON = f"""import sys
{source("output.zero_()")}
for name, module in list(sys.modules.items()):
    if name.startswith(("moebench", "flashinfer_bench")):
        for function in ("compute_error_stats", "matched_ratios", "compare", "finding_of"):
            if hasattr(module, function):
                setattr(module, function, lambda *a, **k: (0.0, 0.0, False, 1.0))
"""
ZEROES_ALL_OTHERS = lines(
    "import gc",
    "for each in gc.get_objects():",
    "    if isinstance(each, torch.Tensor) and each.shape == output.shape:",
    "        each.zero_()",
)
EXITS_AT_IMPORT = f"{source('pass')}\nraise SystemExit(0)"
HOARDS = lines("kept = []", "while True: kept.append(torch.ones(1 << 25))")
HANGS = lines(
    "while True:",
    "    try:",
    "        while True: pass",
    "    except BaseException: pass",
)
LEAVES_A_CHILD = lines(
    "import subprocess",
    f"subprocess.Popen(['sleep', '{SECONDS_ASLEEP}'], start_new_session=True, env={{}})",
)
REMOVES_FOLDERS = lines(
    "import glob, os, shutil, tempfile",
    "beside = glob.glob(os.path.dirname(os.getcwd()) + '/*')",
    "for folder in (os.getcwd(), tempfile.gettempdir(), *beside):",
    "    shutil.rmtree(folder, ignore_errors=True)",
)
KILLS_ITS_GROUP = "import os; os.killpg(os.getpgrp(), 15)"
KILLS_ITS_PARENT = lines("import os", "os.kill(os.getppid(), 15)", RIGHT)
KILLS_ANCESTORS = lines(
    LEAVES_A_CHILD,
    "import os, psutil",
    "for ancestor in psutil.Process().parents():",
    "    if ancestor.pid != 1: ancestor.kill()",
)
PRINTS = lines(
    "for _ in range(50): print('\\x1b[2J' + 'x' * 1_000_000)", "raise ValueError('no')"
)
RAISES_A_LOT = "raise ValueError('\\x1b[31m' + 'x' * 50_000_000)"
ANSWERS_ITSELF = lines(
    "import os",
    "for number in range(3, 64):",
    "    try: os.write(number, b'x' * 4096)",
    "    except OSError: pass",
    RIGHT,
)

HOSTILE = {
    "walks_frames": Hostile("INCORRECT_NUMERICAL", WALKS_FRAMES),
    "zeroes_all_others": Hostile("INCORRECT_NUMERICAL", ZEROES_ALL_OTHERS),
    "patches_the_comparison": Hostile(
        "INCORRECT_NUMERICAL", main=PATCHES_THE_COMPARISON
    ),
    "exits_at_import": Hostile(
        "RUNTIME_ERROR", main=EXITS_AT_IMPORT, named="exit status 0"
    ),
    "exits": Hostile("RUNTIME_ERROR", "import os; os._exit(0)", named="exit status 0"),
    "raises_exit": Hostile(
        "RUNTIME_ERROR", "raise SystemExit('no')", named="exit status no"
    ),
    "crashes": Hostile(
        "RUNTIME_ERROR", "import ctypes; ctypes.string_at(0)", named="SIGSEGV"
    ),
    "hoards": Hostile("RUNTIME_ERROR", HOARDS, named="memory"),
    "kills_its_group": Hostile("RUNTIME_ERROR", KILLS_ITS_GROUP, named="SIGTERM"),
    "kills_its_parent": Hostile("RUNTIME_ERROR", KILLS_ITS_PARENT, named="parent"),
    "kills_its_ancestors": Hostile("RUNTIME_ERROR", KILLS_ANCESTORS, named="parent"),
    "fills_a_file": Hostile(
        "RUNTIME_ERROR", "open('f', 'wb').truncate(1 << 40)", named="too large"
    ),
    "prints": Hostile("RUNTIME_ERROR", PRINTS, named="ValueError: no"),
    "raises_a_lot": Hostile("RUNTIME_ERROR", RAISES_A_LOT, named="ValueError"),
    "answers_itself": Hostile("RUNTIME_ERROR", ANSWERS_ITSELF),
    "removes_folders": Hostile("PASSED", lines(RIGHT, REMOVES_FOLDERS)),
    "leaves_a_child": Hostile("PASSED", lines(RIGHT, LEAVES_A_CHILD)),
    "good": Hostile("PASSED", RIGHT),
}


def run(folder, names, *arguments):
    """Return the exit status of a run, and solution and T -> evaluation."""
    status, traces = judged.recorded(folder, "--solutions", *names, *arguments)
    evaluations = {}
    for trace in traces:
        key = trace.solution.removesuffix(SUFFIX), trace.workload.axes["seq_len"]
        evaluations[key] = trace.evaluation
    return status, evaluations


def sleepers():
    """Return the processes that a solution has left behind."""
    command = ["sleep", str(SECONDS_ASLEEP)]
    processes = psutil.process_iter(["cmdline"])
    return [process for process in processes if process.info["cmdline"] == command]


def test_each_is_its_own_result_and_nobody_elses(folder, monkeypatch, capsys):
    for name, hostile in HOSTILE.items():
        solution(folder, hostile.body, name, hostile.main)
    monkeypatch.setattr(runner, "MEMORY", 1 << 29)
    temporary = folder / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    status, evaluations = run(folder, HOSTILE, "--workloads", "16")

    assert status == 1
    for name, hostile in HOSTILE.items():
        evaluation = evaluations[name, 16]
        assert (name, evaluation.status.value) == (name, hostile.status)
        assert hostile.named in evaluation.log, name
        assert "\x1b" not in evaluation.log, name

    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert len(shown) < 40_000
    assert [*sleepers(), *temporary.iterdir()] == []


def test_a_solution_that_hangs_costs_one_time_out(folder, capsys):
    calls = folder / "calls"
    body = lines(f"open({str(calls)!r}, 'a').write('x')", HANGS)
    solution(folder, body, "hangs")
    solution(folder, RIGHT, "good")

    tokens = (16, 19, 24)
    names = ("hangs", "good")
    status, evaluations = run(folder, names, "--workloads", *tokens, "--timeout", 5)

    assert status == 1
    assert calls.read_text() == "x"
    for count in tokens:
        assert evaluations["hangs", count].status.value == "TIMEOUT"
        assert "--timeout" in evaluations["hangs", count].log
        assert evaluations["good", count].status.value == "PASSED"
    before, _, _ = source(body).partition("while True: pass")
    number = len(before.splitlines())
    assert f"hangs/main.py:{number} in run" in capsys.readouterr().out


def test_a_bias_that_passes_is_told(folder, capsys):
    solution(folder, f"{RIGHT}.mul_(1.05)", "biased")
    status, evaluations = run(folder, ["biased"], "--workloads", "16")
    assert status == 0
    assert "1.05" in evaluations["biased", 16].log
    assert "1.05" in capsys.readouterr().out


def test_a_reference_that_is_not_finite_is_not_evaluated(folder, monkeypatch, capsys):
    """NaN compares as equal to anything."""
    solution(folder, "output.zero_()", "zero")
    full_call = runner.call

    def half_nan(*args):
        outputs = full_call(*args)
        outputs[0][0] = torch.nan
        return outputs

    monkeypatch.setattr(runner, "call", half_nan)
    status, evaluations = run(folder, ["zero"], "--workloads", "16")
    shown = capsys.readouterr().out
    assert status == 1
    assert evaluations == {}
    assert "not evaluated" in shown
    assert "512" in shown


# what Python itself imports before any program starts is not among them
SHADOWS = ("random", "json", "torch", "numpy", "tempfile", "socket", "flashinfer_bench")


@pytest.mark.parametrize(
    "start", ["entry point", pytest.param("module", marks=pytest.mark.slow)]
)
def test_the_working_folder_and_the_environment_change_nothing(tmp_path, start):
    """Files of standard names, Python's variables, an interpreter that is switched off."""
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('shadowed')")
    program = [os.path.join(os.path.dirname(sys.executable), "moebench")]
    if start == "module":
        program = [sys.executable, "-m", "moebench"]
    hostile = {
        "PYTHONPATH": os.pathsep,
        "TRITON_INTERPRET": "0",
        "PYTHONOPTIMIZE": "2",
        "PYTHONIOENCODING": "latin-1",
        "LC_ALL": "C",
        "TMPDIR": str(tmp_path),
    }

    command = [
        *program,
        "run",
        "--solutions",
        "triton_fused_v2",
        "--workloads",
        "one-token",
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | hostile,
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "not evaluated" not in done.stdout


def test_a_temporary_folder_that_is_full_is_named(folder, monkeypatch, refusal):
    solution(folder, RIGHT, "good")
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(tempfile, "mkdtemp", mock.Mock(side_effect=full))

    status, line = refusal(
        "run", "--solutions", "good", "--workloads", "16", "--no-save"
    )
    assert status == 1
    assert tempfile.gettempdir() in line
    assert "TMPDIR" in line
