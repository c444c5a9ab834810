"""A pull request to a FIB data set: what FIB reads of it, which traces go along, and whose files
stay as they are.
"""

import json
import os
import subprocess
import sys

import pytest
from moebench import cli
from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.operators.catalogue import definition, definition_name
from moebench.packing import pack
from moebench.submission import pull_request
from recorded import DEFAULT, record, write

MAIN = os.environ.get("FIB_MAIN", "")
NEEDS_MAIN = pytest.mark.skipif(
    not MAIN, reason="needs FIB's main branch: set FIB_MAIN to a checkout"
)
NAME, VALIDATE = definition_name("bf16"), pull_request.validate
OURS, OTHER = (pack.pack(name)["bf16"] for name in ("gather_scatter_bf16", "torch_grouped_bf16"))
SOLUTION = f"solutions/{OURS.author}/moe/{NAME}/{OURS.name}.json"
TRACES = f"traces/{OURS.author}/moe/{NAME}.jsonl"
READ = """
import json, sys
from flashinfer_bench import TraceSet
read = TraceSet.from_path(sys.argv[1])
solutions = {name: [each.author for each in of] for name, of in read.solutions.items()}
print(json.dumps([[*read.definitions], solutions, {name: len(of) for name, of in read.traces.items()}]))
"""


@pytest.fixture
def submit(tmp_path, monkeypatch, capsys):
    """moebench submit --to dataset, into tmp_path/set: (exit status, output, errors)."""
    monkeypatch.delenv("FIB_MAIN", raising=False)
    monkeypatch.setattr(pull_request, "validate", lambda *_: "")  # a process of seconds

    def run(traces, *args):
        command = [
            "submit",
            "gather_scatter_bf16",
            "--to",
            "dataset",
            "--definition",
            "bf16",
            "--traces",
        ]
        command += [
            str(write(tmp_path / "t.jsonl", traces)),
            "--into",
            str(tmp_path / "set"),
            *args,
        ]
        return cli.main(command), *capsys.readouterr()

    return run


def of_traces(path):
    """Solution and machine of each trace in a file, sorted."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted(
        (each["solution"], each["evaluation"]["environment"]["hardware"]) for each in found
    )


@pytest.mark.parametrize("main", ["", pytest.param(MAIN, marks=NEEDS_MAIN)])
def test_both_versions_of_fib_read_it(main, submit, tmp_path, monkeypatch):
    """A user would miss: a pull request that FIB cannot load, or that its validate objects to."""
    monkeypatch.setenv("FIB_MAIN", main)
    monkeypatch.setattr(pull_request, "validate", VALIDATE)
    status, said, _ = submit([*record(OURS), *record(OTHER)], "--baseline", "torch_grouped_bf16")
    assert status == 0 and ("[OK]" in said or not main) and "baseline: " + OTHER.name in said
    assert (tmp_path / "set" / f"{OURS.name}.pull_request.md").read_text() in said
    env = os.environ | {"PYTHONPATH": main}
    read = subprocess.run(
        [sys.executable, "-c", READ, tmp_path / "set"], env=env, capture_output=True, text=True
    )
    assert json.loads(read.stdout) == [[NAME], {NAME: ["baseline", OURS.author]}, {NAME: 20}], (
        read.stderr
    )
    if main:  # a solution that is gone
        write(tmp_path / "set" / TRACES, [record(OTHER)[0].model_copy(update={"solution": "gone"})])
        assert submit(record(OURS))[0] == 1


def test_which_traces_go_along(submit, tmp_path):
    """A user would miss: figures of another source, of a quick or untimed run; and another
    solution's, lost.
    """
    right, failed = record(OURS), record(OURS, hardware="B200", status="RUNTIME_ERROR")
    stale = record(OURS, hardware="old", sha1="0")
    left_out = [*record(OURS, tolerance=DEFAULT), *record(OURS, hardware="untimed", ms=0), *stale]
    assert submit([*right, *failed, *left_out])[0] == 0
    traces = tmp_path / "set" / TRACES
    assert of_traces(traces) == 10 * [(OURS.name, "B200")] + 10 * [(OURS.name, "NVIDIA H200")]
    write(traces, [*record(OTHER), *stale, *right[:3]])
    assert submit(right[3:5])[0] == 0
    assert of_traces(traces) == 5 * [(OURS.name, "NVIDIA H200")] + 10 * [
        (OTHER.name, "NVIDIA H200")
    ]


def test_what_the_data_set_has_stays(submit, tmp_path):
    """A user would miss: their definition, workloads or baseline, replaced by ours; FIB wants one
    baseline.
    """
    root, baseline = tmp_path / "set", f"solutions/baseline/moe/{NAME}/theirs.json"
    files = {f"definitions/moe/{NAME}.json": definition("bf16").model_dump_json(), baseline: "{}"}
    files[f"workloads/moe/{NAME}.jsonl"] = paths.workload_file(NAME).read_text().splitlines()[0]
    for path, text in files.items():
        write_atomically(root / path, text)
    status, said, _ = submit(record(OURS), "--baseline", "torch_grouped_bf16")
    assert (
        status == 0
        and "baseline: theirs" in said
        and {path: (root / path).read_text() for path in files} == files
    )
    assert not (root / TRACES).exists() and not list(
        root.rglob(f"{OTHER.name}.json")
    )  # of other tensors
    write(root / TRACES, record(OURS, protocol="once dataset=set")[:1])
    assert submit(record(OURS))[0] == 0 and len(of_traces(root / TRACES)) == 1
    other = definition("bf16_small").model_dump_json().replace(definition_name("bf16_small"), NAME)
    (root / "definitions" / "moe" / f"{NAME}.json").write_text(other)
    assert submit(record(OURS))[0] == 2


@pytest.mark.parametrize("where", [f"solutions/theirs/moe/x/{OURS.name}.json", SOLUTION, "readme"])
def test_no_file_of_anybody_else_is_overwritten(where, submit, tmp_path):
    """A user would miss: somebody else's solution of this name, of which FIB wants one, or a folder
    of their own.
    """
    theirs = OURS.model_copy(update={"author": "theirs"}).model_dump_json()
    write_atomically(tmp_path / "set" / where, theirs)
    (tmp_path / "set" / ("definitions" if where != "readme" else "x")).mkdir()
    before = sorted((tmp_path / "set").rglob("*"))
    assert submit(record(OURS))[0] == 2 and sorted((tmp_path / "set").rglob("*")) == before
    assert (tmp_path / "set" / where).read_text() == theirs
