"""What others have: FIB Solutions beside ours, and FIB data sets in place of ours.

Solutions and data sets are written to a folder; then a run is planned or made on them.
"""

from dataclasses import replace

import judged
import pytest
import torch
from flashinfer_bench import (
    AxisConst,
    AxisVar,
    Definition,
    Solution,
    TensorSpec,
    Trace,
    Workload,
)
from moebench import cli
from moebench.core import paths, provenance
from moebench.judging import dataset
from moebench.judging.plan import RunRequest
from moebench.judging.planning import plan_run
from moebench.operators.catalogue import definition
from moebench.packing import solution_files
from moebench.results import trace_files
from plain_solution import RIGHT, solution, source
from safetensors.torch import save_file

LAYER = definition("small")
X = TensorSpec(shape=["M", "N"], dtype="float32")
COUNT = TensorSpec(shape=["M", "N"], dtype="int32")
SUMS = "import torch\ndef run(x, y):\n    return x + y, (x - y).int()\n"
OTHER = Definition(
    name="sums_n8",
    op_type="sums",
    axes={"M": AxisVar(type="var"), "N": AxisConst(type="const", value=8)},
    inputs={"x": X, "y": X},
    outputs={"sum": X, "count": COUNT},
    reference=SUMS,
)


@pytest.fixture
def folder(tmp_path, monkeypatch, no_gpu):
    """A folder with solutions/mine, the only solution here."""
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path / "solutions")
    solution(tmp_path / "solutions", RIGHT, "mine")
    return tmp_path


def write(file, *models):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(model.model_dump_json() for model in models))


def third_party(
    folder, name, author="alice", code=None, definition=LAYER.name, returns=False
):
    """Return a Solution, and write it below theirs/ in the public data set's layout."""
    code = code or source(RIGHT)
    packed = Solution(
        name=name,
        author=author,
        definition=definition,
        spec={
            "language": "python",
            "target_hardware": ["LOCAL"],
            "entry_point": "main.py::run",
            "destination_passing_style": not returns,
        },
        sources=[{"path": "main.py", "content": code}],
    )
    below = folder / "theirs" / author / "moe" / definition
    write(below / f"{name}{len(code)}.json", packed)
    return packed


def data_set(root, full, *inputs):
    """Write a data set with this definition, and for each of these inputs a workload of three
    rows.
    """
    axes = {name: 3 for name, axis in full.axes.items() if axis.type == "var"}
    traces = []
    for number, each in enumerate(inputs):
        workload = Workload(axes=axes, inputs=each, uuid=f"w{number}")
        traces.append(Trace(definition=full.name, workload=workload))

    below = f"{full.op_type}/{full.name}"
    write(root / f"definitions/{below}.json", full)
    write(root / f"workloads/{below}.jsonl", *traces)
    return root


def test_each_is_evaluated_and_costs_the_others_nothing(folder, capsys):
    good = third_party(folder, "good")
    taken = third_party(folder, "mine", "bob")
    third_party(folder, "broken", "bob", "raise ValueError('no')")
    third_party(folder, "elsewhere", definition="gemm_n128_k2048")
    (folder / "theirs" / "notes.json").write_text("{}")

    arguments = [folder / "theirs", "--solutions", "mine", "--workloads", 16]
    status, traces = judged.recorded(folder, *arguments)

    assert status == 1
    renamed = f"mine_{taken.hash()[:8]}"
    by_name = {trace.solution: trace for trace in traces}
    statuses = {name: trace.evaluation.status.value for name, trace in by_name.items()}
    assert statuses == {
        "mine_h512_i256": "PASSED",
        "good": "PASSED",
        renamed: "PASSED",
        "broken": "COMPILE_ERROR",
    }
    assert provenance.of_trace(by_name["good"]).source_sha1 == good.hash()
    assert provenance.of_trace(by_name[renamed]).source_sha1 == taken.hash()
    shown = capsys.readouterr().out
    for name in ("elsewhere", "gemm_n128_k2048", "notes.json", "at broken/main.py:1"):
        assert name in shown


def test_names_and_logs_of_others_are_shown_and_not_obeyed(folder, capsys):
    code = source("raise ValueError('\\x1b[31m [bold]x[/]')")
    third_party(folder, "\x1b[2Jevil", code=code)
    command = [
        "run",
        str(folder / "theirs"),
        "--workloads",
        "16",
        "--verbose",
        "--no-save",
    ]

    assert cli.main(command) == 1
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\\x1b[2Jevil" in shown
    assert "\\x1b[31m [bold]x[/]" in shown


def test_this_repositorys_traces_are_of_its_own_solutions(folder, monkeypatch):
    passed = judged.evaluated(solution(folder / "packed", RIGHT)).trace.evaluation

    def run_workload(workload, solutions):
        return {packed.name: passed for packed in solutions}

    judged.stand_in(monkeypatch, run_workload)
    kept = folder / "kept.jsonl"
    monkeypatch.setattr(paths, "trace_file", lambda name, **_: kept)
    third_party(folder, "good")
    command = ["run", str(folder / "theirs"), "--workloads", "16", "--save"]

    assert cli.main(command) == 0
    assert not kept.exists()
    assert cli.main([*command, "--solutions", "mine"]) == 0
    (trace,) = trace_files.read_saved(kept)
    assert trace.solution == "mine_h512_i256"


def test_names_that_are_taken_are_told_apart_by_the_hash(folder):
    alices = third_party(folder, "good", "alice")
    bobs = third_party(folder, "good", "bob", "def run():\n    pass")
    third_party(folder, "good", "carol")  # a copy of alice's
    alone = third_party(folder, "alone")

    solutions, notes = solution_files.solutions_at([folder / "theirs"])

    hashes = {name: packed.hash() for name, packed in solutions.items()}
    assert hashes == {
        "alone": alone.hash(),
        f"good_{alices.hash()[:8]}": alices.hash(),
        f"good_{bobs.hash()[:8]}": bobs.hash(),
    }
    assert [packed.name for packed in solutions.values()] == list(solutions)
    assert len(notes) == 3


@pytest.fixture
def sums(folder):
    """A data set of an operator with two outputs: the tensor of a workload is there, of another it
    is gone, and of the third it is a pointer of Git LFS.
    """
    inputs = []
    for name in ("x", "gone", "lfs"):
        stored = {"type": "safetensors", "tensor_key": "x", "path": f"blob/{name}"}
        inputs.append({"x": stored, "y": {"type": "random"}})
    root = data_set(folder / "set", OTHER, *inputs)
    (root / "blob").mkdir()
    save_file({"x": torch.arange(24.0).reshape(3, 8)}, root / "blob" / "x")
    (root / "blob" / "lfs").write_text("version https://git-lfs.github.com/spec/v1\n")
    return root


def test_each_of_two_outputs_is_compared(folder, sums):
    wrong = SUMS.replace("int()", "int() + 1")
    third_party(folder, "right", code=SUMS, definition=OTHER.name, returns=True)
    third_party(folder, "wrong", code=wrong, definition=OTHER.name, returns=True)

    status, (right, wrong) = judged.recorded(
        folder, folder / "theirs", "--dataset", sums
    )

    assert status == 1
    assert right.solution == "right"
    assert wrong.solution == "wrong"
    assert right.workload.uuid == wrong.workload.uuid == "w0"
    assert right.evaluation.status.value == "PASSED"
    assert wrong.evaluation.status.value == "INCORRECT_NUMERICAL"
    assert "output count" in wrong.evaluation.log
    assert "dataset=set" in provenance.of_trace(right).protocol


def test_workloads_without_their_tensors_are_named(folder, sums, capsys):
    third_party(folder, "right", code=SUMS, definition=OTHER.name, returns=True)
    status, traces = judged.recorded(folder, folder / "theirs", "--dataset", sums)
    assert status == 0
    assert len(traces) == 1
    shown = capsys.readouterr().out
    for name in ("blob/gone", "blob/lfs", "M=3"):
        assert name in shown


def test_what_a_workload_lacks_is_named(tmp_path):
    stored = {"type": "safetensors", "tensor_key": "x", "path": "x.safetensors"}
    inputs = {"x": stored, "y": {"type": "random"}}
    workload = Workload(axes={"M": 3}, inputs=inputs, uuid="w")
    assert "x.safetensors" in dataset.why_not_loadable(OTHER, workload, tmp_path)

    save_file({"x": torch.zeros(300, 8)}, tmp_path / "x.safetensors")
    assert dataset.why_not_loadable(OTHER, workload, tmp_path) is None
    without_axes = workload.model_copy(update={"axes": {}})
    assert "M" in dataset.why_not_loadable(OTHER, without_axes, tmp_path)


@pytest.fixture
def plan_with(folder):
    """A function that plans a run on a data set whose definition is ours with changes; it returns
    the plan and the data set.
    """

    def plan(**changes):
        changed = LAYER.model_copy(update=changes)
        inputs = dict.fromkeys(LAYER.inputs, {"type": "random"})
        root = data_set(folder / "set", changed, inputs)
        planned = plan_run(RunRequest(dataset=root, save=True), judged.CPU)

        part = planned.parts[LAYER.name]
        assert part.definition == changed
        assert part.root == root
        assert part.path is None
        assert [task.names for task in part.tasks] == [("mine",)]
        return planned, root

    return plan


def test_another_description_of_our_definition_is_no_other_definition(plan_with):
    plan, _ = plan_with(description="x")
    assert plan.notes == ()


def test_another_reference_of_our_definition_is_evaluated_and_both_are_named(plan_with):
    plan, root = plan_with(reference=f"{LAYER.reference}\n")
    (note,) = plan.notes
    for name in (str(root), "definitions/moe/", "reference"):
        assert name in note


def test_each_third_party_solution_has_tasks_of_its_own(folder):
    third_party(folder, "one")
    third_party(folder, "two", "bob")
    request = RunRequest(
        files=(folder / "theirs",),
        solutions=("mine",),
        workloads=("16", "19"),
        output=folder,
    )
    (part,) = plan_run(request, judged.CPU).parts.values()

    names = ["mine", "mine", "one", "one", "two", "two"]
    assert [task.names for task in part.tasks] == [(name,) for name in names]
    assert part.third_party == {"one", "two"}
    assert set(part.ours_to_run) == {"mine"}
    assert all(part.keeps(task) for task in part.tasks)

    ours_alone = replace(part, keeps_third_party=False)
    is_kept = [ours_alone.keeps(task) for task in part.tasks]
    assert is_kept == [True, True, False, False, False, False]
