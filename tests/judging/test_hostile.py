"""Solutions that would take a run down on a CPU, each judged beside a good one."""

import time

import pytest
import torch
from moebench import cli
from moebench.core import paths
from moebench.judging import isolated
from moebench.results import trace_files
from plain_solution import RIGHT, solution, source

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU FIB's workers isolate")

SWALLOWS = "\n    ".join(
    ["while True:", "    try:", "        while True: pass", "    except BaseException: pass"]
)
HOARDS = "\n    ".join(["kept = []", "while True: kept.append(torch.ones(1 << 25))"])
# name -> body of run, or the whole main.py; status; what its reason names
HOSTILE = {
    "exits_at_import": (
        None,
        f"{source('pass')}\nraise SystemExit(0)",
        "RUNTIME_ERROR",
        "exit status 0",
    ),
    "exits": ("import os; os._exit(0)", None, "RUNTIME_ERROR", "exit status 0"),
    "raises_exit": ("raise SystemExit('no')", None, "RUNTIME_ERROR", "exit status no"),
    "crashes": ("import ctypes; ctypes.string_at(0)", None, "RUNTIME_ERROR", "SIGSEGV"),
    "swallows": (SWALLOWS, None, "TIMEOUT", "3 s"),
    "hoards": (HOARDS, None, "RUNTIME_ERROR", "memory"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch, no_gpu):
    """Of solutions that a command finds."""
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path)
    return tmp_path


def test_each_is_its_own_result_and_nobody_elses(folder, monkeypatch):
    """A user would miss: every other solution, and in CI that anything failed."""
    for name, (body, main, *_) in HOSTILE.items():
        solution(folder, body or "", name, main)
    solution(folder, RIGHT, "good")
    monkeypatch.setattr(isolated, "MEMORY", 1 << 30)
    output, began = folder / "traces.jsonl", time.monotonic()
    command = ["run", "--workloads", "16", "19", "--timeout", "3", "--output", str(output)]
    assert cli.main([*command, "--solutions", *HOSTILE, "good"]) == 1
    traces = trace_files.load(output)
    found = {
        (t.solution.removesuffix("_h512_i256"), t.workload.axes["seq_len"]): t.evaluation
        for t in traces
    }
    assert {key: e.status.value for key, e in found.items()} == {
        (name, tokens): status
        for name, status in [
            *((name, known[2]) for name, known in HOSTILE.items()),
            ("good", "PASSED"),
        ]
        for tokens in (16, 19)
    }
    for name, (*_, cause) in HOSTILE.items():
        assert cause in found[name, 16].log, name
    assert time.monotonic() - began < 60
