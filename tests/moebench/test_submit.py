"""A submission to the contest is written only when nothing speaks against it, and then it stands
alone.
"""

import re
import shutil
import tomllib

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
from recorded import NAME, RELAXED, record, workloads, write

CONTEST = {"tolerance": "contest: rtol=0.3 atol=1 ratio=0.9"}
INPUTS = ", ".join(definition("full").inputs)
MAIN = f"from .kernels.ones import ones\n\n\ndef run({INPUTS}, output):\n    ones(output)\n"
OURS = [name for name in manifest.solution_names() if "full" in pack.pack(name)]


def packed(sources):
    spec = {
        "language": "python",
        "target_hardware": ["cpu", "sm_100"],
        "entry_point": "main.py::run",
    }
    listed = [{"path": path, "content": text} for path, text in sources.items()]
    return Solution(name="tiny", definition=NAME, author="tests", spec=spec, sources=listed)


TINY = packed({"main.py": MAIN, "kernels/ones.py": "def ones(output):\n    output.fill_(1)\n"})


def unproven(traces, tmp_path):
    """The token counts without a pass, as the one objection says, or none."""
    (said,) = contest.objections(
        TINY, tmp_path, [write(tmp_path / "t.jsonl", traces)], "sm_100"
    ) or ["T=;"]
    return [int(count) for count in re.search("T=(.*?);", said)[1].split(", ") if count]


@pytest.fixture
def built(monkeypatch):
    """A clean build that finds nothing wrong, in no time."""
    monkeypatch.setattr(clean_build, "build", lambda *_: ["built"])


def test_a_complete_record_proves_a_solution(built, tmp_path):
    """Runs of an older source, at an easier tolerance or spread over machines prove nothing; the
    newest count.
    """
    right, old = record(TINY, **CONTEST), record(TINY, sha1="0123456789", **CONTEST)
    assert unproven(right, tmp_path) == unproven(old + right, tmp_path) == []
    everything = [each.axes["seq_len"] for each in workloads(NAME)]
    assert (
        unproven(record(TINY, tolerance=RELAXED), tmp_path) == unproven(old, tmp_path) == everything
    )
    spread = [
        *record(TINY, hardware="one", **CONTEST)[:10],
        *record(TINY, hardware="other", **CONTEST)[10:],
    ]
    assert unproven(spread, tmp_path) == everything[10:]
    first, *_, last = record(TINY, status="RUNTIME_ERROR", day="2026-02-01", **CONTEST)
    assert unproven(right[:-1], tmp_path) == unproven([*right[:-1], last], tmp_path) == [14107]
    assert unproven([*right, first], tmp_path) == [1]


@pytest.mark.parametrize("name", OURS)
def test_our_solutions_stay_what_they_are_in_a_single_folder(name):
    """The kit's packing drops folders, so files move up; only what imports them may change."""
    sources = {s.path: s.content for s in pack.pack(name)["full"].sources}
    flat = flatten(name, sources)
    assert len(flat) == len(sources) and not any("/" in path for path in flat)
    for path, text in sources.items():
        before, after = text.splitlines(), flat[path.rpartition("/")[2]].splitlines()
        changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
        assert all(
            old.strip().startswith("from .") and new.strip().startswith("from .")
            for old, new in changed
        )


def test_two_files_of_one_name_are_refused():
    with pytest.raises(manifest.PackingError, match="main.py"):
        flatten("tiny", {"main.py": MAIN, "kernels/main.py": ""})


@pytest.fixture
def alone(tmp_path):
    """What the clean build makes of sources, in a process of its own: lines of what was done."""

    def build(sources, hardware="sm_100"):
        shutil.rmtree(tmp_path / "bundle", ignore_errors=True)
        contest.write(packed(sources), tmp_path / "bundle")
        return clean_build.build(tmp_path / "bundle", NAME, hardware)

    return build


def test_imports_of_every_form_follow_the_move(alone):
    sources = {
        "main.py": f"from .kernels import ones; from .kernels import twos; from .kernels.twos import (\n    two,\n)\n\n"
        "import atexit\n\natexit.register(print, 'which is no result of the build')\n\n\n"
        f"def run({INPUTS}, output):\n    output.fill_(ones.ONE + two() + twos.two())\n",
        "kernels/ones.py": "ONE = 1\n",
        "kernels/twos.py": "def two():\n    from ..kernels.ones import ONE\n\n    return 2 * ONE\n",
    }
    flat = flatten("tiny", sources)
    assert (
        "import twos; from .twos import (" in flat["main.py"]
        and "from .ones import ONE" in flat["twos.py"]
    )
    assert len(alone(sources)) == 2


# Where it is built

LOOKS_AROUND = """
import importlib.util, os, pathlib

seen = [name for name in ("moebench", "definitions", "solutions") if importlib.util.find_spec(name)]
seen += [name for name in ("PYTHONPATH", "CPATH", "CPLUS_INCLUDE_PATH", "NVCC_APPEND_FLAGS") if name in os.environ]
seen += [str(path) for path in (*pathlib.Path().iterdir(), *pathlib.Path.home().iterdir()) if path.name != ".triton"]
raise RuntimeError(f"sees {seen}")
"""


def test_a_clean_build_sees_nothing_of_this_machine(alone, tmp_path, monkeypatch):
    """PYTHONPATH, compilers' search paths, home, the current folder and an editable installation
    must not help.
    """
    (tmp_path / "note").write_text("here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{paths.ROOT}:{paths.ROOT / 'scripts'}")
    for name in ("CPATH", "CPLUS_INCLUDE_PATH", "NVCC_APPEND_FLAGS"):
        monkeypatch.setenv(name, f"-I{paths.SOLUTIONS}")
    with pytest.raises(CannotRun, match=r"sees \[\]$"):
        alone({"main.py": LOOKS_AROUND + "def run(*args):\n    pass\n"})
    with pytest.raises(CannotRun, match="import of moebench halted"):
        alone({"main.py": "import moebench\n\n\ndef run(*args):\n    pass\n"})
    with pytest.raises(CannotRun, match="ended without a result: last words"):
        alone({"main.py": "import os\n\nos.write(1, b'last words \\xff')\nos._exit(0)\n"})


# What is compiled

CU = "#include <cuda_runtime.h>\n__global__ void fill(float* out) { out[threadIdx.x] = 1; }\n"
LOAD = """from pathlib import Path
import tvm_ffi.cpp


def load_kernels():
    return tvm_ffi.cpp.load("tiny", cuda_files=[str(Path(__file__).parent / "fill.cu")])
"""
COMPILING = f"from .build import load_kernels\n\n\ndef run({INPUTS}, output):\n    load_kernels()\n"


@pytest.mark.skipif(
    torch.cuda.is_available() or not shutil.which("nvcc"), reason="needs nvcc and no GPU"
)
@pytest.mark.slow
def test_cuda_sources_are_really_compiled(alone):
    """A user would miss: a header that was left behind, found out on the evaluation machine."""
    sources = {"main.py": COMPILING, "build.py": LOAD, "fill.cu": f'{CU}#include "mine.cuh"\n'}
    for hardware in ("sm_89", "sm_100"):
        assert "nvcc" in alone(sources | {"mine.cuh": "// here\n"}, hardware)[1]
    for hardware, fault in (
        ("sm_70", "nvcc fatal .*compute_70"),
        ("sm_100", "fatal error: mine.cuh"),
    ):
        with pytest.raises(CannotRun, match=fault):
            alone(sources, hardware)


@pytest.fixture
def submit(built, capsys):
    """moebench submit to the contest, without building: (exit status, output, errors)."""
    return lambda *args: (cli.main(["submit", *args]), *capsys.readouterr())


def files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_triton_solution_builds_alone(tmp_path, monkeypatch):
    """With its table, as the kit packs no data files."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    sources = {
        s.path: s.content
        for s in contest.write(pack.pack("triton_fused_v2")["full"], tmp_path / "b").sources
    }
    assert (
        "e32_h7168_i2048" in sources["tiles.csv.h"]
        and 'with_name("tiles.csv.h")' in sources["tiles.py"]
    )
    assert len(clean_build.build(tmp_path / "b", NAME, "sm_100")) == 2


def test_a_second_submission_replaces_the_first(tmp_path, submit):
    """A user would miss: a file that another solution left, and what they wrote in the folder
    themselves.
    """
    out = tmp_path / "the submission"
    for name, machine in (("torch_moe", "NVIDIA B200"), ("triton_fused_v2", "NVIDIA H200")):
        solution = pack.pack(name)["full"]
        traces = write(tmp_path / "t.jsonl", record(solution, hardware=machine, **CONTEST))
        args = name, "--into", str(out), "--traces", str(traces)
        status, said, _ = submit(*args)
        assert status == 0 and "19 of 19" in said and machine in said and "sm_100" in said
        contest.write(solution, tmp_path / name)
        assert files(out) == files(tmp_path / name)
    (out / contest.PACKED).unlink()
    assert submit(*args)[0] == 0, (
        "an attempt that was cut off, on a full disk for instance, is made again"
    )
    for path in ("triton/main.py", "NOTES.md"):
        (out / "solution" / path).write_text("mine")
        status, _, errors = submit(*args)
        assert (
            status == 2
            and f"{path} is new or edited" in errors
            and files(out)[f"solution/{path}"] == b"mine"
        )


def test_another_definition_is_submitted_alone(tmp_path, submit):
    """A user would miss: a submission of Qwen3's layer with the first definition's name, sizes or
    inputs.
    """
    solution, out = pack.pack("triton_fused_v2")["qwen3-30b"], tmp_path / "out"
    traces = write(tmp_path / "t.jsonl", record(solution, **CONTEST))
    given = ["--into", str(out), "--traces", str(traces)]
    status, said, _ = submit("triton_fused_v2", "--definition", solution.definition, *given)
    assert status == 0 and "12 of 12" in said, said
    config = tomllib.loads((out / "config.toml").read_text())
    assert config["solution"]["definition"] == solution.definition
    assert config["build"]["entry_point"] == "main.py::run_renorm"
    assert "HIDDEN_SIZE = 2048" in (out / "solution" / "triton" / "problem.py").read_text()


def test_a_submission_of_somebody_else_stays(tmp_path, submit):
    """A user would miss: the kit's own example in their clone, or their solution, overwritten."""
    (tmp_path / "solution").mkdir()
    status, _, errors = submit("triton_fused_v2", "--into", str(tmp_path))
    assert status == 2 and "solution" in errors and files(tmp_path) == {}


def test_all_reasons_come_at_once_and_nothing_is_written(tmp_path, submit, monkeypatch):
    def build(*_):
        raise CannotRun("it does not")

    monkeypatch.setattr(clean_build, "build", build)
    solution = pack.pack("triton_fused_v2")["full"]
    traces = write(
        tmp_path / "t.jsonl",
        record(solution, **CONTEST)[:3] + record(solution, sha1="0", **CONTEST)[3:],
    )
    with traces.open("a") as file:
        file.write('{"cut off')
    into = "--into", str(tmp_path / "out")
    status, said, _ = submit(
        "triton_fused_v2", *into, "--traces", str(traces), "--hardware", "sm_80"
    )
    assert status == 1 and not (tmp_path / "out").exists()
    reasons = [line for line in said.splitlines() if line.startswith("- ")]
    assert len(reasons) == 3 and "t.jsonl:20" in said
    assert "sm_80" in reasons[0] and "16 of 19" in reasons[1] and reasons[2] == "- it does not"


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["nothing"], "'nothing'"),
        (["torch_mxfp8_emulated"], "--definition"),
        (["triton_fused_v2", "--definition", "full", "small"], "--definition"),
        (["triton_fused_v2", "--baseline", "torch_moe"], "--baseline"),
        (["triton_fused_v2", "--hardware", "cpu"], "--hardware"),
        (["triton_fused_v2", "--traces", "gone.jsonl"], "gone.jsonl"),
        (["triton_fused_v2", "--into", str(paths.ROOT)], "--into"),
    ],
)
def test_bad_arguments_get_one_line(tmp_path, args, named, submit):
    status, _, errors = submit("--into", str(tmp_path / "out"), *args)
    assert status == 2 and named in errors and not (tmp_path / "out").exists()


@pytest.mark.gpu
@pytest.mark.parametrize("name", OURS)
def test_a_submission_runs_from_its_bundle_alone(tmp_path, name):
    """A user would miss: a bundle that imports, and dies or gives nonsense at its first call."""
    solution = pack.pack(name)["full"]
    major, minor = torch.cuda.get_device_capability()
    if f"sm_{major}{minor}" not in solution.spec.target_hardware:
        pytest.skip(f"{name} does not run here")
    contest.write(solution, tmp_path / "b")
    assert torch.cuda.get_device_name() in clean_build.build(tmp_path / "b", NAME, "sm_100")[-1]
