"""A submission is written only when nothing speaks against it, and then it stands alone."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import torch
from flashinfer_bench import Correctness, Environment, Evaluation, Performance, Solution, Trace
from flashinfer_bench.agents import pack_solution_from_files
from flashinfer_bench.data import load_jsonl_file
from harness import cli
from harness.core import paths
from harness.core.provenance import of_trace
from harness.judging.tolerances import TOLERANCES
from harness.operators.workloads import recorded
from harness.packing import manifest, pack
from harness.results import table
from harness.results.staleness import judge
from harness.submission import build_alone, bundle, clean_build, contest_record, prepare
from rich.console import Console

from definitions.moe_fp8_block_scale import definition, definition_name

NAME = definition_name("full")
INPUTS = ", ".join(definition("full").inputs)
MAIN = f"from .kernels.ones import ones\n\n\ndef run({INPUTS}, output):\n    ones(output)\n"
OURS = [name for name in manifest.solution_names() if "full" in pack.pack(name)]
without_device = pytest.mark.skipif(torch.cuda.is_available(), reason="with a device the entry point itself compiles")
with_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")


def packed(sources, language="python", name="tiny", targets=("cpu", "sm_100")):
    """A Solution of these sources, with tiny's spec."""
    return Solution(
        name=name,
        definition=NAME,
        author="tests",
        spec={"language": language, "target_hardware": list(targets), "entry_point": "main.py::run"},
        sources=[{"path": path, "content": text} for path, text in sources.items()],
    )


RECORD = "moebench run --solutions tiny --tolerance contest"
TINY = packed({"main.py": MAIN, "kernels/ones.py": "def ones(output):\n    output.fill_(1)\n"})


@pytest.fixture(scope="module")
def workloads():
    return [t.workload for t in load_jsonl_file(Trace, paths.workload_file(NAME))]


def record(solution, workloads, hardware="A GPU", sha1=None, tolerance="contest", timestamp="2026-01-01"):
    """A PASSED trace for each workload."""
    libs = {"solution_sha1": sha1 or solution.hash(), "tolerance": str(TOLERANCES[tolerance])}
    ev = Evaluation(
        status="PASSED",
        environment=Environment(hardware=hardware, libs=libs),
        timestamp=timestamp,
        correctness=Correctness(),
        performance=Performance(latency_ms=1, speedup_factor=2, reference_latency_ms=2),
    )
    return [Trace(definition=NAME, workload=w, solution=solution.name, evaluation=ev) for w in workloads]


def failed(trace):
    ev = Evaluation(
        status="RUNTIME_ERROR", environment=trace.evaluation.environment, timestamp=trace.evaluation.timestamp
    )
    return trace.model_copy(update={"evaluation": ev})


def save(path, traces):
    path.write_text("".join(f"{trace.model_dump_json()}\n" for trace in traces))
    return str(path)


def proven(traces, workloads):
    """(machine or None, the token counts that each reason names)."""
    states = [judge(of_trace(trace), [TINY.hash()]) for trace in traces]
    rows = table.counting(table.of_traces(traces).assign(source=states)) if traces else None
    machine, reasons = contest_record.proven_on(TINY, rows, workloads, RECORD)
    assert all(RECORD in reason for reason in reasons)
    return machine, [re.findall(r"\d+(?=[,;])", reason.partition("T=")[2]) for reason in reasons]


def test_a_complete_record_proves_a_solution(workloads):
    assert proven(record(TINY, workloads), workloads) == ("A GPU", [])
    assert proven([], workloads) == (None, [[]])


@pytest.mark.parametrize("spoil", [lambda t: t[:-1], lambda t: [*t[:-1], failed(t[-1])]])
def test_a_workload_that_is_missing_or_failed_is_named(workloads, spoil):
    assert proven(spoil(record(TINY, workloads)), workloads) == (None, [["14107"]])


def test_runs_of_an_older_source_prove_nothing(workloads):
    """Otherwise a broken edit could be handed in on the strength of what it replaced."""
    old = record(TINY, workloads, sha1="0123456789")
    machine, (lengths,) = proven(old, workloads)
    assert machine is None and len(lengths) == len(workloads)
    assert proven(old + record(TINY, workloads), workloads) == ("A GPU", [])


def test_runs_at_an_easier_tolerance_or_spread_over_machines_prove_nothing(workloads):
    assert proven(record(TINY, workloads, tolerance="relaxed"), workloads)[0] is None
    halves = record(TINY, workloads[:10], hardware="one") + record(TINY, workloads[10:], hardware="other")
    machine, (lengths,) = proven(halves, workloads)
    assert machine is None and len(lengths) == 9


def test_a_later_failure_outweighs_an_earlier_pass(workloads):
    later = [failed(t) for t in record(TINY, workloads[:1], timestamp="2026-02-01")]
    assert proven(record(TINY, workloads) + later, workloads) == (None, [["1"]])


@pytest.mark.parametrize("name", OURS)
def test_our_solutions_stay_what_they_are_in_a_single_folder(name):
    """The kit's packing drops folders, so files move up; only the lines that import them may change."""
    sources = {s.path: s.content for s in pack.pack(name)["full"].sources}
    flat = bundle.flatten(name, sources)
    assert len(flat) == len(sources) and not any("/" in path for path in flat)
    for path, text in sources.items():
        before, after = text.splitlines(), flat[path.rpartition("/")[2]].splitlines()
        changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
        assert all(re.sub(r"^from \.+((kernels|many_tokens)\b\.?)?", "from .", old) == new for old, new in changed)


def test_two_files_of_one_name_are_refused():
    with pytest.raises(manifest.PackingError, match="main.py"):
        bundle.flatten("tiny", {"main.py": MAIN, "kernels/main.py": ""})


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """What build_alone.py makes of sources, in this process: lines of what was done and what was not checked.

    Caches are in tmp_path; what build_alone.py changes for the rest of its process is changed back.
    """
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
    flat = bundle.flatten("tiny", sources)
    assert "from . import ones, twos" in flat["main.py"] and "from .ones import ONE" in flat["twos.py"]
    assert len(alone(sources)) >= 2


def test_the_kits_packing_of_the_folder_gives_solution_json(tmp_path):
    """The evaluation may read solution.json or pack config.toml and the sources: it has to be one solution."""
    bundle.write(TINY, tmp_path / "b")
    config = tomllib.loads((tmp_path / "b" / "config.toml").read_text())
    language = config["build"]["language"]
    spec = config["build"] | {"target_hardware": ["cuda"]}
    again = pack_solution_from_files(str(tmp_path / "b" / "solution" / language), spec, **config["solution"])
    assert again == Solution.model_validate_json((tmp_path / "b" / "solution.json").read_text())
    assert config["solution"] == {"name": "tiny", "definition": NAME, "author": "tests"}


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


def installed():
    """Names that an editable installation makes importable everywhere; loading one is refused all the same."""
    command = [sys.executable, "-I", "-c", "import harness"]
    return subprocess.run(command, capture_output=True).returncode == 0


def test_a_clean_build_sees_nothing_of_this_machine(tmp_path, monkeypatch):
    """PYTHONPATH, compilers' search paths, home and the current folder must not help, as they fail where it counts."""
    (tmp_path / "note").write_text("here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{paths.ROOT}:{paths.ROOT / 'scripts'}")
    for name in ("CPATH", "CPLUS_INCLUDE_PATH", "NVCC_APPEND_FLAGS"):
        monkeypatch.setenv(name, f"-I{paths.SOLUTIONS}")
    bundle.write(packed({"main.py": LOOKS_AROUND + "def run(*args):\n    pass\n"}), tmp_path / "b")
    error = why_not_built(tmp_path / "b")
    assert error.endswith("['harness', 'definitions']" if installed() else "[]")


def test_what_loads_this_repository_is_refused():
    """Where the harness is installed, importing it works in any process."""
    with pytest.raises(build_alone.Refused):
        build_alone.check_modules(paths.ROOT)


def test_a_crash_is_a_reason(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text("import os\nos._exit(7)\n")
    monkeypatch.setattr(clean_build, "SCRIPT", script)
    bundle.write(TINY, tmp_path / "b")
    assert "status 7" in why_not_built(tmp_path / "b")


def test_an_edit_after_packing_is_noticed(alone, tmp_path):
    bundle.write(TINY, tmp_path / "bundle")
    (tmp_path / "bundle" / "solution" / "python" / "ones.py").write_text("def ones(output):\n    output.fill_(2)\n")
    with pytest.raises(build_alone.Refused, match="solution.json"):
        alone()


def test_the_line_that_says_what_is_wrong_is_shown():
    """Of hundreds that a compiler prints."""
    output = "ninja exited with status 1\n[1/2] nvcc ...\nfill.cu:3:10: fatal error: gone.cuh: No such file\nmore"
    wanted = "RuntimeError: fill.cu:3:10: fatal error: gone.cuh: No such file"
    assert build_alone.fault(RuntimeError(output)) == wanted
    assert (
        build_alone.fault(build_alone.Refused("no")) == "no" and build_alone.fault(OSError()) == "OSError: no message"
    )


# What is compiled

CU = "#include <cuda_runtime.h>\n__global__ void fill(float* out) { out[threadIdx.x] = 1; }\n"
LOAD = """from pathlib import Path
import tvm_ffi.cpp


def load_kernels():
    return tvm_ffi.cpp.load("tiny", cuda_files=[str(Path(__file__).parent / "fill.cu")])
"""
FILES = 'cuda_files=[str(Path(__file__).parent / "fill.cu")]'
COMPILING = f"from .build import load_kernels\n\n\ndef run({INPUTS}, output):\n    load_kernels()\n"


@without_device
@with_nvcc
def test_a_header_that_this_repository_alone_has_is_refused(tmp_path, monkeypatch):
    """Even where the user's compilers find it."""
    header = next(paths.SOLUTIONS.glob("*/*.cuh"))
    for name in ("CPATH", "CPLUS_INCLUDE_PATH"):
        monkeypatch.setenv(name, str(header.parent))
    sources = {"main.py": COMPILING, "build.py": LOAD, "fill.cu": f"#include <{header.name}>\n"}
    bundle.write(packed(sources), tmp_path / "b")
    assert f"{header.name}: No such file" in why_not_built(tmp_path / "b")


@without_device
@with_nvcc
def test_cuda_sources_are_really_compiled(alone):
    sources = {"main.py": COMPILING, "build.py": LOAD, "fill.cu": f'{CU}#include "mine.cuh"\n', "mine.cuh": "// here\n"}
    assert "nvcc" in alone(sources)[2]


@without_device
@with_nvcc
@pytest.mark.slow
def test_a_whole_submission_in_cuda_is_compiled_in_the_clean_build(tmp_path):
    bundle.write(pack.pack("hopper_fused")["full"], tmp_path / "b")
    assert "nvcc" in clean_build.build(tmp_path / "b", NAME, "sm_90")[2]


@without_device
@with_nvcc
def test_cuda_inside_python_is_compiled_too(alone):
    kernel = "__global__ void fill() { undefined(); }"
    build = LOAD.replace("load(", "load_inline(").replace(FILES, f"cuda_sources={kernel!r}")
    with pytest.raises(Exception, match="undefined"):
        alone({"main.py": COMPILING, "build.py": build})


@without_device
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
    """moebench submit without a GPU: (exit status, output, errors). fake: do not build."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(*args, fake=True):
        with monkeypatch.context() as patch:
            if fake:
                patch.setattr(clean_build, "build", lambda *_: ["built"])
            return cli.main(["submit", *args]), *capsys.readouterr()

    return run


@pytest.fixture
def git(monkeypatch, tmp_path):
    """git as somebody with a name but without settings; returns stdout. `git.fork`: an empty bare repository."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "a")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "a@b")

    def run(*args):
        return subprocess.run(["git", *args], capture_output=True, text=True, check=True, cwd=tmp_path).stdout

    run.fork = tmp_path / "fork.git"
    run("init", "--quiet", "--bare", "--initial-branch", "main", run.fork)
    return run


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def hand_in(said, fork):
    """Run what the command tells to run; return the exit status."""
    commands = said.partition("needs the next number):\n")[2].replace("URL_OF_YOUR_FORK", str(fork))
    return subprocess.run(["bash", "-c", commands], capture_output=True).returncode


def test_a_proven_solution_is_written_and_can_be_pushed(tmp_path, workloads, submit, git):
    solution, out = pack.pack("triton_fused_v2")["full"], tmp_path / "the submission"
    traces = save(tmp_path / "t.jsonl", record(solution, workloads))
    status, said, _ = submit("triton_fused_v2", "--into", str(out), "--traces", traces, fake=False)
    assert status == 0, said
    assert "19 of 19" in said and "A GPU" in said
    written = files(out)
    assert {"config.toml", "solution.json", "solution/triton/main.py", "solution/triton/gemm1.py"} <= written
    assert json.loads((out / "solution.json").read_text())
    assert hand_in(said, git.fork) == 0
    assert set(git("-C", git.fork, "ls-tree", "-r", "--name-only", "submission-v1").split()) == written

    (out / "solution" / "triton" / "stale.py").write_text("")
    (out / prepare.PACKED).write_text("older")
    status, said, _ = submit("triton_fused_v2", "--into", str(out), "--traces", traces)
    assert status == 0 and hand_in(said, git.fork) == 0
    written.add(prepare.PACKED)
    assert set(git("-C", git.fork, "ls-tree", "-r", "--name-only", "submission-v2").split()) == written
    assert (out / prepare.PACKED).read_text() == (out / "solution.json").read_text()


def test_a_record_of_another_architecture_is_told(tmp_path, workloads, submit):
    """A user would miss: what a record of another GPU does not prove, if the line came with every submission."""
    solution = pack.pack("triton_fused_v2")["full"]
    for machine, verified in (("NVIDIA B200", False), ("NVIDIA H200", True)):
        traces = save(tmp_path / "t.jsonl", record(solution, workloads, machine))
        _, printed, _ = submit("triton_fused_v2", "--into", str(tmp_path / "out"), "--traces", traces)
        assert machine in printed and ("sm_90" in printed) == verified


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
    traces = ["--traces", save(tmp_path / "none.jsonl", traces[:3])]
    status, said, _ = submit("triton_fused_v2", "--definition", "qwen3-30b", *given[:2], *traces)
    assert status == 1 and "--solutions triton_fused_v2 --definition qwen3-30b --tolerance contest" in said, said


def test_a_submission_from_a_clone_of_the_kit_takes_the_next_tag(tmp_path, workloads, submit, git):
    """Its .gitignore names solution.json, its fork has been handed in before, and main has moved on since."""
    kit, clone = tmp_path / "kit", tmp_path / "clone"
    (kit / "solution" / "triton").mkdir(parents=True)
    contents = {
        ".gitignore": "solution.json\n.venv/\n",
        "config.toml": "[solution]\n",
        "solution/triton/kernel.py": "1\n",
    }
    for name, text in contents.items():
        (kit / name).write_text(text)
    git("init", "--quiet", "--initial-branch", "main", kit)
    git("-C", kit, "add", "--all")
    git("-C", kit, "commit", "--quiet", "--message", "kit")
    git("-C", kit, "tag", "submission-v9")
    git("-C", kit, "tag", "submission-video")
    git("-C", kit, "push", "--quiet", git.fork, "main", "submission-v9", "submission-video")
    git("clone", "--quiet", git.fork, clone)
    (clone / ".venv").mkdir()
    (clone / ".venv" / "large").write_text("")
    traces = save(tmp_path / "t.jsonl", record(pack.pack("triton_fused_v2")["full"], workloads))
    command = "triton_fused_v2", "--into", str(clone), "--traces", traces

    status, _, errors = submit(*command)
    assert status == 2 and "config.toml, solution" in errors
    assert files(clone / "solution") == {"triton/kernel.py"}
    (clone / "config.toml").unlink()
    shutil.rmtree(clone / "solution")
    for number in (10, 11):  # twice, though nothing has changed
        status, said, _ = submit(*command)
        assert status == 0 and "URL_OF_YOUR_FORK" not in said and hand_in(said, None) == 0
        names = set(git("-C", git.fork, "ls-tree", "-r", "--name-only", f"submission-v{number}").split())
        wanted = {".gitignore", "config.toml", "solution.json"} | {
            f"solution/{name}" for name in files(clone / "solution")
        }
        assert names == wanted and "solution/triton/main.py" in names


def test_all_reasons_come_at_once_and_nothing_is_written(tmp_path, workloads, submit):
    solution = pack.pack("triton_fused_v2")["full"]
    traces = save(tmp_path / "t.jsonl", [*record(solution, workloads[:3]), *record(solution, workloads[3:], sha1="0")])
    with (tmp_path / "t.jsonl").open("a") as file:
        file.write('{"cut off')
    into = "--into", str(tmp_path / "out")
    status, said, _ = submit("triton_fused_v2", *into, "--traces", traces, "--hardware", "sm_80")
    assert status == 1 and not (tmp_path / "out").exists()
    reasons = [line for line in said.splitlines() if line.startswith("- ")]
    assert len(reasons) == 2 and "t.jsonl:20" in said
    assert "sm_80" in reasons[0] and "16 of 19" in reasons[1]


def test_what_the_clean_build_finds_is_a_reason(tmp_path, monkeypatch):
    def build(*_):
        raise clean_build.NotFit("x")

    monkeypatch.setattr(clean_build, "build", build)
    assert prepare.objections(TINY, tmp_path, None, RECORD, "sm_100", Console())[1:] == ["x"]


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
    done = clean_build.build(tmp_path / "b", NAME, "sm_100")
    assert not any(line.startswith("not checked") for line in done)
    assert any(line.startswith("called once with 7 tokens") for line in done)
