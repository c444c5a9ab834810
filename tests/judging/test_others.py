"""What others have: FIB Solutions beside ours, and FIB data sets in place of ours."""

import judged
import pytest
import torch
from flashinfer_bench import AxisConst, AxisVar, Definition, Solution, TensorSpec, Trace, Workload
from moebench import cli
from moebench.core import paths, provenance
from moebench.judging import dataset
from moebench.judging.plan import plan_of
from moebench.operators.catalogue import definition
from moebench.packing import solution_files
from moebench.results import trace_files
from plain_solution import RIGHT, solution, source
from safetensors.torch import save_file

LAYER = definition("small")
SUMS = "import torch\ndef run(x, y):\n    return x + y, (x - y).int()\n"
ROWS = {"M": AxisVar(type="var"), "N": AxisConst(type="const", value=8)}
X, COUNT = (TensorSpec(shape=["M", "N"], dtype=dtype) for dtype in ("float32", "int32"))
OF_TWO = {"inputs": {"x": X, "y": X}, "outputs": {"sum": X, "count": COUNT}, "reference": SUMS}
OTHER = Definition(name="sums_n8", op_type="sums", axes=ROWS, **OF_TWO)


@pytest.fixture
def folder(tmp_path, monkeypatch, no_gpu):
    """With `mine`, the only solution here."""
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path / "solutions")
    solution(tmp_path / "solutions", RIGHT, "mine")
    return tmp_path


def written(file, *models):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(model.model_dump_json() for model in models))


def theirs(folder, name, author="alice", code=None, definition=LAYER.name, returns=False):
    """A Solution, which is in a file of theirs/ in the public data set's layout."""
    spec = {"language": "python", "target_hardware": ["LOCAL"], "entry_point": "main.py::run"}
    spec["destination_passing_style"] = not returns
    sources = [{"path": "main.py", "content": code or source(RIGHT)}]
    made = Solution(name=name, author=author, definition=definition, spec=spec, sources=sources)
    written(
        folder
        / "theirs"
        / author
        / "moe"
        / definition
        / f"{name}{len(sources[0]['content'])}.json",
        made,
    )
    return made


def data_set(root, full, *inputs):
    """With this definition, and for each of these inputs a workload of three rows."""
    axes = {name: 3 for name, axis in full.axes.items() if axis.type == "var"}
    loads = (Workload(axes=axes, inputs=given, uuid=f"w{at}") for at, given in enumerate(inputs))
    written(root / "definitions" / full.op_type / f"{full.name}.json", full)
    traces = (Trace(definition=full.name, workload=load) for load in loads)
    written(root / "workloads" / full.op_type / f"{full.name}.jsonl", *traces)
    return root


def test_each_is_judged_and_costs_the_others_nothing(folder, capsys):
    """A user would miss: their own solution's result, for a file in the folder that does not build
    or is none.
    """
    good, taken = theirs(folder, "good"), theirs(folder, "mine", "bob")
    theirs(folder, "broken", "bob", "raise ValueError('no')")
    theirs(folder, "elsewhere", definition="gemm_n128_k2048")
    (folder / "theirs" / "notes.json").write_text("{}")
    output = folder / "traces.jsonl"
    few = ["--solutions", "mine", "--workloads", "16", "--output", str(output)]
    assert cli.main(["run", str(folder / "theirs"), *few]) == 1
    found, renamed = (
        {trace.solution: trace for trace in trace_files.load(output)},
        f"mine_{taken.hash()[:8]}",
    )
    passed = dict.fromkeys(("mine_h512_i256", "good", renamed), "PASSED")
    assert {name: t.evaluation.status.value for name, t in found.items()} == passed | {
        "broken": "COMPILE_ERROR"
    }
    for name, packed in (("good", good), (renamed, taken)):
        assert provenance.of_trace(found[name]).source_sha1 == packed.hash()
    said = capsys.readouterr().out
    assert all(
        name in said
        for name in ("elsewhere", "gemm_n128_k2048", "notes.json", "at broken/main.py:1")
    )


def test_this_repositorys_traces_are_of_its_own_solutions(folder, monkeypatch):
    """A user would miss: traces/ as it was; and beside a file nobody who was not named."""
    passed = judged.evaluated(solution(folder / "packed", RIGHT)).trace.evaluation
    judged.stand_in(monkeypatch, lambda workload, found: {each.name: passed for each in found})
    monkeypatch.setattr(paths, "trace_file", lambda name, **_: folder / "kept.jsonl")
    theirs(folder, "good")
    command = ["run", str(folder / "theirs"), "--workloads", "16", "--save"]
    assert cli.main(command) == 0 and not (folder / "kept.jsonl").exists()
    assert cli.main([*command, "--solutions", "mine"]) == 0
    assert [trace.solution for trace in trace_files.load(folder / "kept.jsonl")] == [
        "mine_h512_i256"
    ]


def test_names_that_are_taken_are_told_apart_by_the_hash(folder):
    one, other = (
        theirs(folder, "good", "alice"),
        theirs(folder, "good", "bob", "def run():\n    pass"),
    )
    theirs(folder, "good", "carol"), theirs(folder, "alone")
    found, said = solution_files.named([folder / "theirs"])
    assert (
        set(found) == {"alone", *(f"good_{packed.hash()[:8]}" for packed in (one, other))}
        and len(said) == 3
    )
    assert all(packed.name == name for name, packed in found.items())
    assert {packed.hash() for packed in found.values()} >= {one.hash(), other.hash()}


def test_an_operator_of_two_outputs_and_the_tensors_that_are_there(folder, capsys):
    """A user would miss: the workloads whose tensors are there, for one that was not downloaded."""
    kept = {"type": "safetensors", "tensor_key": "x"}
    inputs = (
        {"x": kept | {"path": f"blob/{name}"}, "y": {"type": "random"}}
        for name in ("x", "gone", "lfs")
    )
    root, output = data_set(folder / "set", OTHER, *inputs), folder / "traces.jsonl"
    (root / "blob").mkdir()
    save_file({"x": torch.arange(24.0).reshape(3, 8)}, root / "blob" / "x")
    (root / "blob" / "lfs").write_text("version https://git-lfs.github.com/spec/v1\n")
    theirs(folder, "right", code=SUMS, definition=OTHER.name, returns=True)
    theirs(
        folder,
        "wrong",
        code=SUMS.replace("int()", "int() + 1"),
        definition=OTHER.name,
        returns=True,
    )
    assert (
        cli.main(["run", str(folder / "theirs"), "--dataset", str(root), "--output", str(output)])
        == 1
    )
    found = {
        (trace.solution, trace.workload.uuid): trace.evaluation
        for trace in trace_files.load(output)
    }
    assert {of: each.status.value for of, each in found.items()} == {
        ("right", "w0"): "PASSED",
        ("wrong", "w0"): "INCORRECT_NUMERICAL",
    }
    said = capsys.readouterr().out
    assert (
        all(name in said for name in ("blob/gone", "blob/lfs", "M=3"))
        and "output count" in found["wrong", "w0"].log
    )
    assert "dataset=set" in found["right", "w0"].environment.libs["protocol"]
    workload = trace_files.load(output)[0].workload
    assert dataset.lacking(OTHER, workload, root) is None
    assert dataset.lacking(OTHER, workload.model_copy(update={"axes": {}}), root)


def test_another_text_of_our_definition_is_judged_and_both_are_named(folder):
    """A user would miss: that their solution passed another reference than the one that is here."""
    inputs = {name: {"type": "random"} for name in LAYER.inputs}
    for changes, notes in (({"description": "x"}, 0), ({"reference": f"{LAYER.reference}\n"}, 1)):
        root = data_set(folder / "set", LAYER.model_copy(update=changes), inputs)
        made = plan_of(cli.parse(["run", "--dataset", str(root), "--save"]), judged.CPU)
        part = made.parts[LAYER.name]
        assert (part.full, part.root, part.path) == (LAYER.model_copy(update=changes), root, None)
        assert [cell.names for cell in part.cells] == [("mine",)] and len(made.notes) == notes
        assert all(
            str(root) in note and "definitions/moe/" in note and "reference" in note
            for note in made.notes
        )
