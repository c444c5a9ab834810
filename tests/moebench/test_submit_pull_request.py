"""A pull request to a FIB data set: what FIB reads of it, which traces go along, and whose files
stay as they are.
"""

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from unittest import mock

import pytest
from every_solution import slow
from moebench import cli
from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.operators.catalogue import definition, definition_name
from moebench.packing import pack
from moebench.results import measurements
from moebench.submission import pull_request
from recorded import DEFAULT, record, write

MAIN = os.environ.get("FIB_MAIN", "")
NEEDS_MAIN = pytest.mark.skipif(
    not MAIN, reason="needs FIB's main branch: set FIB_MAIN to a checkout"
)
NAME = definition_name("bf16")
VALIDATE = pull_request.validate
OURS = pack.pack("gather_scatter_bf16")["bf16"]
OTHER = pack.pack("torch_grouped_bf16")["bf16"]
SOLUTION = f"solutions/{OURS.author}/moe/{NAME}/{OURS.name}.json"
TRACES = f"traces/{OURS.author}/moe/{NAME}.jsonl"
H200 = (OURS.name, "NVIDIA H200")
READ = """
import json, sys
from flashinfer_bench import TraceSet
read = TraceSet.from_path(sys.argv[1])
authors = {name: [each.author for each in of] for name, of in read.solutions.items()}
traces = {name: len(of) for name, of in read.traces.items()}
print(json.dumps([[*read.definitions], authors, traces]))
"""


@pytest.fixture
def data_set(tmp_path):
    return tmp_path / "set"


@pytest.fixture
def installed_fib(monkeypatch):
    """FIB as it is installed: to find out that it cannot validate takes a process of seconds."""
    monkeypatch.delenv("FIB_MAIN", raising=False)
    monkeypatch.setattr(pull_request, "validate", lambda *_: "")


@pytest.fixture
def main_branch(installed_fib, monkeypatch):
    """FIB's main branch, which validates what is submitted."""
    monkeypatch.setenv("FIB_MAIN", MAIN)
    monkeypatch.setattr(pull_request, "validate", VALIDATE)


@pytest.fixture(
    params=["", pytest.param(MAIN, marks=NEEDS_MAIN)], ids=["installed", "main"]
)
def checkout(request, installed_fib):
    """Of the FIB that reads what is submitted; "" for the installed one."""
    if request.param:
        request.getfixturevalue("main_branch")
    return request.param


@pytest.fixture
def submit(data_set, tmp_path, installed_fib):
    """Run moebench submit --to dataset with these traces: its exit status."""

    def run(traces, *args, solution="gather_scatter_bf16", key="bf16"):
        file = write(tmp_path / "t.jsonl", traces)
        command = ["submit", solution, "--to", "dataset", "--definition", key]
        command += ["--traces", str(file), "--into", str(data_set), *args]
        return cli.main(command)

    return run


def solutions_and_machines(file):
    """Return the solution and machine of each trace in a file, sorted."""
    pairs = []
    for line in file.read_text().splitlines():
        trace = json.loads(line)
        environment = trace["evaluation"]["environment"]
        pairs.append((trace["solution"], environment["hardware"]))
    return sorted(pairs)


def what_fib_reads(data_set, checkout):
    """Return definitions, authors and numbers of traces as FIB reads them: the installed one in
    this process, a checkout in another.
    """
    if checkout:
        command = [sys.executable, "-c", READ, data_set]
        env = os.environ | {"PYTHONPATH": checkout}
        read = subprocess.run(command, env=env, capture_output=True, text=True)
        return json.loads(read.stdout)

    printed = io.StringIO()
    with redirect_stdout(printed), mock.patch.object(sys, "argv", ["", str(data_set)]):
        exec(READ, {})
    return json.loads(printed.getvalue())


def test_fib_reads_it(checkout, submit, data_set, capsys):
    traces = [*record(OURS), *record(OTHER)]
    assert submit(traces, "--baseline", "torch_grouped_bf16") == 0

    shown = capsys.readouterr().out
    assert f"baseline: {OTHER.name}" in shown
    assert (data_set / f"{OURS.name}.pull_request.md").read_text() in shown
    assert ("[OK]" in shown) == bool(checkout)
    authors = {NAME: ["baseline", OURS.author]}
    assert what_fib_reads(data_set, checkout) == [[NAME], authors, {NAME: 20}]


@pytest.mark.slow
def test_an_older_fib_has_no_report(data_set, installed_fib):
    data_set.mkdir()
    assert VALIDATE(data_set, NAME, "layout").startswith("not run: ")


# a slice of every expert; a shared expert; MXFP4
LACKING = [
    slow("deepseek-v3-tp8"),
    slow("deepseek-v3-ep8-shared"),
    "deepseek-v4-flash-ep8-mxfp4",
]


@pytest.mark.parametrize("key", LACKING)
def test_fib_reads_what_the_public_data_set_lacks(key, checkout, submit, data_set):
    """With traces of two kinds of GPU."""
    packed = pack.pack("hopper_fused")[key]
    baseline = pack.pack("triton_fused_v2")[key]
    traces = [
        *record(packed),
        *record(packed, hardware="NVIDIA H100"),
        *record(baseline),
    ]
    options = ["--baseline", "triton_fused_v2"]
    assert submit(traces, *options, solution="hopper_fused", key=key) == 0

    name = packed.definition
    authors = {name: ["baseline", packed.author]}
    assert what_fib_reads(data_set, checkout) == [[name], authors, {name: len(traces)}]


@NEEDS_MAIN
def test_what_the_main_branch_finds_wrong_fails(submit, main_branch, data_set):
    """As a trace of a solution that is gone."""
    assert submit(record(OURS)) == 0
    gone = record(OTHER)[0].model_copy(update={"solution": "gone"})
    write(data_set / TRACES, [gone])
    assert submit(record(OURS)) == 1


def test_current_timed_traces_go_along(submit, data_set):
    right = record(OURS)
    failed = record(OURS, hardware="B200", status="RUNTIME_ERROR")
    stale = record(OURS, hardware="old", sha1="0")
    other_tolerance = record(OURS, tolerance=DEFAULT)
    untimed = record(OURS, hardware="untimed", ms=0)
    assert submit([*right, *failed, *other_tolerance, *untimed, *stale]) == 0

    written = solutions_and_machines(data_set / TRACES)
    assert written == [(OURS.name, "B200")] * 10 + [H200] * 10


BY_GPU = {"protocol": "warmup=1 iterations=1 trials=1 clock=gpu"}


@pytest.mark.parametrize(
    ("solution", "baseline", "submitted"),
    [
        (BY_GPU, BY_GPU, {OURS.name: {"gpu"}, OTHER.name: {"gpu"}}),
        ({}, BY_GPU, {OURS.name: {"events"}}),
        ({}, {}, {OURS.name: {"events"}, OTHER.name: {"events"}}),
    ],
    ids=["GPU's", "one each", "events"],
)
def test_traces_of_one_clock_go_along(solution, baseline, submitted, submit, data_set):
    """The GPU's clock alone where nothing was timed by events, as with tensor-parallel ranks."""
    traces = [
        *record(OURS, **BY_GPU),
        *record(OURS, **solution),
        *record(OTHER, **baseline),
    ]
    assert submit(traces, "--baseline", "torch_grouped_bf16") == 0

    rows, _ = measurements.load([data_set])
    clocks = {name: set(values) for name, values in rows.groupby("solution").clock}
    assert clocks == submitted


@NEEDS_MAIN
@pytest.mark.slow
@pytest.mark.parametrize(
    "folder", [paths.ROOT / "traces", paths.GPU_CLOCK], ids=["events", "activity"]
)
def test_the_main_branch_accepts_every_recorded_definition(
    folder, main_branch, data_set
):
    """With this repository's own traces, of the solution that is on most definitions."""
    rows, _ = measurements.load([folder])
    current = rows[(rows.source == "current") & (rows.solution == "triton_fused_v2")]
    keys = sorted(current.geometry.unique())
    command = ["submit", "triton_fused_v2", "--to", "dataset", "--definition", *keys]
    assert cli.main([*command, "--into", str(data_set)]) == 0
    definitions, *_ = what_fib_reads(data_set, MAIN)
    assert sorted(definitions) == sorted(map(definition_name, keys))


def test_new_traces_replace_those_of_before_and_nobody_elses(submit, data_set):
    right = record(OURS)
    stale = record(OURS, hardware="old", sha1="0")
    assert submit(right) == 0
    write(data_set / TRACES, [*record(OTHER), *stale, *right[:3]])
    assert submit(right[3:5]) == 0

    written = solutions_and_machines(data_set / TRACES)
    assert written == [H200] * 5 + [(OTHER.name, "NVIDIA H200")] * 10


@pytest.mark.parametrize(
    "change",
    [{"sha1": "0"}, {"ms": 0}, {"status": "RUNTIME_ERROR"}, None],
    ids=["stale", "untimed", "failed", "none"],
)
def test_a_solution_that_was_never_measured_is_refused(
    submit, data_set, change, capsys
):
    traces = [] if change is None else record(OURS, **change)
    assert submit([*traces, *record(OTHER)]) == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert OURS.name in line
    command = "moebench run --solutions gather_scatter_bf16 --definition bf16 --save"
    assert command in line
    assert not data_set.exists()


def test_what_the_data_set_has_stays(submit, data_set, capsys):
    files = {
        f"definitions/moe/{NAME}.json": definition("bf16").model_dump_json(),
        f"workloads/moe/{NAME}.jsonl": paths.workload_file(NAME)
        .read_text()
        .splitlines()[0],
        f"solutions/baseline/moe/{NAME}/theirs.json": "{}",
    }
    for path, text in files.items():
        write_atomically(data_set / path, text)
    assert submit(record(OURS), "--baseline", "torch_grouped_bf16") == 0

    assert "baseline: theirs" in capsys.readouterr().out
    assert {path: (data_set / path).read_text() for path in files} == files
    assert not (data_set / TRACES).exists()  # ours were measured with other tensors
    assert list(data_set.rglob(f"{OTHER.name}.json")) == []

    of_the_set, *_ = record(OURS, protocol="once dataset=set")
    write(data_set / TRACES, [of_the_set])
    assert submit(record(OURS)) == 0
    assert solutions_and_machines(data_set / TRACES) == [H200]


def test_another_layer_of_the_same_name_is_refused(submit, data_set):
    text = definition("bf16_small").model_dump_json()
    other = text.replace(definition_name("bf16_small"), NAME)
    write_atomically(data_set / "definitions" / "moe" / f"{NAME}.json", other)
    assert submit(record(OURS)) == 2


@pytest.mark.parametrize(
    "place", [f"solutions/theirs/moe/x/{OURS.name}.json", SOLUTION, "readme"]
)
def test_no_file_of_anybody_else_is_overwritten(place, submit, data_set):
    theirs = OURS.model_copy(update={"author": "theirs"}).model_dump_json()
    write_atomically(data_set / place, theirs)
    if place != "readme":  # a folder with that alone is no data set
        (data_set / "definitions").mkdir()
    before = sorted(data_set.rglob("*"))

    assert submit(record(OURS)) == 2
    assert sorted(data_set.rglob("*")) == before
    assert (data_set / place).read_text() == theirs
