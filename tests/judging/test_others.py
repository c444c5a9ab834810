"""Solutions of others: FIB's JSON files, judged beside ours and kept apart from them."""

from contextlib import closing, nullcontext
from types import SimpleNamespace

import judged
import pytest
from flashinfer_bench import Solution
from harness import cli
from harness.core import paths, provenance
from harness.judging import fib, judge, plan
from harness.packing import files
from harness.results import trace_files
from plain_solution import RIGHT, solution, source

from definitions.moe_fp8_block_scale import definition_name

NAME = definition_name("small")


@pytest.fixture
def folder(tmp_path, monkeypatch, no_gpu):
    """With `mine`, the only solution here, and theirs/ in the public data set's layout."""
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path / "solutions")
    solution(tmp_path / "solutions", RIGHT, "mine", target_hardware=["cpu", "sm_90"])
    return tmp_path


def theirs(folder, name, author="alice", body=RIGHT, **changes):
    """The Solution that is in a file of theirs/."""
    spec = {"language": "python", "target_hardware": ["LOCAL"], "entry_point": "main.py::run"}
    known = {"definition": NAME, "spec": spec, "sources": [{"path": "main.py", "content": source(body)}]} | changes
    packed = Solution(name=name, author=author, **known)
    file = folder / "theirs" / author / "moe" / packed.definition / f"{name}{len(body)}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(packed.model_dump_json())
    return packed


def test_each_is_judged_and_costs_the_others_nothing(folder, capsys):
    """A user would miss: their own solution's result, for a file in the folder that does not build or is none."""
    good, taken = theirs(folder, "good"), theirs(folder, "mine", "bob")
    theirs(folder, "broken", "bob", "pass\n\nraise ValueError('no')")
    theirs(folder, "elsewhere", definition="gemm_n128_k2048")
    (folder / "theirs" / "notes.json").write_text("{}")
    output = folder / "traces.jsonl"
    few = ["--solutions", "mine", "--workloads", "16", "--output", str(output)]
    assert cli.main(["run", str(folder / "theirs"), *few]) == 1
    found, said = {trace.solution: trace for trace in trace_files.load(output)}, capsys.readouterr().out
    renamed = f"mine_{taken.hash()[:8]}"
    passed = dict.fromkeys(("mine_h512_i256", "good", renamed), "PASSED")
    assert {name: t.evaluation.status.value for name, t in found.items()} == passed | {"broken": "COMPILE_ERROR"}
    for name, packed in (("good", good), (renamed, taken)):
        assert provenance.of_trace(found[name]).source_sha1 == packed.hash()
    assert all(name in said for name in ("elsewhere", "gemm_n128_k2048", "notes.json", "at broken/main.py:"))


def test_this_repositorys_traces_are_of_its_own_solutions(folder, monkeypatch):
    """A user would miss: traces/ as it was; and beside a file nobody who was not named."""
    passed = judged.verdict(solution(folder / "packed", RIGHT)).trace.evaluation
    judged.stand_in(monkeypatch, lambda workload, found: {each.name: passed for each in found})
    monkeypatch.setattr(paths, "trace_file", lambda name, **_: folder / "kept.jsonl")
    theirs(folder, "good")
    command = ["run", str(folder / "theirs"), "--workloads", "16", "--save"]
    assert cli.main(command) == 0 and not (folder / "kept.jsonl").exists()
    assert cli.main([*command, "--solutions", "mine"]) == 0
    assert [trace.solution for trace in trace_files.load(folder / "kept.jsonl")] == ["mine_h512_i256"]


def test_names_that_are_taken_are_told_apart_by_the_hash(folder):
    one, other = theirs(folder, "good", "alice"), theirs(folder, "good", "bob", f"pass; {RIGHT}")
    theirs(folder, "good", "carol"), theirs(folder, "alone")
    found, said = files.named([folder / "theirs"])
    assert set(found) == {"alone", *(f"good_{packed.hash()[:8]}" for packed in (one, other))} and len(said) == 3
    assert {packed.name for packed in found.values()} == set(found)
    assert {packed.hash() for packed in found.values()} >= {one.hash(), other.hash()}


def test_on_a_gpu_each_has_a_worker_of_its_own(folder, monkeypatch):
    """A user would miss: why ours is slow or wrong, after somebody's code has changed torch in its process."""
    evaluation = judged.verdict(solution(folder / "packed", RIGHT)).trace.evaluation
    opened, here = [], provenance.here

    def run_workload(full, workload, found, *_):
        opened[-1].append(found[0].name)
        return {found[0].name: evaluation}

    def running(*_):
        opened.append([])
        return nullcontext(SimpleNamespace(run_workload=run_workload))

    monkeypatch.setattr(fib, "running", running)
    monkeypatch.setattr(judge, "device_here", lambda: "cuda:0")
    monkeypatch.setattr(provenance, "here", lambda device, **known: here("cpu", **known))
    for name in ("good", "other"):
        theirs(folder, name)
    args = cli.parse(["run", str(folder / "theirs"), "--solutions", "mine", "--definition", "small"])
    made = plan.plan_of(args, judged.GPU)
    with closing(judge.Judge(made)) as judging:
        assert all(judging(cell).passed for cell in made)
    assert [set(names) for names in opened] == [{"mine_h512_i256"}, {"good"}, {"other"}]


@pytest.mark.parametrize("given", ["gone.json", "empty"])
def test_a_file_that_is_not_there_is_named(folder, given, capsys):
    (folder / "empty").mkdir()
    assert cli.main(["run", str(folder / given)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert given in line


def test_what_is_for_another_definition_alone_is_named(folder, capsys):
    theirs(folder, "elsewhere", definition="gemm_n128_k2048")
    assert cli.main(["run", str(folder / "theirs")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "gemm_n128_k2048" in line
