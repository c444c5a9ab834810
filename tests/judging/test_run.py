"""The main job on a machine without a GPU, its judgement, its skips and its traces."""

import importlib.metadata
import runpy
import sys
from itertools import pairwise

import pytest
import torch
from flashinfer_bench import EvaluationStatus, Performance, Trace
from flashinfer_bench.data import load_jsonl_file
from harness import cli
from harness.core import paths, provenance
from harness.judging import cpu_judge, run, workers
from harness.judging.tolerances import TOLERANCES
from harness.operators import workloads
from harness.packing import eligibility, manifest
from harness.report import run_table
from harness.results import trace_files
from plain_solution import INPUTS, REFERENCE, RIGHT, solution
from rich.console import Console

from definitions.moe_fp8_block_scale import definition, definition_name

NAME = definition_name("small")
RELAXED = TOLERANCES["relaxed"]
CONFIG = RELAXED.config(num_trials=1, timeout_seconds=60)

BODIES = {
    "PASSED": RIGHT,
    "INCORRECT_NUMERICAL": f"{RIGHT}.mul_(1.5)",
    "RUNTIME_ERROR": "raise ValueError('routing_logits: no')",
    "TIMEOUT": "import time; time.sleep(30)",
    "nan": "output.fill_(float('nan'))",
}


@pytest.fixture(scope="module")
def records():
    workloads.make("small")
    return [t.workload for t in load_jsonl_file(Trace, paths.workload_file(NAME))]


def evaluate(packed, workload, config=CONFIG):
    (ev,) = cpu_judge.run_workload(definition("small"), workload, [packed], config, paths.ROOT).values()
    return ev


@pytest.mark.parametrize("status", ["PASSED", "INCORRECT_NUMERICAL", "RUNTIME_ERROR", "TIMEOUT"])
def test_judgement(tmp_path, records, status):
    workload = next(w for w in records if w.axes["seq_len"] == 16)
    config = RELAXED.config(num_trials=1, timeout_seconds=1) if status == "TIMEOUT" else CONFIG
    ev = evaluate(solution(tmp_path, BODIES[status]), workload, config)
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
    packed = solution(tmp_path, f"{RIGHT}.mul_(1.1)")
    first, second = (evaluate(packed, records[0]).correctness for _ in range(2))
    assert first == second and 0 < first.extra["matched_ratio_relaxed"]


def test_value_returning_solutions_are_judged_too(tmp_path, records):
    main = f"{REFERENCE}\n\ndef run({INPUTS}):\n    return reference({INPUTS})\n"
    packed = solution(tmp_path, main=main, destination_passing_style=False)
    assert evaluate(packed, records[0]).status == EvaluationStatus.PASSED


def test_skips_are_decided_before_building(tmp_path):
    packed = solution(tmp_path, "pass", dependencies=["torch", "no_such_module.sub"])
    assert "needs no_such_module.sub" in eligibility.why_skipped(packed, "cpu")
    assert "runs on the CPU only; this GPU is sm_80" in eligibility.why_skipped(packed, "sm_80")
    assert eligibility.why_skipped(solution(tmp_path, "pass"), "cpu") is None


@pytest.fixture(scope="module")
def passed(tmp_path_factory, records):
    return evaluate(solution(tmp_path_factory.mktemp("passed"), BODIES["PASSED"]), records[0])


@pytest.fixture
def trace(passed):
    """A function that makes a trace of a solution called tiny."""

    def make(workload, timestamp, tolerance="relaxed", protocol="once", sha1="0"):
        made = provenance.here("cpu", source_sha1=sha1, tolerance=tolerance, protocol=protocol, command="moebench run")
        ev = provenance.into_evaluation(passed, made).model_copy(update={"timestamp": timestamp})
        return Trace(definition=NAME, workload=workload, solution="tiny", evaluation=ev)

    return make


def test_a_newer_trace_replaces_only_its_own_predecessor(tmp_path, records, trace):
    """Results must neither pile up nor push out those of another tolerance or workload."""
    path = tmp_path / "traces.jsonl"
    old = trace(records[0], "2026-01-01T00:00:00")
    others = [
        trace(records[1], "2026-01-01T00:00:00"),
        trace(records[0], "2026-01-01T00:00:00", "contest"),
    ]
    trace_files.merge(path, [old, *others])
    assert len(trace_files.load(path)) == 3
    trace_files.merge(path, [trace(records[0], "2026-02-01T00:00:00")])
    trace_files.merge(path, [old])
    times = [t.evaluation.timestamp[:7] for t in trace_files.load(path)]
    assert sorted(times) == ["2026-01", "2026-01", "2026-02"]


def test_a_short_run_leaves_the_long_one_of_its_source_alone(tmp_path, records, trace):
    """A quick look must not cost a measurement, nor may a measurement outlive its source beside a newer one."""
    path = tmp_path / "traces.jsonl"
    trace_files.merge(path, [trace(records[0], "2026-01-01T00:00:00", protocol="long")])
    trace_files.merge(path, [trace(records[0], "2026-02-01T00:00:00", protocol="short")])
    assert len(trace_files.load(path)) == 2
    trace_files.merge(path, [trace(records[0], "2026-03-01T00:00:00", protocol="short", sha1="edited")])
    (left,) = trace_files.load(path)
    assert left.evaluation.environment.libs["solution_sha1"] == "edited"


def test_a_broken_trace_file_is_not_overwritten(tmp_path, records, trace):
    path = tmp_path / "traces.jsonl"
    path.write_text("{}\n")
    with pytest.raises(ValueError):
        trace_files.merge(path, [trace(records[0], "2026-01-01T00:00:00")])
    assert path.read_text() == "{}\n"


def test_a_trace_says_what_it_measured(tmp_path, records):
    packed = solution(tmp_path, BODIES["PASSED"], dependencies=["torch", "pydantic"])
    with run.judging("small", {"tiny": packed}, RELAXED, CONFIG, "cpu", "moebench run --x") as judge:
        judged = judge("one", records[0])
    found = provenance.of_trace(judged.traces["tiny"])
    assert judged.passed and judged.traces["tiny"].solution == packed.name
    assert found.source_sha1 == packed.hash() and found.command == "moebench run --x"
    assert found.tolerance == str(RELAXED) and found.protocol.startswith("trials=1 on the CPU")
    assert {"flashinfer_bench", "python", "torch"} <= set(found.versions)
    assert found.packages == f"pydantic {importlib.metadata.version('pydantic')}"


def test_the_packages_that_a_solution_is_made_of_are_named():
    """Another release of someone else's kernels is another competitor: a figure without its version says little."""
    packages = provenance.packages(("torch", "triton", "safetensors.torch", "pydantic", "no_such_module"))
    version = importlib.metadata.version
    assert packages == f"pydantic {version('pydantic')}, safetensors {version('safetensors')}"
    assert provenance.packages(("torch",)) is None


def test_logs_in_traces_lose_the_folders_of_a_machine(tmp_path, records):
    ev = evaluate(solution(tmp_path, BODIES["RUNTIME_ERROR"]), records[0])
    assert 'File "/' in ev.log
    kept = run.publishable(ev).log
    assert "routing_logits: no" in kept and 'File "/' not in kept


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["--solutions", "nothing"], 2, "unknown solution 'nothing'; there are: "),
        (["--definition", "huge"], 2, "unknown definition 'huge'; there are: full, "),
        (["--definition", "full"], 1, "needs a CUDA device"),
        (["--clock", "gpu"], 1, "--clock gpu: takes times and needs a CUDA device"),
        (
            ["--solutions", "hopper_fused"],
            1,
            "no solution can be run here: hopper_fused: SKIPPED: needs sm_90; this machine has no CUDA device",
        ),
        (
            ["--solutions", "triton_mxfp8", "--definition", "small"],
            1,
            "triton_mxfp8: SKIPPED: serves mxfp8, mxfp8_small, mxfp8_fp16, not small: --definition mxfp8_small",
        ),
    ],
)
def test_what_cannot_be_run_gets_one_line(args, status, message, no_gpu, capsys):
    assert cli.main(["run", *args]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_new_definition_has_no_solution_yet(monkeypatch, no_gpu, capsys):
    """A user would miss: what to do next, after a definition of their own."""
    monkeypatch.setattr(manifest, "solutions_of", lambda keys: [])
    assert cli.main(["run", "--definition", "small"]) == 1
    assert "no solution serves small yet; `moebench new NAME --definition small`" in capsys.readouterr().err


@pytest.fixture
def two_workloads(monkeypatch, no_gpu):
    load = run.load_workloads
    monkeypatch.setattr(run, "load_workloads", lambda geometry, wanted: load(geometry, wanted)[:2])


def test_a_run_that_is_cut_short_keeps_what_it_measured(tmp_path, monkeypatch, passed, no_gpu, capsys):
    """A user would miss: an hour of results, for one Ctrl-C in the last workload; and the table of them."""
    judged = []

    def run_workload(found, workload, solutions, *rest):
        if len(judged) == 2:
            raise KeyboardInterrupt
        judged.append(workload.uuid)
        return {s.name: passed for s in solutions}

    monkeypatch.setattr(cpu_judge, "run_workload", run_workload)
    output = tmp_path / "traces.jsonl"
    assert cli.main(["run", "--solutions", "triton_fused_v2", "--output", str(output)]) == 130
    assert sorted(t.workload.uuid for t in trace_files.load(output)) == sorted(judged) and len(judged) == 2
    shown = capsys.readouterr()
    assert "triton_fused_v2" in shown.out.partition("━")[2] and f"2 traces saved in {output}" in shown.out
    assert shown.err == "interrupted\n"


def test_no_solution_is_always_the_first(monkeypatch, passed, no_gpu, capsys):
    """A user would miss: a solution that looks slow for being timed right after the reference on every workload."""
    first = []

    def run_workload(found, workload, solutions, *rest):
        first.append(solutions[0].name)
        return {s.name: passed for s in solutions}

    monkeypatch.setattr(cpu_judge, "run_workload", run_workload)
    names = ["torch_mxfp8_emulated", "triton_mxfp8"]
    assert cli.main(["run", "--definition", "mxfp8_small", "--solutions", *names, "--no-save"]) == 0
    assert len(first) > 1 and all(one != other for one, other in pairwise(first))


def test_a_cache_that_cannot_be_written_is_named_before_anything_runs(tmp_path, monkeypatch, no_gpu, capsys):
    """A user would miss: what to set where the home folder is read-only."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "file" / "cache"))
    assert cli.main(["run", "--definition", "mxfp8_small"]) == 1
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert line.startswith(f"FIB_CACHE_PATH: nothing can be written in {tmp_path}/file/cache: Not a directory; set")
    assert shown.out.splitlines() == ["No CUDA device: Triton's interpreter runs the kernels, so no times."]


def test_a_reference_that_does_not_run_fails_the_run(tmp_path, monkeypatch, passed, two_workloads, capsys):
    def run_workload(found, workload, solutions, *rest):
        if workload.axes["seq_len"] == 0:
            raise RuntimeError("out of memory")
        return {s.name: passed for s in solutions}

    monkeypatch.setattr(cpu_judge, "run_workload", run_workload)
    assert cli.main(["run", "--solutions", "triton_fused_v2", "--no-save"]) == 1
    shown = capsys.readouterr().out
    assert "[2/2] no-tokens T=0 offset=0  the reference did not run: out of memory" in shown
    assert "REFERENCE FAILED on no-tokens T=0 offset=0: the reference did not run: out of memory" in shown


def test_a_fault_of_a_later_definition_is_reported_before_anything_runs(monkeypatch, no_gpu, capsys):
    """A user would miss: minutes of the first definition, spent before the second one is refused."""
    monkeypatch.setattr(cpu_judge, "run_workload", None)
    command = ["run", "--solutions", "triton_fused_v2", "--definition", "small", "small-renorm", "--workloads", "16"]
    assert cli.main(command) == 2
    shown = capsys.readouterr()
    assert "unknown workload '16'" in shown.err and "[1/1]" not in shown.out


def test_a_broken_trace_file_is_reported_before_anything_runs(tmp_path, no_gpu, capsys):
    """A user would miss: a finished run that cannot be saved."""
    output = tmp_path / "traces.jsonl"
    output.write_text("{}\n")
    assert cli.main(["run", "--output", str(output)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "has lines that are no traces" in line and output.read_text() == "{}\n"


class Worker:
    """Stands in for FIB's PersistentRunner."""

    def __init__(self, evaluation):
        self.evaluation, self.calls, self.closed = evaluation, [], False

    def run_workload(self, definition, workload, solutions, config, root):
        self.calls.append((workload.uuid, config.warmup_runs, config.iterations, config.num_trials, config.rtol))
        return {solution.name: self.evaluation for solution in solutions}

    def close(self):
        self.closed = True


@pytest.mark.parametrize("clock", ["events", "gpu"])
def test_the_runner_of_a_gpu_gets_the_protocol_and_is_closed(tmp_path, monkeypatch, records, passed, clock):
    """A user would miss: a worker that holds the GPU's memory after Ctrl-C; a trace that does not say its clock."""
    worker = Worker(passed.model_copy(update={"performance": Performance(latency_ms=1, speedup_factor=2)}))
    here = provenance.here
    monkeypatch.setattr(workers, "PersistentRunner", lambda log_dir: worker)
    monkeypatch.setattr(provenance, "here", lambda device, **known: here("cpu", **known))
    config = RELAXED.config(num_trials=3, timeout_seconds=60, warmup_runs=7, iterations=9)
    packed = solution(tmp_path, BODIES["PASSED"])
    with pytest.raises(KeyboardInterrupt):
        with run.judging("small", {"tiny": packed}, RELAXED, config, "cuda:0", "x", clock=clock) as judge:
            first = judge("one", records[0])
            raise KeyboardInterrupt
    trace = first.traces["tiny"]
    assert first.passed and trace.evaluation.performance.latency_ms == 1
    assert provenance.of_trace(trace).clock == clock
    said = provenance.of_trace(trace).protocol
    assert said == "warmup=7 iterations=9 trials=3" + (" clock=gpu" if clock == "gpu" else "")
    assert worker.closed and worker.calls == [(records[0].uuid, 7, 9, 3, RELAXED.rtol)]


def test_the_table_has_one_row_per_solution(trace, records, capsys):
    """Who is fastest, what failed where, and what was not run, in a terminal of 100 columns."""

    def timed(ms, status="PASSED"):
        found = trace(records[0], "2026-01-01T00:00:00")
        performance = Performance(latency_ms=ms, speedup_factor=10 / ms)
        changes = {"performance": performance, "status": EvaluationStatus(status)}
        return found.model_copy(update={"evaluation": found.evaluation.model_copy(update=changes)})

    judged = [
        run.Judged("T=1", {"a_long_name_of_a_solution": timed(1.0), "b": timed(2.0)}),
        run.Judged("T=2", {"a_long_name_of_a_solution": timed(3.0), "b": timed(0.1, "RUNTIME_ERROR")}),
        run.Judged("T=3", {}, "the reference did not run: no"),
    ]
    names = ["a_long_name_of_a_solution", "b"]
    table = run_table.table(judged, names, ["c: SKIPPED: needs x"], timed=True)
    first, second = ([getattr(cell, "text", cell) for cell in row] for row in table.sections[0])
    assert first == ["a_long_name_of_a_solution", "2/3", "2.0000", "6.7x", 2, "1.0000", "1.0000", "1.0000"]
    assert second[:5] == ["b", "1/3", "2.0000", "5.0x", 0]
    assert table.notes[2:] == [
        "REFERENCE FAILED on T=3: the reference did not run: no",
        "b: RUNTIME_ERROR on T=2",
        "c: SKIPPED: needs x",
    ]
    Console(width=300).print(table.terminal())
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


@pytest.mark.parametrize("timed", [True, False])
def test_nothing_is_cut_in_80_columns(timed, trace, records, capsys):
    """A user would miss: which of hopper_fused and hopper_fused_exact a row is. On a GPU FIB gives no ratios."""
    found = trace(records[0], "2026-01-01T00:00:00").evaluation
    performance = Performance(latency_ms=1234.5678, speedup_factor=87.5)
    correctness = found.correctness.model_copy(update={"extra": None}) if timed else found.correctness
    known = found.model_copy(update={"performance": performance, "correctness": correctness})
    names = manifest.solution_names()
    judged = [
        run.Judged("T=1", {name: trace(records[0], "").model_copy(update={"evaluation": known}) for name in names})
    ]
    Console(width=80).print(run_table.table(judged, names, [], timed).terminal())
    shown = capsys.readouterr().out
    assert all(f"│ {name} " in shown for name in names) and "…" not in shown
    assert ("1234.5678" in shown) == timed and ("1.0000" in shown) != timed


def test_a_reason_is_shown_once_while_it_stays_the_same(trace, records):
    """A user would miss: the second error among nineteen copies of the first."""
    before = {}

    def shown(*reasons):
        judged = run.Judged("T=1", {"tiny": trace(records[0], "2026-01-01T00:00:00")}, None, {}, {"tiny": [*reasons]})
        return [*run_table.lines(judged, False, before)]

    assert shown("ValueError: no", "at x:1")[1:] == ["    ValueError: no", "    at x:1"]
    assert shown("ValueError: no", "at x:1") == ["T=1  tiny  PASSED  matched 1.0000  as before"]
    assert shown("ValueError: yes")[1:] == ["    ValueError: yes"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's job, for CPUs")
def test_the_main_job_on_a_few_workloads(tmp_path, two_workloads, capsys):
    """All of `make bench` on a CPU but for its length."""
    output = tmp_path / "traces.jsonl"
    assert cli.main(["run", "--solutions", "triton_fused_v2", "hopper_fused", "--output", str(output)]) == 0
    shown = capsys.readouterr().out
    assert "no times" in shown and "[2/2]" in shown and f"2 traces saved in {output}" in shown
    assert shown.count("hopper_fused: SKIPPED: needs sm_90; this machine has no CUDA device") == 1
    assert max(map(len, shown.replace(str(output), "").splitlines())) <= 100


def test_the_starter_kits_name_for_it(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run_local.py", "--solutions", "nothing"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(paths.ROOT / "scripts" / "run_local.py"), run_name="__main__")
    assert left.value.code == 2 and capsys.readouterr().err.startswith("unknown solution 'nothing'")


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's job, for CPUs")
def test_the_main_job_passes_on_a_cpu(tmp_path, capfd):
    """`make bench` without a GPU: all solutions on all small workloads, one table, no times."""
    output = tmp_path / "traces.jsonl"
    status = cli.main(["run", "--output", str(output)])
    done = capfd.readouterr()
    assert status == 0, done.out[-3000:] + done.err[-3000:]
    assert "no times" in done.out and "[10/10]" in done.out
    assert "Warning" not in done.out + done.err, "nothing is wrong, and a newcomer would wonder"
    traces = trace_files.load(output)
    assert len(traces) >= 10 and all(t.is_successful() for t in traces)
