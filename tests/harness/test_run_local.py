"""The main job on a machine without a GPU, its judgement, its skips and its traces."""

import importlib.metadata
import json
import os
import subprocess
import sys

import pytest
import torch
from flashinfer_bench import EvaluationStatus, Trace
from flashinfer_bench.data import load_jsonl_file
from harness.commands import run as run_local
from harness.core import paths
from harness.evaluation import cpu_judge
from harness.evaluation.tolerances import TOLERANCES
from harness.operators import workloads
from harness.packing import eligibility, pack
from harness.results import trace_store
from rich.console import Console

from definitions.moe_fp8_block_scale import definition, definition_name

NAME = definition_name("small")
INPUTS = ", ".join(definition("small").inputs)
REFERENCE = definition("small").reference.replace("def run(", "def reference(")
RELAXED = TOLERANCES["relaxed"]

BODIES = {
    "PASSED": "output.copy_(reference({inputs}))",
    "INCORRECT_NUMERICAL": "output.copy_(reference({inputs})).mul_(1.5)",
    "RUNTIME_ERROR": "raise ValueError('routing_logits: no')",
    "TIMEOUT": "import time; time.sleep(30)",
    "nan": "output.fill_(float('nan'))",
}


def command(*args):
    """run_local.py as a user without a GPU runs it."""
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    script = paths.ROOT / "scripts" / "run_local.py"
    return subprocess.run([sys.executable, *script, *args], env=env, capture_output=True, text=True, timeout=170)


@pytest.fixture(scope="module")
def records():
    workloads.make("small")
    return [t.workload for t in load_jsonl_file(Trace, paths.workload_file(NAME))]


def solution(folder, body, **changes):
    manifest = {
        "name": "tiny",
        "author": "tests",
        "description": "x",
        "language": "python",
        "entry_point": "main.py::run",
        "target_hardware": ["cpu"],
    } | changes
    (folder / "tiny").mkdir(exist_ok=True)
    toml = "".join(f"{key} = {json.dumps(value)}\n" for key, value in manifest.items())
    (folder / "tiny" / "solution.toml").write_text(toml)
    code = f"{REFERENCE}\n\ndef run({INPUTS}, output):\n    {body.format(inputs=INPUTS)}\n"
    (folder / "tiny" / "main.py").write_text(code)
    return pack.pack("tiny", folder)["small"]


def evaluate(packed, workload, timeout=60):
    (ev,) = cpu_judge.run_workload(definition("small"), workload, [packed], RELAXED, paths.ROOT, 1, timeout).values()
    return ev


@pytest.mark.parametrize("status", ["PASSED", "INCORRECT_NUMERICAL", "RUNTIME_ERROR", "TIMEOUT"])
def test_judgement(tmp_path, records, status):
    workload = next(w for w in records if w.axes["seq_len"] == 16)
    ev = evaluate(solution(tmp_path, BODIES[status]), workload, 1 if status == "TIMEOUT" else 60)
    assert ev.status.value == status
    if status == "RUNTIME_ERROR":
        assert "routing_logits: no" in ev.log


def test_non_finite_output_fails(tmp_path, records):
    ev = evaluate(solution(tmp_path, BODIES["nan"]), records[0])
    assert ev.status == EvaluationStatus.INCORRECT_NUMERICAL


def test_unwritten_zero_rows_are_noticed(tmp_path, records):
    """Every token without a local expert: a solution that leaves garbage there must fail."""
    none_local = next(w for w in records if w.axes["seq_len"] == 5)
    ev = evaluate(solution(tmp_path, "output.fill_(3)"), none_local)
    assert ev.status == EvaluationStatus.INCORRECT_NUMERICAL


def test_a_repeated_run_sees_the_same_inputs(tmp_path, records):
    packed = solution(tmp_path, "output.copy_(reference({inputs})).mul_(1.1)")
    first, second = (evaluate(packed, records[0]).correctness for _ in range(2))
    assert first == second and 0 < first.extra["matched_ratio_relaxed"]


def test_value_returning_solutions_are_judged_too(tmp_path, records):
    packed = solution(tmp_path, "pass", destination_passing_style=False)
    main = tmp_path / "tiny" / "main.py"
    main.write_text(f"{REFERENCE}\n\ndef run({INPUTS}):\n    return reference({INPUTS})\n")
    packed = pack.pack("tiny", tmp_path)["small"]
    assert evaluate(packed, records[0]).status == EvaluationStatus.PASSED


def test_skips_are_decided_before_building(tmp_path):
    packed = solution(tmp_path, "pass", dependencies=["torch", "no_such_module.sub"])
    assert "needs no_such_module.sub" in eligibility.why_skipped(packed, "cpu")
    assert "runs on cpu; this machine is sm_80" in eligibility.why_skipped(packed, "sm_80")
    assert eligibility.why_skipped(solution(tmp_path, "pass"), "cpu") is None


def trace(tmp_path, workload, timestamp, tolerance="relaxed", protocol="once", sha1=None):
    packed = solution(tmp_path, BODIES["PASSED"])
    ev = trace_store.annotate(evaluate(packed, workload), sha1 or packed.hash(), tolerance, protocol, "python x")
    ev = ev.model_copy(update={"timestamp": timestamp})
    return Trace(definition=NAME, workload=workload, solution=packed.name, evaluation=ev)


def test_a_newer_trace_replaces_only_its_own_predecessor(tmp_path, records):
    """Results must neither pile up nor push out those of another tolerance or workload."""
    path = tmp_path / "traces.jsonl"
    old = trace(tmp_path, records[0], "2026-01-01T00:00:00")
    others = [
        trace(tmp_path, records[1], "2026-01-01T00:00:00"),
        trace(tmp_path, records[0], "2026-01-01T00:00:00", "contest"),
    ]
    trace_store.merge(path, [old, *others])
    assert len(trace_store.load(path)) == 3
    trace_store.merge(path, [trace(tmp_path, records[0], "2026-02-01T00:00:00")])
    trace_store.merge(path, [old])
    times = [t.evaluation.timestamp[:7] for t in trace_store.load(path)]
    assert sorted(times) == ["2026-01", "2026-01", "2026-02"]


def test_a_short_run_leaves_the_long_one_of_its_source_alone(tmp_path, records):
    """A quick look must not cost a measurement, nor may a measurement outlive its source beside a newer one."""
    path = tmp_path / "traces.jsonl"
    trace_store.merge(path, [trace(tmp_path, records[0], "2026-01-01T00:00:00", protocol="long")])
    trace_store.merge(path, [trace(tmp_path, records[0], "2026-02-01T00:00:00", protocol="short")])
    assert len(trace_store.load(path)) == 2
    trace_store.merge(path, [trace(tmp_path, records[0], "2026-03-01T00:00:00", protocol="short", sha1="edited")])
    (left,) = trace_store.load(path)
    assert left.evaluation.environment.libs["solution_sha1"] == "edited"


def test_a_broken_trace_file_is_not_overwritten(tmp_path, records):
    path = tmp_path / "traces.jsonl"
    path.write_text("{}\n")
    with pytest.raises(ValueError):
        trace_store.merge(path, [trace(tmp_path, records[0], "2026-01-01T00:00:00")])
    assert path.read_text() == "{}\n"


def test_a_trace_says_what_it_measured(tmp_path, records):
    found = trace(tmp_path, records[0], "2026-01-01T00:00:00").evaluation.environment.libs
    assert found["solution_sha1"] == solution(tmp_path, BODIES["PASSED"]).hash()
    assert {"flashinfer_bench", "tolerance", "protocol", "python", "command", "torch"} <= set(found)
    assert "packages" not in found


def test_a_trace_names_the_packages_that_its_solution_is_made_of(tmp_path, records):
    """Another release of someone else's kernels is another competitor: a figure without its version says little."""
    packages = trace_store.packages(("torch", "triton", "safetensors.torch", "pydantic", "no_such_module"))
    version = importlib.metadata.version
    assert packages == f"pydantic {version('pydantic')}, safetensors {version('safetensors')}"
    ev = evaluate(solution(tmp_path, BODIES["PASSED"]), records[0])
    noted = trace_store.annotate(ev, "0", "relaxed", "once", "python x", packages)
    assert noted.environment.libs["packages"] == packages


def test_logs_in_traces_lose_the_folders_of_a_machine(tmp_path, records):
    ev = evaluate(solution(tmp_path, BODIES["RUNTIME_ERROR"]), records[0])
    assert str(paths.ROOT.parent) in ev.log or "/" in ev.log
    kept = trace_store.annotate(ev, "0", "relaxed", "once", "python x").log
    assert "no" in kept and 'File "/' not in kept


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--solutions", "nothing"], "unknown solution 'nothing'; there are: "),
        (["--definition", "huge"], "unknown definition 'huge'; there are: full, small"),
        (["--definition", "full"], "needs a CUDA device"),
    ],
)
def test_bad_arguments_get_one_line(args, message):
    done = command(*args)
    assert done.returncode == 2 and message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is the CPU's judge that is interrupted")
def test_a_run_that_is_cut_short_keeps_what_it_measured(tmp_path, monkeypatch, records):
    """A user would miss: an hour of results, for one Ctrl-C in the last workload."""
    passed = evaluate(solution(tmp_path, BODIES["PASSED"]), records[0])
    judged = []

    def run_workload(found, workload, solutions, *rest):
        if len(judged) == 2:
            raise KeyboardInterrupt
        judged.append(workload.uuid)
        return {s.name: passed for s in solutions}

    monkeypatch.setattr(run_local.cpu_judge, "run_workload", run_workload)
    output = tmp_path / "traces.jsonl"
    args = run_local.parse(["--solutions", "triton_fused_v2", "--output", str(output)])
    with pytest.raises(KeyboardInterrupt), open(os.devnull, "w") as nowhere:
        run_local.run(args, "small", Console(file=nowhere), "python x")
    assert sorted(t.workload.uuid for t in trace_store.load(output)) == sorted(judged) and len(judged) == 2


def test_a_broken_trace_file_is_told_before_anything_runs(tmp_path):
    """A user would miss: a finished run that cannot be saved."""
    output = tmp_path / "traces.jsonl"
    output.write_text("{}\n")
    done = command("--output", str(output))
    assert done.returncode == 2 and "has lines that are no traces" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and output.read_text() == "{}\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's job, for CPUs")
def test_the_main_job_passes_on_a_cpu(tmp_path):
    """`make bench` without a GPU: all solutions on all small workloads, one table, no times."""
    output = tmp_path / "traces.jsonl"
    done = command("--output", str(output))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "no times" in done.stdout and "[10/10]" in done.stdout
    assert "Warning" not in done.stdout + done.stderr, "nothing is wrong, and a newcomer would wonder"
    traces = trace_store.load(output)
    assert len(traces) >= 10 and all(t.is_successful() for t in traces)
