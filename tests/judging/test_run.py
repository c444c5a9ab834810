"""The main job on a machine without a GPU: its plan, its judgement, its table and its traces."""

import importlib.metadata

import judged
import pytest
import torch
from flashinfer_bench import EvaluationStatus, Performance, Trace
from moebench import cli
from moebench.core import paths, provenance
from moebench.judging import dataset, fib
from moebench.judging import plan as planning
from moebench.judging.evaluate import EvaluatedSolution, Outcome
from moebench.judging.tolerances import TOLERANCES
from moebench.operators import catalogue, workloads
from moebench.packing import eligibility
from moebench.report import run_table
from moebench.results import resume, staleness, trace_files
from plain_solution import INPUTS, RIGHT, solution
from rich.console import Console

from definitions.moe_fp8_block_scale import definition_name

NAME = definition_name("small")
ON_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's job, for CPUs")
BODIES = {
    "PASSED": RIGHT,
    "INCORRECT_NUMERICAL": f"{RIGHT}.mul_(1.5)",
    "RUNTIME_ERROR": "raise ValueError('routing_logits: no')",
    "TIMEOUT": "import time; time.sleep(30)",
    "INCORRECT_SHAPE": "return output[:1]",
    "INCORRECT_DTYPE": "return output.float()",
    "nan": "output.fill_(float('nan'))",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Of solutions that a command finds."""
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path)
    return tmp_path


@pytest.mark.parametrize("status", [status for status in BODIES if status != "nan"])
def test_judgement(folder, status):
    returned = {"destination_passing_style": False} if "return" in BODIES[status] else {}
    main = f"import torch\ndef run({INPUTS}):\n    output = torch.zeros(16, 512).bfloat16()\n    {BODIES[status]}\n"
    packed = solution(folder, BODIES[status], main=main if returned else None, **returned)
    found = judged.evaluated(
        packed, timeout_seconds=2 if status == "TIMEOUT" else 60
    ).trace.evaluation
    assert found.status.value == status
    if status == "RUNTIME_ERROR":
        assert "routing_logits: no" in found.log and 'File "/' not in found.log


@pytest.mark.parametrize(
    ("body", "workload"), [(BODIES["nan"], "one-token"), ("output.fill_(3)", "none-local")]
)
def test_what_is_not_finite_or_not_written_is_wrong(folder, body, workload):
    """A token without a local expert has a row of zeros."""
    assert (
        judged.evaluated(solution(folder, body), workload).trace.evaluation.status
        == EvaluationStatus.INCORRECT_NUMERICAL
    )


def test_a_repeated_run_sees_the_same_inputs(folder):
    packed = solution(folder, f"{RIGHT}.mul_(1.1)")
    first, second = (judged.evaluated(packed).trace.evaluation.correctness for _ in range(2))
    assert first == second and 0 < first.extra["matched_ratio_relaxed"]


def test_skips_are_decided_before_building(folder):
    packed = solution(folder, "pass", dependencies=["torch", "no_such_module.sub"])
    assert "no_such_module.sub" in eligibility.why_skipped(packed, "cpu")
    assert "sm_80" in eligibility.why_skipped(packed, "sm_80")
    assert eligibility.why_skipped(solution(folder, "pass"), "cpu") is None


@pytest.fixture(scope="module")
def passed(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        return judged.evaluated(solution(tmp_path_factory.mktemp("passed"), RIGHT))


@pytest.fixture
def trace(passed):
    """A function that makes a trace of a solution called tiny."""

    def make(
        uuid="a",
        timestamp="2026-01-01T00:00:00",
        tolerance="relaxed",
        protocol="once",
        sha1="0",
        **changes,
    ):
        known = {
            "source_sha1": sha1,
            "source_fingerprint": sha1,
            "tolerance": tolerance,
            "protocol": protocol,
        }
        made = provenance.here("cpu", **known, command="moebench run")
        evaluation = provenance.into_evaluation(passed.trace.evaluation, made)
        evaluation = evaluation.model_copy(update={"timestamp": timestamp} | changes)
        workload = passed.trace.workload.model_copy(update={"uuid": uuid})
        return Trace(definition=NAME, workload=workload, solution="tiny", evaluation=evaluation)

    return make


def test_a_broken_trace_file_is_left_alone_and_reported_before_anything_runs(
    tmp_path, trace, no_gpu, capsys
):
    """A user would miss: a finished run that cannot be saved."""
    path = tmp_path / "traces.jsonl"
    path.write_text("{}\n")
    with pytest.raises(ValueError):
        trace_files.merge(path, [trace()])
    assert cli.main(["run", "--output", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line and path.read_text() == "{}\n"


def test_a_trace_says_what_it_measured(folder):
    packed = solution(folder, RIGHT, dependencies=["torch", "pydantic"])
    made = judged.evaluated(packed)
    found = provenance.of_trace(made.trace)
    assert made.passed and made.trace.solution == packed.name and not made.trace.evaluation.log
    assert {found.source_sha1, found.source_fingerprint} == staleness.hashes([packed])
    assert found.command == "moebench run --x"
    assert found.tolerance == str(TOLERANCES["relaxed"]) and found.protocol.startswith("trials=1 ")
    assert {"flashinfer_bench", "python", "torch"} <= set(found.versions)
    assert found.packages == f"pydantic {importlib.metadata.version('pydantic')}"


@pytest.mark.parametrize(
    ("args", "status", "named"),
    [
        (["--definition", "huge"], 2, ["huge", "full"]),
        (["--definition", "full"], 1, ["full", "small"]),
        (["--clock", "gpu"], 1, ["--clock gpu"]),
        (["--solutions", "hopper_fused"], 1, ["hopper_fused", "sm_90"]),
        (
            ["--solutions", "triton_mxfp8", "--definition", "small"],
            1,
            ["triton_mxfp8", "--definition mxfp8_small"],
        ),
        (["--resume"], 2, ["--resume", "--output"]),
        (["--tokens", "4", "--workloads", "16"], 2, ["--tokens", "--workloads"]),
        (["--tokens", "4", "--definition", "mxfp8_small"], 1, ["--tokens", "mxfp8_small"]),
        (["--routing", "uniform"], 2, ["--routing", "--tokens"]),
        (
            ["--output", "/dev/full", "--workloads", "16", "--solutions", "triton_fused_v2"],
            1,
            ["/dev/full"],
        ),
    ],
)
def test_what_cannot_be_run_gets_one_line(args, status, named, passed, monkeypatch, no_gpu, capsys):
    judged.stand_in(
        monkeypatch, lambda workload, found: {s.name: passed.trace.evaluation for s in found}
    )
    assert cli.main(["run", *args]) in (status, 2)
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert all(name in line for name in named) and "saved" not in shown.out


def test_a_run_that_is_cut_short_keeps_what_it_measured_and_is_resumed(
    tmp_path, monkeypatch, passed, no_gpu, capsys
):
    """A user would miss: an hour of results, for one Ctrl-C in the last workload; and the table of
    them.
    """
    seen = []

    def run_workload(workload, solutions):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(workload.uuid)
        return {s.name: passed.trace.evaluation for s in solutions}

    judged.stand_in(monkeypatch, run_workload)
    output = tmp_path / "traces.jsonl"
    few = ["--workloads", "16", "19", "24", "33"]
    command = ["run", "--solutions", "triton_fused_v2", *few, "--output", str(output), "--resume"]
    assert cli.main(command) == 130
    first = [*seen]
    assert (
        sorted(t.workload.uuid for t in trace_files.load(output)) == sorted(first)
        and len(first) == 2
    )
    shown = capsys.readouterr()
    assert (
        "2/2" in shown.out.partition("━")[2]
        and str(output) in shown.out
        and shown.err == "interrupted\n"
    )
    seen.clear()
    assert cli.main(command) == 0
    assert len(seen) == 2 and not set(first) & set(seen)
    assert "4/4" in capsys.readouterr().out.partition("━")[2]


@pytest.mark.parametrize(
    "change",
    [
        {"sha1": "before"},
        {"tolerance": "contest"},
        {"protocol": "twice"},
        {"environment": "NVIDIA H100"},
    ],
    ids=str,
)
def test_what_is_stale_or_of_other_conditions_is_judged_again(change, passed, trace, folder):
    packed = solution(folder, RIGHT)
    plan = judged.plan({"tiny": packed}, ["16"])
    (cell,), known = (
        plan,
        {"tolerance": str(plan.tolerance), "protocol": plan.protocol, "sha1": packed.hash()},
    )
    plan = judged.replace(
        plan,
        device=judged.replace(plan.device, hardware=passed.trace.evaluation.environment.hardware),
    )
    if "environment" in change:
        change = {
            "environment": passed.trace.evaluation.environment.model_copy(
                update={"hardware": "NVIDIA H100"}
            )
        }

    def left(**changes):
        made = trace(cell.workload.uuid, **known | changes).model_copy(
            update={"solution": packed.name}
        )
        part = plan.parts[NAME]
        return part.without(resume.current(plan, part, [made]))

    assert left(**change).cells == (cell,) and not left(**change).kept
    assert not left().cells and len(left().kept) == 1


def test_a_cache_that_cannot_be_written_is_named_before_anything_runs(
    tmp_path, monkeypatch, no_gpu, capsys
):
    """A user would miss: what to set where the home folder is read-only."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "file" / "cache"))
    assert cli.main(["run", "--definition", "mxfp8_small"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("FIB_CACHE_PATH: ") and str(tmp_path / "file" / "cache") in line


def test_a_reference_that_does_not_run_fails_the_run(monkeypatch, passed, no_gpu, capsys):
    def run_workload(workload, solutions):
        if workload.axes["seq_len"] == 0:
            raise RuntimeError("CUDA out of memory")
        return {s.name: passed.trace.evaluation for s in solutions}

    judged.stand_in(monkeypatch, run_workload)
    assert (
        cli.main(["run", "--solutions", "triton_fused_v2", "--workloads", "0", "16", "--no-save"])
        == 1
    )
    shown = capsys.readouterr().out
    assert (
        shown.count("NOT JUDGED") == 2
        and "CUDA out of memory" in shown
        and "1/2" in shown.partition("━")[2]
    )


def test_a_fault_of_a_later_definition_is_reported_before_anything_runs(
    monkeypatch, no_gpu, capsys
):
    """A user would miss: minutes of the first definition, spent before the second one is
    refused.
    """
    judged.stand_in(monkeypatch, None)
    command = [
        "run",
        "--solutions",
        "triton_fused_v2",
        "--definition",
        "small",
        "small-renorm",
        "--workloads",
        "16",
    ]
    assert cli.main(command) == 2
    shown = capsys.readouterr()
    assert "'16'" in shown.err and "[1/" not in shown.out


def test_the_table_has_one_row_a_solution(folder, trace, capsys):
    """Who is fastest, what failed where, and what was not run; on a GPU FIB gives no ratios but the
    run's own.
    """
    packed = {
        "a_long_name_of_a_solution": solution(folder, RIGHT),
        "b": solution(folder, RIGHT, "b"),
    }
    plan = judged.plan(packed, ["16", "19", "24"], device=judged.GPU)
    cells = list(plan)

    def verdict(cell, name, ms):
        performance = ms and Performance(
            latency_ms=ms, reference_latency_ms=10, speedup_factor=10 / ms
        )
        status = EvaluationStatus.PASSED if ms else EvaluationStatus.INCORRECT_NUMERICAL
        made = trace(cell.workload.uuid, performance=performance, status=status)
        return EvaluatedSolution(made.model_copy(update={"solution": packed[name].name}))

    first, second = packed
    outcomes = [
        Outcome(
            cells[0],
            {first: verdict(cells[0], first, 1.0), second: verdict(cells[0], second, 1.02)},
        ),
        Outcome(
            cells[1],
            {first: verdict(cells[1], first, 3.0), second: verdict(cells[1], second, None)},
        ),
        Outcome(cells[2], lost=dict.fromkeys(packed, "out of memory")),
    ]
    (table,) = run_table.tables(plan, plan.parts[NAME], outcomes)
    rows = [[getattr(cell, "text", cell) for cell in row] for row in table.sections[0]]
    assert rows[0] == [first, "2/3", "2.0000", "6.7x", 2, "1.0000", "1.0000", "1.0000"]
    assert rows[1][:5] == ["b", "1/3", "1.0200", "9.8x", 1]
    assert sum("out of memory" in note for note in table.notes) == 2
    assert any(
        note.startswith("b: INCORRECT_NUMERICAL") and cells[1].label in note for note in table.notes
    )
    Console(width=300).print(table.terminal())
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 120


def test_a_table_holds_one_kind_of_gpu(folder, trace):
    """Ray's H100 is several products; what FIB calls the device decides."""
    plan = judged.plan({"tiny": solution(folder, RIGHT)}, ["16", "19"])
    kinds = {"NVIDIA H100 PCIe", "NVIDIA H200"}
    made = []
    for cell, kind in zip(plan, sorted(kinds), strict=True):
        one = trace(cell.workload.uuid)
        environment = one.evaluation.environment.model_copy(update={"hardware": kind})
        one = one.model_copy(
            update={"evaluation": one.evaluation.model_copy(update={"environment": environment})}
        )
        made.append(Outcome(cell, {"tiny": EvaluatedSolution(one)}))
    found = [*run_table.tables(plan, plan.parts[NAME], made)]
    assert {kind for kind in kinds for table in found if kind in table.title} == kinds and len(
        found
    ) == 2


@ON_CPU
def test_the_main_job_on_a_few_workloads(tmp_path, capsys):
    """All of `make bench` on a CPU but for its length."""
    output = tmp_path / "traces.jsonl"
    command = ["run", "--solutions", "triton_fused_v2", "hopper_fused", "--workloads", "16", "19"]
    assert cli.main([*command, "--output", str(output)]) == 0
    shown = capsys.readouterr().out
    assert "[2/2]" in shown and str(output) in shown and shown.count("hopper_fused: SKIPPED") == 1
    assert max(map(len, shown.replace(str(output), "").splitlines())) <= 100
    assert len(trace_files.load(output)) == 2


@ON_CPU
@pytest.mark.parametrize("routing", ["skewed", "uniform", "one-expert"])
def test_workloads_at_other_token_counts(routing, tmp_path):
    """Judged as every other, with a blob of their own; the recorded workloads stay as they are."""
    output, recorded = tmp_path / "traces.jsonl", paths.workload_file(NAME).read_bytes()
    command = ["run", "--solutions", "triton_fused_v2", "--tokens", "0", "13", "--routing", routing]
    assert cli.main([*command, "--output", str(output)]) == 0
    found = {t.workload.axes["seq_len"]: t.workload for t in trace_files.load(output)}
    assert set(found) == {0, 13} and paths.workload_file(NAME).read_bytes() == recorded
    blob = paths.ROOT / paths.blob_file(NAME, found[13].uuid)
    assert blob.is_file() and found[13].uuid not in {w.uuid for w in workloads.recorded("small")}
    full = catalogue.definition("small")
    stored = fib.load_safetensors(full, found[13], paths.ROOT)
    counts = catalogue.operator("small").counts(found[13], stored, "small")
    assert routing != "one-expert" or (counts.active, counts.rows) == (1, 13)


def test_what_does_not_fit_on_a_gpu_is_skipped(monkeypatch):
    """One trial's inputs twice, and all trials' four times for one worker."""
    full, labelled = (
        catalogue.definition("full"),
        dataset.labelled(catalogue.definition_name("full")),
    )
    sizes = {w.uuid: sum(planning.input_bytes(full, w.axes).values()) for _, w in labelled}
    assert sizes[labelled[0][1].uuid] == pytest.approx(32 * 3 * 2048 * 7168, rel=0.01)
    between = judged.replace(judged.GPU, free=2 * sizes[labelled[-2][1].uuid] + planning.CONTEXTS)
    monkeypatch.setattr(planning, "eligible", lambda names, geometry, device: ({"tiny": None}, []))
    part = planning.part_of(full, labelled, [], {}, 3, between)
    assert (
        len(part.cells) == len(labelled) - 1
        and labelled[-1][0] in part.skipped[0]
        and part.renew_worker
    )
    assert not planning.part_of(full, labelled, [], {}, 3, judged.GPU).renew_worker
    with pytest.raises(planning.CannotRun):
        planning.part_of(full, labelled, [], {}, 3, judged.replace(judged.GPU, free=10**9))


@pytest.mark.slow
@ON_CPU
def test_the_main_job_passes_on_a_cpu(tmp_path, capfd):
    """`make bench` without a GPU: all solutions on all small workloads, one table, no times."""
    output = tmp_path / "traces.jsonl"
    assert cli.main(["run", "--output", str(output)]) == 0
    done = capfd.readouterr()
    assert "Warning" not in done.out + done.err, "nothing is wrong, and a newcomer would wonder"
    traces = trace_files.load(output)
    assert len(traces) >= 10 and all(t.is_successful() for t in traces)
