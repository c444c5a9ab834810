"""Traces of runs elsewhere go where a run here keeps its own."""

import runpy
import sys

import pytest
from moebench.core import paths
from moebench.core.provenance import CLOCKS
from moebench.results import trace_files
from recorded import times_in, trace, workload, write

PROGRAM = str(paths.ROOT / "tools" / "keep_traces.py")
SOLUTION = "hopper_fused"


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Return the files by clock in which runs keep their traces, in a repository of their own."""
    by_clock = {clock: tmp_path / "here" / f"{clock}.jsonl" for clock in CLOCKS}
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(paths, "trace_file", lambda name, clock: by_clock[clock])
    return by_clock


def test_traces_are_added_by_clock_as_runs_and_others_left_out(
    files, tmp_path, monkeypatch, capsys
):
    trace_files.merge(files["events"], [trace(SOLUTION, 1, 1.0)])
    second = trace(SOLUTION, 1, 2.0, day="2026-01-02")
    by_gpu = trace(SOLUTION, 1, 0.5, protocol="once clock=gpu")
    made_up_workload = workload(7).model_copy(update={"uuid": "skewed:7"})
    made_up = trace(SOLUTION, 7).model_copy(update={"workload": made_up_workload})
    elsewhere = [second, by_gpu, trace("nobody", 1), made_up]

    file = write(tmp_path / "elsewhere.jsonl", elsewhere)
    monkeypatch.setattr(sys, "argv", ["keep_traces.py", str(file)])
    runpy.run_path(PROGRAM, run_name="__main__")

    assert times_in(files["events"]) == [1.0, 2.0]
    assert times_in(files["gpu"]) == [0.5]
    assert "2 left out" in capsys.readouterr().out
