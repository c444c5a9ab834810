"""Traces of runs elsewhere go where a run here keeps its own."""

import runpy
import sys

from moebench.core import paths
from moebench.results import trace_files
from recorded import NAME, trace, workload, write

PROGRAM = str(paths.ROOT / "tools" / "keep_traces.py")
SOLUTION = "hopper_fused"


def test_traces_are_added_by_clock_as_runs_and_others_left_out(tmp_path, monkeypatch, capsys):
    by_events = tmp_path / "here" / "events.jsonl"
    by_gpu = tmp_path / "here" / "gpu.jsonl"
    by_events.parent.mkdir()
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(
        paths, "trace_file", lambda name, clock: by_gpu if clock == "gpu" else by_events
    )
    trace_files.merge(by_events, [trace(SOLUTION, 1, 1.0)])

    gpu = trace(SOLUTION, 1, 0.5, protocol="once clock=gpu")
    unknown = trace("nobody", 1)
    made_up_workload = workload(7).model_copy(update={"uuid": "skewed:7"})
    made_up = trace(SOLUTION, 7).model_copy(update={"workload": made_up_workload})
    second = trace(SOLUTION, 1, 2.0, day="2026-01-02")
    file = write(tmp_path / "elsewhere.jsonl", [second, gpu, unknown, made_up])
    monkeypatch.setattr(sys, "argv", ["keep_traces.py", str(file)])
    runpy.run_path(PROGRAM, run_name="__main__")

    times = [each.evaluation.performance.latency_ms for each in trace_files.load(by_events)]
    assert sorted(times) == [1.0, 2.0]
    (kept,) = trace_files.load(by_gpu)
    assert kept.definition == NAME
    assert "2 left out" in capsys.readouterr().out
