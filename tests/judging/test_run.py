"""The main job on a machine without a GPU: its plan, its evaluations, its table and its traces."""

import importlib.metadata

import judged
import pytest
import torch
from flashinfer_bench import EvaluationStatus, Trace
from moebench import cli
from moebench.core import paths, provenance
from moebench.core.errors import CannotRun
from moebench.judging import dataset, device, fib, planning
from moebench.judging.evaluate import EvaluatedSolution, Outcome
from moebench.judging.plan import RunRequest
from moebench.judging.tolerances import TOLERANCES
from moebench.operators import catalogue
from moebench.operators.catalogue import definition_name
from moebench.packing import eligibility
from moebench.reports import run_table
from moebench.reports.terminal import InTerminal
from moebench.results import staleness, trace_files
from plain_solution import INPUTS, RIGHT, solution
from recorded import performance
from rich.console import Console

NAME = definition_name("small")


# One solution on one workload

RETURNED = {"INCORRECT_SHAPE": "output[:1]", "INCORRECT_DTYPE": "output.float()"}


@pytest.mark.parametrize("status", RETURNED)
def test_an_output_of_another_kind_is_wrong(folder, status):
    main = f"""import torch
def run({INPUTS}):
    output = torch.zeros(16, 512).bfloat16()
    return {RETURNED[status]}
"""
    packed = solution(folder, main=main, destination_passing_style=False)
    assert judged.evaluated(packed).trace.evaluation.status.value == status


WRONG = {
    "not finite": ("output.fill_(float('nan'))", "one-token"),
    "written where no expert is local": ("output.fill_(3)", "none-local"),
    "not written": ("pass", "first-rank"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_finite_or_not_as_it_must_be_written_is_wrong(folder, name):
    body, workload = WRONG[name]
    evaluation = judged.evaluated(solution(folder, body), workload).trace.evaluation
    assert evaluation.status == EvaluationStatus.INCORRECT_NUMERICAL


def test_a_repeated_run_sees_the_same_inputs(folder):
    packed = solution(folder, f"{RIGHT}.mul_(1.1)")
    first = judged.evaluated(packed).trace.evaluation.correctness
    second = judged.evaluated(packed).trace.evaluation.correctness
    assert first == second
    assert 0 < first.extra["matched_ratio_relaxed"]


def test_the_worst_of_several_trials_counts(folder):
    body = (
        f"{RIGHT}\n    if hasattr(run, 'called'): output.mul_(2)\n    run.called = True"
    )
    once = judged.evaluated(solution(folder, body, "once"), num_trials=1)
    thrice = judged.evaluated(solution(folder, body, "thrice"), num_trials=3)
    assert once.passed
    assert not thrice.passed


def test_skips_are_decided_before_building(folder):
    packed = solution(folder, "pass", dependencies=["torch", "no_such_module.sub"])
    assert "no_such_module.sub" in eligibility.why_skipped(packed, "cpu")
    assert "sm_80" in eligibility.why_skipped(packed, "sm_80")
    assert eligibility.why_skipped(solution(folder, "pass"), "cpu") is None


@pytest.fixture(scope="module")
def passed(tmp_path_factory):
    """A right solution that has been evaluated on one workload."""
    folder = tmp_path_factory.mktemp("passed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        return judged.evaluated(solution(folder, RIGHT))


def test_a_trace_says_what_it_measured(folder):
    packed = solution(folder, RIGHT, dependencies=["torch", "pydantic"])
    evaluated = judged.evaluated(packed)
    recorded = provenance.of_trace(evaluated.trace)

    assert evaluated.passed
    assert not evaluated.trace.evaluation.log
    assert evaluated.trace.solution == packed.name
    hashes = {recorded.source_sha1, recorded.source_fingerprint}
    assert hashes == staleness.hashes(packed)
    assert recorded.command == "moebench run --x"
    assert recorded.tolerance == str(TOLERANCES["relaxed"])
    assert recorded.protocol.startswith("trials=1 ")
    assert {"flashinfer_bench", "python", "torch"} <= set(recorded.versions)
    assert recorded.packages == f"pydantic {importlib.metadata.version('pydantic')}"


def test_what_was_called_carried_is_still_read(passed):
    """In a trace, and in a record's provenance."""
    evaluation = passed.trace.evaluation
    libs = evaluation.environment.libs | {"carried": "equal machine code"}
    environment = evaluation.environment.model_copy(update={"libs": libs})
    evaluation = evaluation.model_copy(update={"environment": environment})
    recorded = provenance.of_trace(
        passed.trace.model_copy(update={"evaluation": evaluation})
    )
    assert recorded.revalidated == "equal machine code"
    assert "carried" not in recorded.versions

    text = recorded.model_dump_json().replace("revalidated", "carried")
    assert provenance.Provenance.model_validate_json(text) == recorded
    written = provenance.into_evaluation(passed.trace.evaluation, recorded)
    assert written.environment.libs["revalidated"] == "equal machine code"


# What cannot be run


@pytest.fixture
def seen(monkeypatch, passed):
    """Every solution passes. The uuids of the workloads that were evaluated, in their order; Ctrl-C
    comes when there are `seen.most`.
    """

    class Seen(list):
        most = None

    uuids = Seen()

    def run_workload(workload, solutions):
        if len(uuids) == uuids.most:
            raise KeyboardInterrupt
        uuids.append(workload.uuid)
        return {each.name: passed.trace.evaluation for each in solutions}

    judged.stand_in(monkeypatch, run_workload)
    return uuids


def test_a_cache_that_cannot_be_written_is_named_before_anything_runs(
    tmp_path, monkeypatch, no_gpu, refusal
):
    (tmp_path / "file").write_text("")
    cache = tmp_path / "file" / "cache"
    monkeypatch.setenv("FIB_CACHE_PATH", str(cache))
    status, line = refusal("run", "--definition", "mxfp8_small")
    assert status == 1
    assert "FIB_CACHE_PATH" in line
    assert str(cache) in line


def test_a_fault_of_a_later_definition_is_reported_before_anything_runs(
    monkeypatch, no_gpu, refusal
):
    judged.stand_in(monkeypatch, None)
    command = (
        "run --solutions triton_fused_v2 --definition small small-renorm --workloads 16"
    )
    status, line = refusal(*command.split())
    assert status == 2
    assert "'16'" in line


def test_a_reference_that_does_not_run_fails_the_run(
    monkeypatch, passed, no_gpu, capsys
):
    def run_workload(workload, solutions):
        if workload.axes["seq_len"] == 0:
            raise RuntimeError("CUDA out of memory")
        return {each.name: passed.trace.evaluation for each in solutions}

    judged.stand_in(monkeypatch, run_workload)
    command = "run --solutions triton_fused_v2 --workloads 0 16 --no-save"
    assert cli.main(command.split()) == 1
    shown = capsys.readouterr().out
    assert shown.count("not evaluated") == 2
    assert "CUDA out of memory" in shown
    assert "1/2" in shown.partition("━")[2]


def test_what_does_not_fit_on_a_gpu_is_skipped(folder):
    """One trial's inputs twice; all trials' four times for one worker."""
    full = catalogue.definition("full")
    labelled = dataset.labelled(full.name)
    sizes = [device.size_of_inputs(full, workload) for _, workload in labelled]
    weight_bytes = 32 * 3 * 2048 * 7168
    assert sizes[0] == pytest.approx(weight_bytes, rel=0.01)
    solution(folder, target_hardware=["sm_90"])
    request = RunRequest(solutions=("tiny",), save=False)

    def part(free):
        gpu = judged.replace(judged.GPU, free=free)
        return planning.plan_run(request, gpu).parts[full.name]

    *_, second_largest, _ = sizes
    *_, (largest_label, _) = labelled
    without_the_largest = part(2 * second_largest + device.CONTEXT_BYTES)
    assert len(without_the_largest.tasks) == len(labelled) - 1
    assert largest_label in without_the_largest.skipped[0]
    assert without_the_largest.renew_worker
    assert not part(judged.GPU.free).renew_worker
    with pytest.raises(CannotRun):
        part(10**9)


# Traces that are kept, and a run that is resumed


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
        recorded = provenance.measured_here(
            "cpu",
            source_sha1=sha1,
            source_fingerprint=sha1,
            tolerance=tolerance,
            protocol=protocol,
            command="moebench run",
        )
        evaluation = provenance.into_evaluation(passed.trace.evaluation, recorded)
        evaluation = evaluation.model_copy(update={"timestamp": timestamp} | changes)
        workload = passed.trace.workload.model_copy(update={"uuid": uuid})
        return Trace(
            definition=NAME, workload=workload, solution="tiny", evaluation=evaluation
        )

    return make


def with_hardware(trace, hardware):
    environment = trace.evaluation.environment.model_copy(update={"hardware": hardware})
    evaluation = trace.evaluation.model_copy(update={"environment": environment})
    return trace.model_copy(update={"evaluation": evaluation})


def test_a_broken_trace_file_is_left_alone_and_reported_before_anything_runs(
    tmp_path, trace, no_gpu, refusal
):
    path = tmp_path / "traces.jsonl"
    path.write_text("{}\n")
    with pytest.raises(ValueError):
        trace_files.merge(path, [trace()])
    status, line = refusal("run", "--output", path)
    assert status == 2
    assert str(path) in line
    assert path.read_text() == "{}\n"


FOUR_WORKLOADS = "--solutions triton_fused_v2 --workloads 16 19 24 33 --resume".split()


def test_a_run_that_is_cut_short_keeps_what_it_measured_and_is_resumed(
    capsys, tmp_path, seen, no_gpu
):
    seen.most = 2
    status, traces = judged.recorded(tmp_path, *FOUR_WORKLOADS)
    assert status == 130
    assert {trace.workload.uuid for trace in traces} == set(seen)
    output, errors = capsys.readouterr()
    assert "2/2" in output.partition("━")[2]
    assert str(tmp_path / "traces.jsonl") in output
    assert errors == "interrupted\n"

    seen.most = None
    status, traces = judged.recorded(tmp_path, *FOUR_WORKLOADS)
    assert status == 0
    assert len(seen) == 4
    assert {trace.workload.uuid for trace in traces} == set(seen)
    assert "4/4" in capsys.readouterr().out.partition("━")[2]


def test_every_run_begins_with_another_of_our_solutions(passed):
    request = RunRequest(runs=4)
    planner = planning.Planner(request, judged.CPU, {}, None, paths.ROOT, "events")
    workload = passed.trace.workload
    workloads = [("T=1", workload), ("T=7", workload)]

    tasks = planner.tasks(NAME, ["a", "b", "c"], ["theirs"], workloads)

    names = {1: [], 2: [], 3: [], 4: []}
    for task in tasks:
        names[task.run].append("".join(task.names))
    order_of_runs = [task.run for task in tasks]
    assert order_of_runs == sorted(order_of_runs)
    assert names[1] == ["abc", "abc", "theirs", "theirs"]
    assert names[2] == ["bca", "bca", "theirs", "theirs"]
    assert names[3] == ["cab", "cab", "theirs", "theirs"]
    assert names[4] == names[1]


def test_every_run_is_kept_and_a_resumed_one_adds_what_is_missing(
    tmp_path, seen, no_gpu
):
    arguments = "--solutions triton_fused_v2 --workloads 16 19 --runs".split()
    status, traces = judged.recorded(tmp_path, *arguments, 2)
    assert status == 0
    assert len(traces) == 4
    first_run = seen[:2]
    assert len(set(first_run)) == 2
    assert seen[2:] == first_run

    seen.clear()
    status, traces = judged.recorded(tmp_path, *arguments, 3, "--resume")
    assert status == 0
    assert len(traces) == 6
    assert seen == first_run


CHANGES = {
    "nothing": {},
    "source": {"sha1": "before"},
    "tolerance": {"tolerance": "contest"},
    "protocol": {"protocol": "twice"},
    "hardware": {},
}


@pytest.mark.parametrize("changed", CHANGES)
def test_what_is_stale_or_of_other_conditions_is_evaluated_again(
    changed, passed, trace, folder
):
    packed = solution(folder, RIGHT)
    hardware = passed.trace.evaluation.environment.hardware
    device = judged.replace(judged.CPU, hardware=hardware)
    plan = judged.plan({"tiny": packed}, ["16"], device=device)
    (task,) = plan
    same = {
        "tolerance": str(plan.tolerance),
        "protocol": plan.protocol,
        "sha1": packed.hash(),
    }
    old = trace(task.workload.uuid, **same | CHANGES[changed])
    old = old.model_copy(update={"solution": packed.name})
    if changed == "hardware":
        old = with_hardware(old, "NVIDIA H100")

    part = plan.parts[NAME]
    left = part.without(staleness.reusable(plan, part, [old]))
    if changed == "nothing":
        assert left.kept == (old,)
        assert left.tasks == ()
    else:
        assert left.kept == ()
        assert left.tasks == (task,)


# The table


@pytest.fixture
def timed(trace):
    """A function that makes solutions that are evaluated on a task; without a time one is wrong."""

    def make(task, packed, *times):
        evaluated = {}
        for name, ms in zip(packed, times, strict=True):
            changes = {
                "status": EvaluationStatus.INCORRECT_NUMERICAL,
                "performance": None,
            }
            if ms:
                changes = {"performance": performance(ms, 10)}
            recorded = trace(task.workload.uuid, **changes)
            recorded = recorded.model_copy(update={"solution": packed[name].name})
            evaluated[name] = EvaluatedSolution(recorded)
        return evaluated

    return make


def text_of(cell):
    return getattr(cell, "text", cell)


def test_the_table_has_one_row_a_solution(folder, timed, capsys):
    """Who is fastest, what failed where, and what was not run."""
    long_name = "a_long_name_of_a_solution"
    packed = {long_name: solution(folder, RIGHT), "b": solution(folder, RIGHT, "b")}
    plan = judged.plan(packed, ["16", "19", "24"], device=judged.GPU)
    first, second, third = plan
    outcomes = [
        Outcome(third, lost=dict.fromkeys(packed, "out of memory")),
        Outcome(first, timed(first, packed, 1.0, 1.02)),
        Outcome(second, timed(second, packed, 3.0, None)),
    ]

    (table,) = run_table.tables(plan, plan.parts[NAME], outcomes)

    fastest, other = table.rows
    expected = [long_name, "2/3", "2.0000", "6.7x", 2, "1.0000", "1.0000", "1.0000"]
    assert list(map(text_of, fastest)) == expected
    assert list(map(text_of, other[:5])) == ["b", "1/3", "1.0200", "9.8x", 1]
    notes = "\n".join(table.notes)
    assert notes.count("out of memory") == 2
    assert notes.count("b: INCORRECT_NUMERICAL") == 1
    assert second.label in notes

    Console(width=300).print(InTerminal(table))
    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown)) <= 120


def test_a_table_holds_one_kind_of_gpu(folder, trace):
    """Ray's H100 is several products; what FIB calls the device decides."""
    plan = judged.plan({"tiny": solution(folder, RIGHT)}, ["16", "19"])
    outcomes = []
    for task, kind in zip(plan, ["NVIDIA H100 PCIe", "NVIDIA H200"], strict=True):
        recorded = with_hardware(trace(task.workload.uuid), kind)
        outcomes.append(Outcome(task, {"tiny": EvaluatedSolution(recorded)}))

    first, second = run_table.tables(plan, plan.parts[NAME], outcomes)
    assert "NVIDIA H100 PCIe" in first.title
    assert "NVIDIA H200" in second.title


# All of it


@judged.ON_CPU
def test_the_main_job_on_a_few_workloads(tmp_path, capfd):
    """All of `make bench` on a CPU but for its length: test_answers.py has every workload."""
    names = ("torch_moe", "triton_fused_v2", "hopper_fused")
    status, traces = judged.recorded(tmp_path, "--solutions", *names, "--workloads", 1)
    assert status == 0
    assert len(traces) == 4  # two workloads have one token

    output = str(tmp_path / "traces.jsonl")
    shown = capfd.readouterr()
    assert "Warning" not in shown.out + shown.err
    assert "[4/4]" in shown.out
    assert output in shown.out
    assert shown.out.count("hopper_fused: SKIPPED") == 1
    lines = shown.out.replace(output, "").splitlines()
    assert max(map(len, lines)) <= 100


@judged.ON_CPU
@pytest.mark.parametrize(
    ("routing", "active"),
    [("skewed", range(2, 33)), ("uniform", range(2, 33)), ("one-expert", [1])],
)
def test_workloads_at_other_token_counts(routing, active, tmp_path):
    """Evaluated as every other, with a blob of their own; the recorded workloads stay."""
    before = paths.workload_file(NAME).read_bytes()
    arguments = f"--solutions torch_moe --tokens 0 13 --routing {routing}".split()

    status, traces = judged.recorded(tmp_path, *arguments)

    assert status == 0
    none, drawn = [trace.workload for trace in traces]
    assert none.axes["seq_len"] == 0
    assert drawn.axes["seq_len"] == 13
    assert paths.workload_file(NAME).read_bytes() == before
    assert drawn.uuid.encode() not in before

    stored = fib.load_safetensors(catalogue.definition("small"), drawn, paths.ROOT)
    counts = catalogue.operator("small").counts(drawn, stored, "small")
    assert counts.active in active
    if routing == "one-expert":
        assert counts.rows == 13
