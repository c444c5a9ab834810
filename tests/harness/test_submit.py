"""A submission is written only when nothing speaks against it, and then it stands alone."""

import json
import os
import shutil
import subprocess
import sys
import tomllib

import pytest
import torch
from flashinfer_bench import Correctness, Environment, Evaluation, Performance, Solution, Trace
from flashinfer_bench.agents import pack_solution_from_files
from flashinfer_bench.data import load_jsonl_file
from harness.core import paths
from harness.evaluation.tolerances import TOLERANCES
from harness.packing import manifest, pack
from harness.submission import bundle, clean_build, contest_record, evaluation_environment

from definitions.moe_fp8_block_scale import definition, definition_name

NAME = definition_name("full")
INPUTS = ", ".join(definition("full").inputs)
MAIN = f"from .kernels.ones import ones\n\n\ndef run({INPUTS}, output):\n    ones(output)\n"
OURS = [name for name in manifest.solution_names() if "full" in pack.pack(name)]
SCRIPT = "-m", "harness", "submit"


def packed(sources, language="python", name="tiny", targets=("cpu", "sm_100")):
    """A Solution of these sources, with tiny's spec."""
    return Solution(
        name=name,
        definition=NAME,
        author="tests",
        spec={"language": language, "target_hardware": list(targets), "entry_point": "main.py::run"},
        sources=[{"path": path, "content": text} for path, text in sources.items()],
    )


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


def submit(*args):
    """submit.py as a user without a GPU runs it."""
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([sys.executable, *SCRIPT, *args], env=env, capture_output=True, text=True, timeout=600)


def save(path, traces):
    path.write_text("".join(f"{trace.model_dump_json()}\n" for trace in traces))
    return str(path)


def test_a_complete_record_proves_a_solution(workloads):
    assert contest_record.proven_on(TINY, record(TINY, workloads), workloads) == ("A GPU", [])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda t: [], "no trace of tiny at contest tolerance"),
        (lambda t: t[:-1], "1 of 19 workloads have no trace at contest tolerance on A GPU: T=14107"),
        (lambda t: [failed(t[0]), *t[1:]], "1 of 19 workloads are RUNTIME_ERROR at contest tolerance on A GPU: T=1"),
    ],
)
def test_an_incomplete_record_is_told_with_the_command_that_completes_it(workloads, spoil, said):
    machine, (reason,) = contest_record.proven_on(TINY, spoil(record(TINY, workloads)), workloads)
    assert machine is None and said in reason
    assert "moebench run --solutions tiny --tolerance contest" in reason


def test_runs_of_an_older_source_prove_nothing(workloads):
    """Otherwise a broken edit could be handed in on the strength of what it replaced."""
    old = record(TINY, workloads, sha1="0123456789")
    _, (reason,) = contest_record.proven_on(TINY, old, workloads)
    assert f"were measured with another source (0123456, now {TINY.hash()[:7]})" in reason
    assert contest_record.proven_on(TINY, old + record(TINY, workloads), workloads)[0] == "A GPU"


def test_runs_at_an_easier_tolerance_or_spread_over_machines_prove_nothing(workloads):
    assert contest_record.proven_on(TINY, record(TINY, workloads, tolerance="relaxed"), workloads)[0] is None
    halves = record(TINY, workloads[:10], hardware="one") + record(TINY, workloads[10:], hardware="other")
    machine, (reason,) = contest_record.proven_on(TINY, halves, workloads)
    assert machine is None and "9 of 19 workloads have no trace" in reason and "on one:" in reason


def test_a_later_failure_outweighs_an_earlier_pass(workloads):
    later = [failed(t) for t in record(TINY, workloads[:1], timestamp="2026-02-01")]
    assert contest_record.proven_on(TINY, record(TINY, workloads) + later, workloads)[0] is None


def test_every_reason_is_told_for_what_the_evaluation_machine_lacks():
    sources = {
        "main.py": "import os, torch.nn\nimport flashinfer.jit\nfrom pandas import DataFrame\nfrom . import a\n",
        "a.py": "import importlib\nimportlib.import_module('deep_gemm')\n__import__('no_such')\n",
    }
    found = evaluation_environment.foreign_imports(sources)
    assert len(found) == 4
    assert any("main.py:2 imports flashinfer.jit, a library of ready-made kernels" in line for line in found)
    assert any("main.py:3 imports pandas, which the evaluation machine lacks" in line for line in found)
    assert any("a.py:2 imports deep_gemm" in line for line in found)
    assert any("a.py:3 imports no_such" in line for line in found)


def test_includes_come_from_the_bundle_or_the_evaluation_machine():
    sources = {
        "kernel.cu": '#include "layer.cuh"\n#include <cute/tensor.hpp>\n#include <tvm/ffi/error.h>\n# include <map>\n',
        "layer.cuh": "#include <cuda_fp8.h>\n#include <boost/array.hpp>\n",
        "main.py": 'SOURCE = """\n#include "gone.cuh"\n#include <dlpack/dlpack.h>\n"""\n',
    }
    found = evaluation_environment.foreign_includes(sources)
    assert [line.partition(",")[0] for line in found] == [
        "layer.cuh:2 includes boost/array.hpp",
        "main.py:2 includes gone.cuh",
    ]


@pytest.mark.parametrize("name", OURS)
def test_our_solutions_stay_what_they_are_in_a_single_folder(name):
    """The kit's packing drops folders, so stages move up; only the lines that import them may change."""
    sources = {s.path: s.content for s in pack.pack(name)["full"].sources}
    flat = bundle.flatten(name, sources)
    assert len(flat) == len(sources) and not any("/" in path for path in flat)
    for path, text in sources.items():
        before, after = text.splitlines(), flat[path.rpartition("/")[2]].splitlines()
        changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
        assert all(old.replace("from .kernels.", "from .") == new for old, new in changed)


def test_two_files_of_one_name_are_refused():
    with pytest.raises(manifest.PackingError, match="tiny: two files called main.py"):
        bundle.flatten("tiny", {"main.py": MAIN, "kernels/main.py": ""})


def test_imports_of_every_form_follow_the_move(tmp_path):
    sources = {
        "main.py": f"from .kernels import ones, twos\nfrom .kernels.twos import (\n    two,\n)\n\n\n"
        f"def run({INPUTS}, output):\n    output.fill_(ones.ONE + two() + twos.two())\n",
        "kernels/ones.py": "ONE = 1\n",
        "kernels/twos.py": "def two():\n    from ..kernels.ones import ONE\n\n    return 2 * ONE\n",
    }
    flat = bundle.flatten("tiny", sources)
    assert "from . import ones, twos" in flat["main.py"] and "from .ones import ONE" in flat["twos.py"]
    bundle.write(packed(sources), tmp_path / "b")
    assert clean_build.build(tmp_path / "b", NAME, "sm_100")[0] is None


def test_the_kits_packing_of_the_folder_gives_solution_json(tmp_path):
    """The evaluation may read solution.json or pack config.toml and the sources: it has to be one solution."""
    bundle.write(TINY, tmp_path / "b")
    config = tomllib.loads((tmp_path / "b" / "config.toml").read_text())
    language = config["build"]["language"]
    spec = config["build"] | {"target_hardware": ["cuda"]}
    again = pack_solution_from_files(str(tmp_path / "b" / "solution" / language), spec, **config["solution"])
    assert again == Solution.model_validate_json((tmp_path / "b" / "solution.json").read_text())
    assert config["solution"] == {"name": "tiny", "definition": NAME, "author": "tests"}


def changed(tmp_path, sources, language="python"):
    bundle.write(packed(sources, language), tmp_path / "b")
    return clean_build.build(tmp_path / "b", NAME, "sm_100")[0]


@pytest.mark.parametrize(
    ("top", "said"),
    [
        ("import harness\n", "No module named 'harness'"),
        ("import definitions\n", "No module named 'definitions'"),
        ("import pathlib\npathlib.Path('note').read_text()\n", "No such file or directory: 'note'"),
    ],
)
def test_what_needs_this_repository_does_not_build(tmp_path, monkeypatch, top, said):
    """PYTHONPATH and the current folder must not help, or it would fail where it is evaluated."""
    (tmp_path / "note").write_text("here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{paths.ROOT}:{paths.ROOT / 'scripts'}")
    assert said in changed(tmp_path, {"main.py": top + "def run(*args):\n    pass\n"})


def test_an_edit_after_packing_is_noticed(tmp_path):
    bundle.write(TINY, tmp_path / "b")
    (tmp_path / "b" / "solution" / "python" / "ones.py").write_text("def ones(output):\n    output.fill_(2)\n")
    error = clean_build.build(tmp_path / "b", NAME, "sm_100")[0]
    assert "solution.json is not what config.toml and solution/ pack to" in error


def test_a_missing_file_and_a_crash_are_reasons(tmp_path):
    assert "No module named" in changed(tmp_path, {"main.py": "from .gone import x\n\n\ndef run():\n    pass\n"})
    shutil.rmtree(tmp_path / "b")
    died = changed(tmp_path, {"main.py": "import os\nos._exit(7)\n"})
    assert died.startswith("building from the bundle alone died with status 7")


CU = '#include <cuda_runtime.h>\n__global__ void fill(float* out) { out[threadIdx.x] = 1; }\n#include "gone.cuh"\n'
LOAD = """from pathlib import Path
import tvm_ffi.cpp


def load_kernels():
    return tvm_ffi.cpp.load("tiny", cuda_files=[str(Path(__file__).parent / "fill.cu")])
"""
FILES = 'cuda_files=[str(Path(__file__).parent / "fill.cu")]'


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a device the entry point itself compiles")
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_cuda_sources_are_really_compiled(tmp_path):
    main = f"from .build import load_kernels\n\n\ndef run({INPUTS}, output):\n    load_kernels()\n"
    sources = {"main.py": main, "build.py": LOAD, "fill.cu": CU}
    assert "gone.cuh" in changed(tmp_path, sources)
    shutil.rmtree(tmp_path / "b")
    bundle.write(packed(sources | {"gone.cuh": "// here\n"}), tmp_path / "b")
    error, done, unchecked = clean_build.build(tmp_path / "b", NAME, "sm_100")
    assert error is None and "CUDA sources compiled and linked by nvcc" in done
    assert unchecked == ["that it runs, for want of a CUDA device"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a device the entry point itself compiles")
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize(("good", "said"), [(True, None), (False, "undefined")])
def test_cuda_inside_python_is_compiled_too(tmp_path, good, said):
    kernel = CU.partition('#include "gone')[0] if good else "__global__ void fill() { undefined(); }"
    build = LOAD.replace("load(", "load_inline(").replace(FILES, f"cuda_sources={kernel!r}")
    main = f"from .build import load_kernels\n\n\ndef run({INPUTS}, output):\n    load_kernels()\n"
    error = changed(tmp_path, {"main.py": main, "build.py": build})
    assert error is None if good else said in error


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a device the entry point itself compiles")
def test_cuda_sources_that_cannot_be_compiled_are_refused(tmp_path, monkeypatch):
    sources = {"main.py": f"def run({INPUTS}, output):\n    pass\n", "fill.cu": "// nothing\n"}
    if shutil.which("nvcc"):
        assert "that takes a build.py with load_kernels()" in changed(tmp_path, sources)
        shutil.rmtree(tmp_path / "b")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "neither a CUDA device nor nvcc" in changed(tmp_path, sources)


def test_a_proven_solution_is_written_ready_to_tag(tmp_path, workloads):
    solution = pack.pack("triton_fused_v2")["full"]
    traces = save(tmp_path / "t.jsonl", record(solution, workloads))
    done = submit("triton_fused_v2", "--into", str(tmp_path / "out"), "--traces", traces)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED 19 of 19 at contest tolerance on A GPU" in done.stdout
    assert "not checked: that it runs, for want of a CUDA device" in done.stdout
    written = {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert {"config.toml", "solution.json", "solution/triton/main.py", "solution/triton/gemm1.py"} <= written
    assert "t.jsonl" not in done.stderr and json.loads((tmp_path / "out" / "solution.json").read_text())

    (tmp_path / "out" / "solution" / "triton" / "stale.py").write_text("")
    again = submit("triton_fused_v2", "--into", str(tmp_path / "out"), "--traces", traces)
    assert again.returncode == 0 and not (tmp_path / "out" / "solution" / "triton" / "stale.py").exists()


def test_all_reasons_come_at_once_and_nothing_is_written(tmp_path, workloads):
    solution = pack.pack("triton_fused_v2")["full"]
    traces = save(tmp_path / "t.jsonl", [*record(solution, workloads[:3]), *record(solution, workloads[3:], sha1="0")])
    with (tmp_path / "t.jsonl").open("a") as file:
        file.write('{"cut off')
    done = submit("triton_fused_v2", "--into", str(tmp_path / "out"), "--traces", traces, "--hardware", "sm_80")
    assert done.returncode == 1 and not (tmp_path / "out").exists()
    reasons = [line for line in done.stdout.splitlines() if line.startswith("- ")]
    assert len(reasons) == 2 and "t.jsonl:20: left out: not JSON" in done.stdout
    targets = "sm_90, sm_100, cpu"
    assert reasons[0] == f"- it runs on {targets}, and the evaluation on sm_80 (--hardware names another machine)"
    assert "16 of 19 workloads were measured with another source" in reasons[1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nothing"], "unknown solution 'nothing'; there are: "),
        (["triton_fused_v2", "--hardware", "h200"], "'h200' is no machine, want sm_ and the compute capability"),
        (["triton_fused_v2", "--traces", "gone.jsonl"], "gone.jsonl: no such file"),
        (["triton_fused_v2", "--into", str(paths.ROOT / "scripts")], "is neither empty nor written by this command"),
    ],
)
def test_bad_arguments_get_one_line(tmp_path, args, message):
    done = submit("--into", str(tmp_path / "out"), *args)
    assert done.returncode == 2 and message in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "out").exists()


@pytest.mark.gpu
@pytest.mark.parametrize("name", OURS)
def test_a_submission_runs_from_its_bundle_alone(tmp_path, name):
    """A user would miss: a bundle that imports, and dies or gives nonsense at its first call."""
    solution = pack.pack(name)["full"]
    major, minor = torch.cuda.get_device_capability()
    if f"sm_{major}{minor}" not in solution.spec.target_hardware:
        pytest.skip(f"{name} does not run here")
    bundle.write(solution, tmp_path / "b")
    error, done, unchecked = clean_build.build(tmp_path / "b", NAME, "sm_100")
    assert error is None and unchecked == []
    assert any(line.startswith("called once with 7 tokens") for line in done)
