"""A submission to the contest is written only when nothing speaks against it, and then it stands
alone.
"""

import importlib
import re
import shutil
import tomllib
from pathlib import PurePath

import pytest
import torch
from flashinfer_bench import Solution
from moebench import cli
from moebench.core import paths
from moebench.core.errors import CannotRun
from moebench.operators.catalogue import definition
from moebench.packing import manifest, pack
from moebench.packing.flat import flatten
from moebench.submission import clean_build, contest
from packed_sources import packed_texts, write_texts
from recorded import NAME, RELAXED, record, workloads, write

CONTEST = {"tolerance": "contest: rtol=0.3 atol=1 ratio=0.9"}
INPUTS = ", ".join(definition("full").inputs)
MAIN = f"from .kernels.ones import ones\n\n\ndef run({INPUTS}, output):\n    ones(output)\n"
OURS = manifest.solutions_of(["full"])
TOKENS = [workload.axes["seq_len"] for workload in workloads(NAME)]


def packed(sources):
    """Return a solution of the first definition with these sources, by path."""
    spec = {
        "language": "python",
        "target_hardware": ["cpu", "sm_100"],
        "entry_point": "main.py::run",
    }
    listed = [{"path": path, "content": text} for path, text in sources.items()]
    return Solution(
        name="tiny", definition=NAME, author="tests", spec=spec, sources=listed
    )


ONES = "def ones(output):\n    output.fill_(1)\n"
TINY = packed({"main.py": MAIN, "kernels/ones.py": ONES})


def files(folder):
    """Return the content of each file below a folder."""
    contents = {}
    for path in folder.rglob("*"):
        if path.is_file():
            contents[path.relative_to(folder).as_posix()] = path.read_bytes()
    return contents


# What proves a solution


@pytest.fixture
def built(monkeypatch):
    """A clean build that finds nothing wrong, in no time."""
    monkeypatch.setattr(clean_build, "build", lambda *_: ["built"])


@pytest.fixture
def unproven(built, tmp_path):
    """The token counts that these traces leave without a pass, as the one objection says."""

    def tokens(traces):
        file = write(tmp_path / "t.jsonl", traces)
        objections = contest.objections(TINY, tmp_path, [file], "sm_100")
        if not objections:
            return []
        (line,) = objections
        listed = re.search("T=(.*?);", line)[1]
        return [int(count) for count in listed.split(", ")]

    return tokens


def test_a_complete_record_proves_a_solution(unproven):
    assert unproven(record(TINY, **CONTEST)) == []


def test_a_run_of_older_source_or_at_an_easier_tolerance_proves_nothing(unproven):
    right = record(TINY, **CONTEST)
    old = record(TINY, sha1="0123456789", **CONTEST)
    assert unproven(old) == TOKENS
    assert unproven(record(TINY, tolerance=RELAXED)) == TOKENS
    assert unproven(old + right) == []


def test_runs_spread_over_machines_prove_the_one_with_the_most(unproven):
    first = record(TINY, hardware="one", **CONTEST)[:10]
    rest = record(TINY, hardware="other", **CONTEST)[10:]
    assert unproven([*first, *rest]) == TOKENS[10:]


def test_the_newest_run_of_a_workload_counts(unproven):
    right = record(TINY, **CONTEST)
    failed = record(TINY, status="RUNTIME_ERROR", day="2026-02-01", **CONTEST)
    all_but_one = right[:-1]
    assert unproven(all_but_one) == TOKENS[-1:]
    assert unproven([*all_but_one, failed[-1]]) == TOKENS[-1:]
    assert unproven([*right, failed[0]]) == TOKENS[:1]


# What the kit's layout changes


@pytest.mark.parametrize("name", OURS)
def test_our_solutions_stay_what_they_are_in_a_single_folder(name):
    """The kit's packing drops folders, so files move up; only what imports them may change."""
    sources = packed_texts(name, "full")
    flat = flatten(name, sources)
    assert len(flat) == len(sources)
    assert not any("/" in path for path in flat)

    for path, text in sources.items():
        moved = flat[PurePath(path).name]
        for old, new in zip(text.splitlines(), moved.splitlines(), strict=True):
            if old != new:
                assert old.strip().startswith("from .")
                assert new.strip().startswith("from .")


def test_two_files_of_one_name_are_refused():
    with pytest.raises(manifest.PackingError, match="main.py"):
        flatten("tiny", {"main.py": MAIN, "kernels/main.py": ""})


@pytest.fixture
def alone(tmp_path):
    """What the clean build makes of sources, in a process of its own: lines of what was done."""

    def build(sources, hardware="sm_100"):
        bundle = tmp_path / "bundle"
        shutil.rmtree(bundle, ignore_errors=True)
        contest.write(packed(sources), bundle)
        return clean_build.build(bundle, NAME, hardware)

    return build


IMPORTS_OF_EVERY_FORM = f"""from .kernels import ones; from .kernels import twos
from .kernels import twos; from .kernels.twos import (
    two,
)


def run({INPUTS}, output):
    output.fill_(ones.ONE + two() + twos.two())
"""
TWOS = "def two():\n    from ..kernels.ones import ONE\n\n    return 2 * ONE\n"


def test_imports_of_every_form_follow_the_move(tmp_path, monkeypatch):
    sources = {
        "main.py": IMPORTS_OF_EVERY_FORM,
        "kernels/ones.py": "ONE = 1\n",
        "kernels/twos.py": TWOS,
    }
    flat = flatten("tiny", sources)
    assert "import twos; from .twos import (" in flat["main.py"]
    assert "from .ones import ONE" in flat["twos.py"]

    write_texts(tmp_path / "moved_up", flat)
    monkeypatch.syspath_prepend(tmp_path)
    output = torch.zeros(1)
    importlib.import_module("moved_up.main").run(*[None] * 10, output)
    assert output == 1 + 2 + 2


# Where it is built

LOOKS_AROUND = """
import importlib.util, os, pathlib

VARIABLES = ("PYTHONPATH", "CPATH", "CPLUS_INCLUDE_PATH", "NVCC_APPEND_FLAGS")
PACKAGES = ("moebench", "definitions", "solutions")
seen = [name for name in PACKAGES if importlib.util.find_spec(name)]
seen += [name for name in VARIABLES if name in os.environ]
for folder in (pathlib.Path(), pathlib.Path.home()):
    seen += [str(path) for path in folder.iterdir() if path.name != ".triton"]
raise RuntimeError(f"sees {seen}")
"""
PASS = "def run(*args):\n    pass\n"
PRINTS_AT_EXIT = (
    "import atexit\n\natexit.register(print, 'no result of the build')\n\n\n"
)


@pytest.mark.slow
def test_a_clean_build_sees_nothing_of_this_machine(alone, tmp_path, monkeypatch):
    """Not PYTHONPATH, compilers' search paths, home, the current folder, an editable install."""
    (tmp_path / "note").write_text("here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{paths.ROOT}:{paths.ROOT / 'scripts'}")
    for name in ("CPATH", "CPLUS_INCLUDE_PATH", "NVCC_APPEND_FLAGS"):
        monkeypatch.setenv(name, f"-I{paths.SOLUTIONS}")

    with pytest.raises(CannotRun, match=r"sees \[\]$"):
        alone({"main.py": LOOKS_AROUND + PASS})
    with pytest.raises(CannotRun, match="import of moebench halted"):
        alone({"main.py": "import moebench\n\n\n" + PASS})


@pytest.mark.slow
def test_what_is_printed_later_is_no_result_of_a_build(alone):
    assert len(alone({"main.py": PRINTS_AT_EXIT + PASS})) == 2


def test_a_build_that_ends_early_is_no_build(alone):
    leaves = "import os\n\nos.write(1, b'last words \\xff')\nos._exit(0)\n"
    with pytest.raises(CannotRun, match="last words"):
        alone({"main.py": leaves})


# What is compiled

CU = "#include <cuda_runtime.h>\n__global__ void fill(float* out) { out[threadIdx.x] = 1; }\n"
LOAD = """from pathlib import Path
import tvm_ffi.cpp


def load_kernels():
    return tvm_ffi.cpp.load("tiny", cuda_files=[str(Path(__file__).parent / "fill.cu")])
"""
COMPILING = f"from .build import load_kernels\n\n\ndef run({INPUTS}, output):\n    load_kernels()\n"


@pytest.mark.skipif(
    torch.cuda.is_available() or not shutil.which("nvcc"),
    reason="needs nvcc and no GPU",
)
@pytest.mark.slow
def test_cuda_sources_are_really_compiled(alone):
    without_header = {
        "main.py": COMPILING,
        "build.py": LOAD,
        "fill.cu": f'{CU}#include "mine.cuh"\n',
    }
    complete = without_header | {"mine.cuh": "// here\n"}
    assert "nvcc" in alone(complete, "sm_100")[1]

    with pytest.raises(CannotRun, match="nvcc fatal .*compute_70"):
        alone(complete, "sm_70")
    with pytest.raises(CannotRun, match="fatal error: mine.cuh"):
        alone(without_header, "sm_100")


@pytest.mark.slow
def test_a_triton_solution_builds_alone(tmp_path, monkeypatch):
    """With its table, as the kit packs no data files."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    bundle = tmp_path / "b"
    submitted = contest.write(pack.pack("triton_fused_v2")["full"], bundle)

    sources = {source.path: source.content for source in submitted.sources}
    assert "e32_h7168_i2048" in sources["tiles.csv.h"]
    assert 'with_name("tiles.csv.h")' in sources["tiles.py"]
    assert len(clean_build.build(bundle, NAME, "sm_100")) == 2


# What is written, and what stays


@pytest.fixture
def submit(built, capsys):
    """Run moebench submit to the contest, without building: exit status, output, errors."""

    def run(*args):
        status = cli.main(["submit", *map(str, args)])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def submitted(tmp_path, submit):
    """Submit a solution, with traces that prove it, to tmp_path/out: the same three."""

    def run(name):
        traces = record(pack.pack(name)["full"], hardware="NVIDIA B200", **CONTEST)
        file = write(tmp_path / "t.jsonl", traces)
        return submit(name, "--into", tmp_path / "out", "--traces", file)

    return run


def test_a_second_submission_replaces_the_first(tmp_path, submitted):
    for name in ("torch_moe", "triton_fused_v2"):
        status, output, _ = submitted(name)
        assert status == 0
        assert all(text in output for text in ("19 of 19", "NVIDIA B200", "sm_100"))

        contest.write(pack.pack(name)["full"], tmp_path / name)
        assert files(tmp_path / "out") == files(tmp_path / name)


def test_an_attempt_that_was_cut_off_is_made_again(tmp_path, submitted):
    assert submitted("triton_fused_v2")[0] == 0
    (tmp_path / "out" / contest.PACKED).unlink()
    assert submitted("triton_fused_v2")[0] == 0
    assert (tmp_path / "out" / contest.PACKED).exists()


@pytest.mark.parametrize("path", ["solution/triton/main.py", "solution/NOTES.md"])
def test_what_was_edited_by_hand_stays(tmp_path, submitted, path):
    assert submitted("triton_fused_v2")[0] == 0
    (tmp_path / "out" / path).write_text("mine")

    status, _, errors = submitted("triton_fused_v2")
    assert status == 2
    assert path in errors
    assert files(tmp_path / "out")[path] == b"mine"


def test_a_submission_of_somebody_else_stays(tmp_path, submit):
    (tmp_path / "solution").mkdir()
    status, _, errors = submit("triton_fused_v2", "--into", tmp_path)
    assert status == 2
    assert "solution" in errors
    assert files(tmp_path) == {}


def test_another_definition_is_submitted_alone(tmp_path, submit):
    solution = pack.pack("triton_fused_v2")["qwen3-30b"]
    out = tmp_path / "out"
    traces = write(tmp_path / "t.jsonl", record(solution, **CONTEST))
    options = ["--definition", solution.definition, "--into", out, "--traces", traces]
    status, output, _ = submit("triton_fused_v2", *options)
    assert status == 0
    assert "12 of 12" in output

    config = tomllib.loads((out / "config.toml").read_text())
    assert config["solution"]["definition"] == solution.definition
    assert config["build"]["entry_point"] == "main.py::run_renorm"
    problem = (out / "solution" / "triton" / "problem.py").read_text()
    assert "HIDDEN_SIZE = 2048" in problem


def test_all_reasons_come_at_once_and_nothing_is_written(tmp_path, submit, monkeypatch):
    def build(*_):
        raise CannotRun("it does not")

    monkeypatch.setattr(clean_build, "build", build)
    solution = pack.pack("triton_fused_v2")["full"]
    current = record(solution, **CONTEST)[:3]
    stale = record(solution, sha1="0", **CONTEST)[3:]
    traces = write(tmp_path / "t.jsonl", [*current, *stale])
    with traces.open("a") as file:
        file.write('{"cut off')

    out = tmp_path / "out"
    options = ["--into", out, "--traces", traces, "--hardware", "sm_80"]
    status, output, _ = submit("triton_fused_v2", *options)
    assert status == 1
    assert not out.exists()

    reasons = [line for line in output.splitlines() if line.startswith("- ")]
    assert len(reasons) == 3
    assert "sm_80" in reasons[0]
    assert "16 of 19" in reasons[1]
    assert reasons[2] == "- it does not"
    assert "t.jsonl:20" in output


BAD_ARGUMENTS = {  # -> what the error names
    "nothing": "'nothing'",
    "torch_mxfp8_emulated": "--definition",
    "triton_fused_v2 --definition full small": "--definition",
    "triton_fused_v2 --baseline torch_moe": "--baseline",
    "triton_fused_v2 --to dataset --baseline triton_fused_v2": "--baseline",
    "triton_fused_v2 --hardware cpu": "--hardware",
    "triton_fused_v2 --traces gone.jsonl": "gone.jsonl",
    f"triton_fused_v2 --into {paths.ROOT}": "--into",
}


@pytest.mark.parametrize("arguments", BAD_ARGUMENTS)
def test_bad_arguments_get_one_line(tmp_path, arguments, refusal):
    status, line = refusal("submit", "--into", tmp_path / "out", *arguments.split())
    assert status == 2
    assert BAD_ARGUMENTS[arguments] in line
    assert not (tmp_path / "out").exists()


@pytest.mark.gpu
@pytest.mark.parametrize("name", OURS)
def test_a_submission_runs_from_its_bundle_alone(tmp_path, name):
    solution = pack.pack(name)["full"]
    major, minor = torch.cuda.get_device_capability()
    if f"sm_{major}{minor}" not in solution.spec.target_hardware:
        pytest.skip(f"{name} does not run here")

    contest.write(solution, tmp_path / "b")
    done = clean_build.build(tmp_path / "b", NAME, "sm_100")
    assert torch.cuda.get_device_name() in done[-1]
