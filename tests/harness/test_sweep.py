"""The sweep: its arguments, its routings, its judgement; on a GPU a short one from end to end."""

import io
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flashinfer_bench import BuildSpec, Solution, SourceFile
from harness.commands import sweep
from harness.evaluation import sweep_point, sweep_record
from harness.evaluation.sweep_record import SweepPoint
from harness.evaluation.tolerances import TOLERANCES
from harness.operators import routing_model
from harness.operators.moe_fp8_block_scale import routing_bound
from harness.operators.routing_kinds import BETWEEN, KINDS, OFFSET, TOKENS
from harness.packing import pack
from harness.report import sweep_page
from rich.console import Console

from definitions.moe_fp8_block_scale import definition

SMALL = definition("small")
INPUTS = ", ".join(SMALL.inputs)


def command(*args, **env):
    script = "-m", "harness", "sweep"
    return subprocess.run(
        [sys.executable, *script, *args], env=os.environ | env, capture_output=True, text=True, timeout=170
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--solutions", "nothing"], "unknown solution 'nothing'; there are: "),
        (["--tokens", "7", "-1"], "'-1' is no token count, want 0 or more"),
        (["--tokens", "x"], "'x' is no token count, want 0 or more"),
        (["--kinds", "odd"], "invalid choice: 'odd'"),
        ([], "needs a CUDA device"),
    ],
)
def test_bad_arguments_and_a_missing_gpu_get_one_line(args, message):
    done = command(*args, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2 and message in done.stderr.splitlines()[-1]


def test_token_counts_are_the_untuned_ones_and_the_workloads():
    assert len(TOKENS) == 41 == len(set(TOKENS)) and {0, 1, 57, 14107, 32768} <= set(TOKENS)
    assert len(BETWEEN) == 22 and sweep.parse([]).tokens == TOKENS


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 57, 700])
@pytest.mark.parametrize("kind", KINDS)
def test_routing_is_of_its_kind(kind, num_tokens):
    logits, bias = KINDS[kind](num_tokens)
    assert logits.shape == (num_tokens, 256) and logits.dtype == bias.dtype == np.float32
    assert (routing_model.margin(logits, bias) >= routing_model.MARGIN).all()
    rows, active = routing_model.counts(logits, bias, OFFSET)
    if kind == "real":
        assert routing_model.is_typical(num_tokens, rows, active)
    elif kind == "one":
        assert (rows, active) == (num_tokens, min(num_tokens, 1))
        assert len(np.unique(routing_model.select(logits, bias))) == min(num_tokens * 8, 8)
    elif kind == "none":
        assert rows == 0


def test_uniform_experts_are_equally_popular():
    chosen = routing_model.select(*KINDS["uniform"](3000))
    counts = np.bincount(chosen.ravel(), minlength=256)
    deviation = counts.std() / np.sqrt(counts.mean())
    assert deviation < 1.3 and not KINDS["uniform"](8)[1].any()


def test_targets():
    least = routing_bound(*KINDS["real"](8), OFFSET, "full")
    assert sweep_point.loose(least) == pytest.approx(1.5 * least.ms + 0.03)
    assert sweep_point.tight(least) == pytest.approx(1.1 * least.ms + 0.025)
    many = routing_bound(*KINDS["none"](1025), OFFSET, "full")
    assert sweep_point.tight(many) == pytest.approx(1.25 * many.ms)


def runnable(function):
    function.metadata = SimpleNamespace(destination_passing_style=True)
    return function


def judged(write):
    """Verdict on a solution that calls write(output), where all ones are right."""
    inputs = sweep.with_routing(sweep.random_inputs(SMALL, 40, "cpu"), *KINDS["real"](4), "cpu")
    expected = torch.ones(4, 512, dtype=torch.bfloat16)
    return sweep_point.judge(SMALL, runnable(lambda *args: write(args[-1])), inputs, expected, "cpu")


@pytest.mark.parametrize(
    ("write", "error"),
    [
        (lambda output: output.fill_(1), None),
        (lambda output: output.fill_(1.5), "matched 0.0000, want 0.85 at relaxed"),
        (lambda output: output[1:].fill_(1), "matched 0.0000, want 0.85 at relaxed"),
        (lambda output: output.copy_(1 + 0.05 * torch.rand(output.shape)), "two runs differ"),
    ],
    ids=["right", "wrong", "a row not written", "not repeatable"],
)
def test_judgement(write, error):
    assert judged(write).why_wrong(TOLERANCES["relaxed"]) == error


def python_solution(name, body):
    """A FIB solution whose `run` has the reference at hand."""
    reference = SMALL.reference.replace("def run(", "def reference(")
    code = f"{reference}\n\ndef run({INPUTS}, output):\n    {body}\n"
    spec = BuildSpec(language="python", target_hardware=["cpu"], entry_point="main.py::run")
    sources = [SourceFile(path="main.py", content=code)]
    return Solution(name=name, definition=SMALL.name, author="tests", spec=spec, sources=sources)


def test_a_sweep_from_inputs_to_table(monkeypatch, tmp_path):
    """On the small geometry, with the clock replaced: everything else is what a GPU runs."""
    monkeypatch.setattr(sweep, "GEOMETRY", "small")
    monkeypatch.setattr(sweep_point, "time_ms", lambda *args: 0.02)
    solutions = [
        python_solution("right", f"output.copy_(reference({INPUTS}))"),
        python_solution("raises", "raise ValueError('routing_logits: no')"),
    ]
    path = tmp_path / "sweep.jsonl"
    args = sweep.parse(["--tokens", "3", "0", "3", "--output", str(path), "--tolerance", "default"])
    results = sweep.sweep(solutions, args, Console(quiet=True), "cpu")
    assert [SweepPoint.model_validate_json(line) for line in path.read_text().splitlines()] == results
    right = [r for r in results if r.solution == "right"]
    assert [(r.kind, r.tokens) for r in right] == [(kind, t) for kind in KINDS for t in (0, 3)]
    assert all(r.error is None and r.met and r.repeatable and r.tolerance == "default" for r in right)
    raises = [r for r in results if r.solution == "raises"]
    assert all("routing_logits: no" in r.error and not r.met and r.ms is None for r in raises)
    printed = io.StringIO()
    Console(width=200, file=printed).print(sweep.table("right", right))
    assert "8 of 8 at most 1.5 x bound + 0.03; 0 wrong" in printed.getvalue()


def point(**changes):
    """A point of a record, by default of a solution that is still what it was."""
    current = pack.pack("triton_fused_v2")["full"].hash()
    line = {"solution": "triton_fused_v2", "solution_sha1": current, "hardware": "GPU X", "libs": {"torch": "9"}}
    line |= {"timestamp": "2026-01-02T03:04:05+00:00", "tolerance": "relaxed", "target": "tight"}
    line |= {"tokens": 3, "kind": "real", "rows": 2, "active": 1, "bound_ms": 0.02, "target_ms": 0.06, "ms": 0.05}
    return SweepPoint(**{**line, "error": None, **changes})


def test_the_page_tells_a_miss_an_error_and_an_old_source():
    """A user would miss: which figure to distrust, and why."""
    text = sweep_page.section([point(), point(tokens=9, ms=0.07), point(kind="one", ms=None, error="two runs differ")])
    assert "| 3 | 0.050 (2.50) | **two runs differ** |" in text
    assert "| 9 | 0.070 (3.50) * | - |" in text
    assert (
        "1 of 3 points are within the target, 1.10 x bound + 0.025 for few tokens, else 1.25 x bound ms; 1 are" in text
    )
    assert "1 are wrong at the tolerance relaxed. GPU X; torch 9; 2026-01-02." in text
    assert "stale" in sweep_page.section([point(solution_sha1="0" * 40)])


def test_a_record_is_of_one_machine(tmp_path):
    record = tmp_path / "two.jsonl"
    record.write_text("\n".join(point(hardware=name).model_dump_json() for name in ("GPU X", "GPU Y")))
    with pytest.raises(ValueError, match="two.jsonl: is of 2 solutions, sources, machines or settings, want one"):
        sweep_record.read(record)


def test_a_record_of_another_form_is_refused(tmp_path):
    """A user would miss: a table of half a record, made by an older sweep or cut off."""
    record = tmp_path / "old.jsonl"
    record.write_text(point().model_dump_json(exclude={"target"}))
    with pytest.raises(ValueError, match="old.jsonl: no record of a sweep: target: Field required"):
        sweep_record.read(record)
    for field in ("target", "tolerance"):
        record.write_text(point().model_copy(update={field: "harsh"}).model_dump_json())
        with pytest.raises(ValueError, match=f"of a sweep: {field}: Input should be '.*' or '.*', got 'harsh'$"):
            sweep_record.read(record)
    record.write_text(point().model_dump_json()[:-9])
    with pytest.raises(ValueError, match="old.jsonl: no record of a sweep: line: Invalid JSON"):
        sweep_record.read(record)


def test_the_page_and_its_pictures_are_those_of_the_records():
    command = [sys.executable, "-m", "harness", "update_sweep", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
def test_a_short_sweep_on_the_device(tmp_path):
    path = tmp_path / "sweep.jsonl"
    done = command("--solutions", "triton_fused_v2", "--tokens", "0", "7", "100", "--output", str(path))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    results = sweep_record.read(path)
    assert len(results) == 12 and all(r.ms > r.bound_ms for r in results)
