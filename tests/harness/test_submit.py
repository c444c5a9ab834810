"""A submission is written only when nothing speaks against it, and then it stands alone."""

import os
import shutil
import subprocess
import sys
import tomllib

import pytest
import torch
from flashinfer_bench import Correctness, Environment, Evaluation, Performance, Solution, Trace
from flashinfer_bench.data import load_jsonl_file
from harness import cli
from harness.core import paths
from harness.core.provenance import of_trace
from harness.judging.tolerances import TOLERANCES
from harness.operators.workloads import recorded
from harness.packing import manifest, pack
from harness.packing.flat import flatten
from harness.results import table
from harness.results.staleness import judge
from harness.results.summary import proven_on
from harness.submission import build_alone, bundle, clean_build, prepare

from definitions.moe_fp8_block_scale import definition, definition_name

NAME = definition_name("full")
INPUTS = ", ".join(definition("full").inputs)
MAIN = f"from .kernels.ones import ones\n\n\ndef run({INPUTS}, output):\n    ones(output)\n"
OURS = [name for name in manifest.solution_names() if "full" in pack.pack(name)]
compiles = pytest.mark.skipif(torch.cuda.is_available() or not shutil.which("nvcc"), reason="needs nvcc and no GPU")


def packed(sources):
    spec = {"language": "python", "target_hardware": ["cpu", "sm_100"], "entry_point": "main.py::run"}
    listed = [{"path": path, "content": text} for path, text in sources.items()]
    return Solution(name="tiny", definition=NAME, author="tests", spec=spec, sources=listed)


TINY = packed({"main.py": MAIN, "kernels/ones.py": "def ones(output):\n    output.fill_(1)\n"})


@pytest.fixture(scope="module")
def workloads():
    return [t.workload for t in load_jsonl_file(Trace, paths.workload_file(NAME))]


def record(solution, workloads, hardware="A GPU", sha1=None, tolerance="contest", timestamp="2026-01-01"):
    """A PASSED trace for each workload."""
    libs = {"solution_sha1": sha1 or solution.hash(), "tolerance": str(TOLERANCES[tolerance])}
    where = {"environment": Environment(hardware=hardware, libs=libs), "timestamp": timestamp}
    timed = Performance(latency_ms=1, speedup_factor=2, reference_latency_ms=2)
    ev = Evaluation(status="PASSED", correctness=Correctness(), performance=timed, **where)
    return [Trace(definition=NAME, workload=w, solution=solution.name, evaluation=ev) for w in workloads]


def failed(trace):
    where = {"environment": trace.evaluation.environment, "timestamp": trace.evaluation.timestamp}
    return trace.model_copy(update={"evaluation": Evaluation(status="RUNTIME_ERROR", **where)})


def save(path, traces):
    path.write_text("".join(f"{trace.model_dump_json()}\n" for trace in traces))
    return str(path)


def proven(traces, workloads):
    """(machine or None, the token counts without a pass)."""
    states = [judge(of_trace(trace), [TINY.hash()]) for trace in traces]
    rows = table.counting(table.of_traces(traces).assign(source=states)) if traces else None
    return proven_on(TINY, rows, workloads, "contest")


def test_a_complete_record_proves_a_solution(workloads):
    """Runs of an older source, at an easier tolerance or spread over machines prove nothing."""
    everything = [workload.axes["seq_len"] for workload in workloads]
    right, old = record(TINY, workloads), record(TINY, workloads, sha1="0123456789")
    assert proven(right, workloads) == proven(old + right, workloads) == ("A GPU", [])
    easier = record(TINY, workloads, tolerance="relaxed")
    assert proven([], workloads) == proven(easier, workloads) == proven(old, workloads) == (None, everything)
    spread = [*record(TINY, workloads[:10], hardware="one"), *record(TINY, workloads[10:], hardware="other")]
    assert proven(spread, workloads) == (None, everything[10:])


def test_a_workload_that_is_missing_or_failed_is_named(workloads):
    right, later = record(TINY, workloads), record(TINY, workloads[:1], timestamp="2026-02-01")
    assert proven(right[:-1], workloads) == proven([*right[:-1], failed(right[-1])], workloads) == (None, [14107])
    assert proven([*right, failed(*later)], workloads) == (None, [1]), "the newest counts"


@pytest.mark.parametrize("name", OURS)
def test_our_solutions_stay_what_they_are_in_a_single_folder(name):
    """The kit's packing drops folders, so files move up; only what imports them may change."""
    sources = {s.path: s.content for s in pack.pack(name)["full"].sources}
    flat = flatten(name, sources)
    assert len(flat) == len(sources) and not any("/" in path for path in flat)
    for path, text in sources.items():
        before, after = text.splitlines(), flat[path.rpartition("/")[2]].splitlines()
        changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
        assert all(old.strip().startswith("from .") and new.strip().startswith("from .") for old, new in changed)


def test_two_files_of_one_name_are_refused():
    with pytest.raises(manifest.PackingError, match="main.py"):
        flatten("tiny", {"main.py": MAIN, "kernels/main.py": ""})


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """What build_alone.py makes of sources, in this process, which it leaves as it was: lines of what was done."""
    import tvm_ffi.cpp

    for name in ("load", "load_inline"):
        monkeypatch.setattr(tvm_ffi.cpp, name, getattr(tvm_ffi.cpp, name))
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "10.0a")
    monkeypatch.setenv("TVM_FFI_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "fib"))
    if clean_build.TOOLKIT.is_dir():
        monkeypatch.setenv("CUDA_HOME", str(clean_build.TOOLKIT))
    shutil.copy(paths.definition_file(NAME), tmp_path / "definition.json")

    def build(sources=None):
        if sources:
            bundle.write(packed(sources), tmp_path / "bundle")
        return build_alone.build(tmp_path, "sm_100")

    return build


def test_imports_of_every_form_follow_the_move(alone):
    sources = {
        "main.py": f"from .kernels import ones, twos\nfrom .kernels.twos import (\n    two,\n)\n\n\n"
        f"def run({INPUTS}, output):\n    output.fill_(ones.ONE + two() + twos.two())\n",
        "kernels/ones.py": "ONE = 1\n",
        "kernels/twos.py": "def two():\n    from ..kernels.ones import ONE\n\n    return 2 * ONE\n",
    }
    flat = flatten("tiny", sources)
    assert "from . import ones, twos" in flat["main.py"] and "from .ones import ONE" in flat["twos.py"]
    assert len(alone(sources)) >= 2


# Where it is built

LOOKS_AROUND = """
import importlib.util, os, pathlib

seen = [name for name in ("harness", "definitions", "solutions") if importlib.util.find_spec(name)]
seen += [name for name in ("PYTHONPATH", "CPATH", "CPLUS_INCLUDE_PATH", "NVCC_APPEND_FLAGS") if name in os.environ]
seen += [str(path) for path in (*pathlib.Path().iterdir(), *pathlib.Path.home().iterdir()) if path.name != ".triton"]
raise RuntimeError(f"sees {seen}")
"""


def why_not_built(folder):
    with pytest.raises(clean_build.NotFit) as caught:
        clean_build.build(folder, NAME, "sm_100")
    return str(caught.value)


def test_a_clean_build_sees_nothing_of_this_machine(tmp_path, monkeypatch):
    """PYTHONPATH, compilers' search paths, home and the current folder must not help, as they fail where it counts."""
    (tmp_path / "note").write_text("here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{paths.ROOT}:{paths.ROOT / 'scripts'}")
    for name in ("CPATH", "CPLUS_INCLUDE_PATH", "NVCC_APPEND_FLAGS"):
        monkeypatch.setenv(name, f"-I{paths.SOLUTIONS}")
    bundle.write(packed({"main.py": LOOKS_AROUND + "def run(*args):\n    pass\n"}), tmp_path / "b")
    # an editable installation is importable everywhere; what loads it is refused all the same
    installed = subprocess.run([sys.executable, "-I", "-c", "import harness"], capture_output=True).returncode == 0
    assert why_not_built(tmp_path / "b").endswith("['harness', 'definitions']" if installed else "[]")


def test_what_loads_this_repository_is_refused():
    with pytest.raises(build_alone.Refused):
        build_alone.check_modules(paths.ROOT)


def test_an_edit_after_packing_is_noticed(alone, tmp_path):
    bundle.write(TINY, tmp_path / "bundle")
    (tmp_path / "bundle" / "solution" / "python" / "ones.py").write_text("def ones(output):\n    output.fill_(2)\n")
    with pytest.raises(build_alone.Refused, match="solution.json"):
        alone()


# What is compiled

CU = "#include <cuda_runtime.h>\n__global__ void fill(float* out) { out[threadIdx.x] = 1; }\n"
LOAD = """from pathlib import Path
import tvm_ffi.cpp


def load_kernels():
    return tvm_ffi.cpp.load("tiny", cuda_files=[str(Path(__file__).parent / "fill.cu")])
"""
COMPILING = f"from .build import load_kernels\n\n\ndef run({INPUTS}, output):\n    load_kernels()\n"


@compiles
def test_cuda_sources_are_really_compiled(alone):
    sources = {"main.py": COMPILING, "build.py": LOAD, "fill.cu": f'{CU}#include "mine.cuh"\n', "mine.cuh": "// here\n"}
    assert "nvcc" in alone(sources)[2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a device the entry point itself compiles")
def test_cuda_sources_that_cannot_be_compiled_are_refused(alone, monkeypatch, tmp_path):
    if shutil.which("nvcc"):
        with pytest.raises(build_alone.Refused, match="load_kernels"):
            alone({"main.py": f"def run({INPUTS}, output):\n    pass\n", "fill.cu": "// nothing\n"})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build_alone.Refused, match="nvcc"):
        build_alone.compile_without_device("none")


# The command


@pytest.fixture
def submit(monkeypatch, capsys):
    """moebench submit without a GPU, and without building: (exit status, output, errors)."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(clean_build, "build", lambda *_: ["built"])
    return lambda *args: (cli.main(["submit", *args]), *capsys.readouterr())


@pytest.fixture
def git(monkeypatch, tmp_path):
    """git as somebody with a name but without settings; returns stdout. `git.fork`: an empty bare repository."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    for name in ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL"):
        monkeypatch.setenv(f"GIT_{name}", "a@b")

    def run(*args):
        return subprocess.run(["git", *args], capture_output=True, text=True, check=True, cwd=tmp_path).stdout

    run.fork = tmp_path / "fork.git"
    run("init", "--quiet", "--bare", "--initial-branch", "main", run.fork)
    return run


def files(folder):
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {path for path in found if not path.startswith(".git/")}


def hand_in(said, fork, number):
    """Run what the command tells to run; return the exit status."""
    commands = said[said.index("(cd ") :].replace("URL_OF_YOUR_FORK", str(fork)).replace("-vN", f"-v{number}")
    return subprocess.run(["bash", "-c", commands], capture_output=True).returncode


def pushed(git, tag):
    return set(git("-C", git.fork, "ls-tree", "-r", "--name-only", tag).split())


def test_a_triton_solution_builds_alone(tmp_path, monkeypatch):
    """With its table, as the kit packs no data files."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    sources = {s.path: s.content for s in bundle.write(pack.pack("triton_fused_v2")["full"], tmp_path / "b").sources}
    assert "e32_h7168_i2048" in sources["tiles.csv.h"] and 'with_name("tiles.csv.h")' in sources["tiles.py"]
    assert len(clean_build.build(tmp_path / "b", NAME, "sm_100")) == 3


def test_it_is_written_and_can_be_pushed(tmp_path, workloads, submit, git):
    """A user would miss: what a record of another GPU does not prove, and a stale file in a second submission."""
    out = tmp_path / "the submission"
    for number, machine in enumerate(("NVIDIA B200", "NVIDIA H200"), 1):
        traces = save(tmp_path / "t.jsonl", record(pack.pack("triton_fused_v2")["full"], workloads, machine))
        status, said, _ = submit("triton_fused_v2", "--into", str(out), "--traces", traces)
        assert status == 0 and "19 of 19" in said and machine in said and "sm_100" in said
        written = files(out)
        assert {"config.toml", "solution.json", "solution/triton/main.py", "solution/triton/gemm1.py"} <= written
        assert hand_in(said, git.fork, number) == 0 and pushed(git, f"submission-v{number}") == written
        assert "solution/triton/stale.py" not in written and (number == 1 or prepare.PACKED in written)
        packed = out / prepare.PACKED
        assert not packed.exists() or packed.read_text() == (out / "solution.json").read_text()
        (out / "solution" / "triton" / "stale.py").write_text("")
        packed.write_text("older")


def test_another_definition_is_submitted_alone(tmp_path, submit):
    """A user would miss: a submission of Qwen3's layer with the first definition's name, sizes or inputs."""
    solution, out = pack.pack("triton_fused_v2")["qwen3-30b"], tmp_path / "out"
    wanted = recorded("qwen3-30b")
    traces = [t.model_copy(update={"definition": solution.definition}) for t in record(solution, wanted)]
    given = ["--into", str(out), "--traces", save(tmp_path / "t.jsonl", traces)]
    status, said, _ = submit("triton_fused_v2", "--definition", solution.definition, *given)
    assert status == 0 and "12 of 12" in said, said
    config = tomllib.loads((out / "config.toml").read_text())
    assert config["solution"]["definition"] == solution.definition
    assert config["build"]["entry_point"] == "main.py::run_renorm"
    assert "HIDDEN_SIZE = 2048" in (out / "solution" / "triton" / "problem.py").read_text()


def test_a_clone_of_the_kit_is_written_into_once_its_own_submission_is_gone(tmp_path, workloads, submit, git):
    """A user would miss: their own solution, overwritten. The kit's .gitignore names solution.json."""
    clone = tmp_path / "clone"
    (clone / "solution").mkdir(parents=True)
    git("init", "--quiet", clone)
    (clone / ".gitignore").write_text("solution.json\n.venv/\n")
    (clone / "config.toml").write_text("[solution]\n")
    traces = save(tmp_path / "t.jsonl", record(pack.pack("triton_fused_v2")["full"], workloads))
    command = "triton_fused_v2", "--into", str(clone), "--traces", traces
    status, _, errors = submit(*command)
    assert status == 2 and "config.toml, solution" in errors and not files(clone / "solution")
    (clone / "config.toml").unlink()
    (clone / "solution").rmdir()
    status, said, _ = submit(*command)
    assert status == 0 and hand_in(said, git.fork, 10) == 0
    assert {"solution.json", "solution/triton/main.py"} <= pushed(git, "submission-v10")


def test_all_reasons_come_at_once_and_nothing_is_written(tmp_path, workloads, submit, monkeypatch):
    def build(*_):
        raise clean_build.NotFit("it does not")

    monkeypatch.setattr(clean_build, "build", build)
    solution = pack.pack("triton_fused_v2")["full"]
    traces = save(tmp_path / "t.jsonl", [*record(solution, workloads[:3]), *record(solution, workloads[3:], sha1="0")])
    with (tmp_path / "t.jsonl").open("a") as file:
        file.write('{"cut off')
    into = "--into", str(tmp_path / "out")
    status, said, _ = submit("triton_fused_v2", *into, "--traces", traces, "--hardware", "sm_80")
    assert status == 1 and not (tmp_path / "out").exists()
    reasons = [line for line in said.splitlines() if line.startswith("- ")]
    assert len(reasons) == 3 and "t.jsonl:20" in said
    assert "sm_80" in reasons[0] and "16 of 19" in reasons[1] and reasons[2] == "- it does not"


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["nothing"], "'nothing'"),
        (["torch_mxfp8_emulated"], "--definition"),
        (["triton_fused_v2", "--hardware", "h200"], "--hardware"),
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
    bundle.write(solution, tmp_path / "b")
    assert torch.cuda.get_device_name() in clean_build.build(tmp_path / "b", NAME, "sm_100")[-1]
