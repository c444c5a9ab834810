"""What a solution's author is shown: the cause of a wrong output, and the own frame of an error."""

import shutil
from contextlib import nullcontext
from pathlib import PurePosixPath

import judged
import pytest
import torch
from flashinfer_bench import EvaluationStatus
from flashinfer_bench.bench.utils import load_safetensors
from flashinfer_bench.compile import BuilderRegistry
from moebench import cli
from moebench.core import paths, provenance
from moebench.judging import diagnosis, fib, frames, isolated, judge
from moebench.judging.calling import call, seeded_inputs
from moebench.judging.dataset import labelled
from moebench.judging.tolerances import TOLERANCES
from moebench.packing import pack

from definitions.moe_fp8_block_scale import definition

DEFAULT = TOLERANCES["default"]
ORIGINS = {
    "main.py": PurePosixPath("solutions/mine/main.py"),
    "layer.cu": PurePosixPath("solutions/mine/layer.cu"),
}
ROUTE = ORIGINS["common/triton/route.py"] = PurePosixPath("solutions/common/triton/route.py")
MMA = ORIGINS["common/cuda/mma.cuh"] = PurePosixPath("solutions/common/cuda/mma.cuh")
XYZ = 'identifier "xyz" is undefined'


@pytest.fixture
def reference():
    torch.manual_seed(0)
    y = torch.randn(8, 256)
    y[5] = 0
    return y.bfloat16()


def nan_like(y):
    return torch.full_like(y, torch.nan)


def with_bad(y, rows, value):
    y = y.clone()
    y[rows] = value
    return y


CAUSES = {  # name -> what is done to the reference, a name or number in the last sentence
    "never written": (nan_like, "`output`"),
    "no local expert": (lambda y: with_bad(y, 5, torch.nan), "(no local expert)"),
    "nan": (lambda y: with_bad(y, (3, 7), torch.nan), "(3, 7)"),
    "inf": (lambda y: with_bad(y, (3, 7), torch.inf), "infinite"),
    "zero": (torch.zeros_like, "is zero"),
    "factor": (lambda y: y / 2.5, "is forgotten"),
    "twice": (lambda y: y * 2.5, "applied twice"),
    "other factor": (lambda y: y * 1.5, "1.5 times"),
    "dtype": (torch.Tensor.float, "[8, 256] float32"),
    "shape": (lambda y: y[:7], "[7, 256] bfloat16"),
    "a tile": (lambda y: with_bad(y, (slice(2, 4), slice(128, 256)), 100), "(128 to 255)"),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_common_cause_is_named(reference, cause):
    spoil, sentence = CAUSES[cause]
    found = diagnosis.sentences(
        spoil(reference), reference, DEFAULT, {"routed_scaling_factor": 2.5}
    )
    assert sentence in found[-1], found


def test_errors_are_located(reference):
    output = with_bad(reference, (6, 9), 300)
    absolute, _, wrong = diagnosis.sentences(output, reference, TOLERANCES["contest"])
    assert "(6, 9): got 300" in absolute and "(6, 9)" in wrong


def test_noise_has_no_cause_made_up(reference):
    torch.manual_seed(1)
    found = diagnosis.sentences(torch.randn(8, 256).bfloat16(), reference, DEFAULT, {"x": 2.5})
    assert len(found) == 3


def test_no_tokens_break_nothing(reference):
    (found,) = diagnosis.sentences(reference[:0], reference[:0].float(), DEFAULT)
    assert "[0, 256] float32" in found


@pytest.fixture(scope="module")
def layer():
    """(definition, inputs, reference as a function of inputs) on a small workload."""
    full = definition("small")
    ((_, workload),) = labelled(definition("small").name, wanted=["first-rank"])
    runnable = BuilderRegistry.get_instance().build_reference(full)
    inputs = seeded_inputs(full, workload, 1, "cpu", load_safetensors(full, workload, paths.ROOT))[
        0
    ]
    inputs[list(full.inputs).index("local_expert_offset")] = 32
    return full, inputs, lambda changed: call(full, runnable, changed, "cpu")[0]


@pytest.mark.parametrize(
    "named",
    ["hidden_states_scale", "gemm2_weights_scale", "local_expert_offset", "halves of gemm1"],
)
def test_a_mistake_of_the_layer_is_recognised(layer, named):
    full, inputs, reference = layer
    made = dict(diagnosis.mistakes(dict(zip(full.inputs, inputs, strict=True))))
    (mistake,) = [each for each in made if named in each]
    output = reference(list(made[mistake].values()))
    assert diagnosis.diagnose(full, inputs, 0, output, reference(inputs), DEFAULT)[-1] == mistake


LAUNCH = """Traceback (most recent call last):
  File "/venv/triton/runtime/interpreter.py", line 1357, in __call__
    self.fn(**args)
  File "/c/fib_triton_mine_0/fib_triton_mine_0/common/triton/route.py", line 39, in route_kernel
    x = nothing
NameError: name 'nothing' is not defined

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/venv/flashinfer_bench/compile/runnable.py", line 95, in __call__
    ret = self._callable(*args)
  File "/c/fib_triton_mine_0/fib_triton_mine_0/main.py", line 107, in run
    route(x)
  File "/venv/triton/runtime/interpreter.py", line 1361, in __call__
    raise InterpreterError(repr(e)) from e
triton.runtime.errors.InterpreterError: NameError("name 'nothing' is not defined")
"""
NVCC = """Traceback (most recent call last):
  File "/c/fib_python_mine_0/fib_python_mine_0/main.py", line 9, in <module>
    build()
RuntimeError: nvcc failed:
/c/fib_python_mine_0/fib_python_mine_0/layer.cu(12): error: identifier "xyz" is undefined
"""
COMPILED = """Traceback (most recent call last):
  File "/c/fib_triton_mine_0/fib_triton_mine_0/main.py", line 7, in run
    kernel[(1,)](x)
triton.compiler.errors.CompilationError: at 3:8:
    x = tl.load(p)
        ^
name is not defined
"""


@pytest.mark.parametrize(
    ("log", "lines"),
    [
        (LAUNCH, ["NameError: name 'nothing' is not defined", f"at {ROUTE}:39 in route_kernel"]),
        (NVCC, [f"layer.cu(12): error: {XYZ}", "at solutions/mine/layer.cu:12"]),
        (
            NVCC.replace("layer.cu", "common/cuda/mma.cuh"),
            [f"mma.cuh(12): error: {XYZ}", f"at {MMA}:12"],
        ),
        (
            COMPILED,
            [
                "triton.compiler.errors.CompilationError: at 3:8: name is not defined",
                "at solutions/mine/main.py:7 in run",
            ],
        ),
        ("Evaluation timeout after 3 seconds", ["Evaluation timeout after 3 seconds"]),
        ("", ["no message"]),
    ],
)
def test_the_own_frame_of_an_error_is_shown(log, lines):
    """As tracebacks come from this process, and as FIB's worker writes them into its log."""
    named = frames.with_own_paths(log, ORIGINS)
    assert "fib_" not in "".join(line for line in named.splitlines() if "File" in line)
    assert frames.raised(named, ORIGINS) == lines


@pytest.fixture
def spoiled(monkeypatch, tmp_path):
    """A function that starts a solution whose main.py has one text replaced."""
    folder = tmp_path / "solutions"
    for name in ("torch_moe", "common"):
        shutil.copytree(
            paths.SOLUTIONS / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    monkeypatch.setattr(paths, "SOLUTIONS", folder)

    def make(name, old, new):
        cli.main(["new", name])
        main = folder / name / "main.py"
        assert old in main.read_text()
        main.write_text(main.read_text().replace(old, new))
        return pack.pack(name)["small"]

    return make


def test_a_solution_that_raises_shows_its_own_line(spoiled):
    found = judged.evaluated(
        spoiled("mine", "    y = torch.zeros_like(x)", "    y = torch.zeros_like(x).no_such"),
        tolerance="default",
    )
    assert found.trace.evaluation.status == EvaluationStatus.RUNTIME_ERROR
    line = next(
        n for n, t in enumerate((paths.SOLUTIONS / "mine" / "main.py").open(), 1) if "no_such" in t
    )
    assert found.reasons == (
        "AttributeError: 'Tensor' object has no attribute 'no_such'",
        f"at solutions/mine/main.py:{line} in experts",
    )
    assert 'File "solutions/mine/main.py"' in found.log
    assert 'File "solutions/mine/main.py"' in found.trace.evaluation.log


def test_a_wrong_solution_is_diagnosed(spoiled):
    found = judged.evaluated(spoiled("mine", "up, gate = g.chunk", "gate, up = g.chunk"))
    assert "halves of gemm1" in found.reasons[-1] and not found.log


class Worker:
    """Stands in for FIB's worker on a GPU, which judges and keeps the outputs to itself."""

    def __init__(self, evaluation):
        self.run_workload = lambda definition, workload, solutions, *rest: {
            s.name: evaluation for s in solutions
        }


@pytest.mark.parametrize(("verbose", "times"), [(False, 1), (True, 2)])
def test_what_a_worker_found_wrong_is_diagnosed_once(spoiled, monkeypatch, verbose, times):
    packed = spoiled("mine", "output.copy_(y)", "output.copy_(2 * y)")
    wrong = judged.evaluated(packed, tolerance="default").trace.evaluation.model_copy(
        update={"log": "printed"}
    )
    here, calls = provenance.here, []
    monkeypatch.setattr(judge, "device_here", lambda: "cuda:0")
    monkeypatch.setattr(fib, "running", lambda clock: nullcontext(Worker(wrong)))
    monkeypatch.setattr(provenance, "here", lambda device, **known: here("cpu", **known))
    monkeypatch.setattr(isolated, "diagnosed", lambda *job: calls.append(job) or ["twice as much"])
    found = [
        o.evaluated["mine"]
        for o in judged.outcomes({"mine": packed}, ["16", "19"], "default", verbose=verbose)
    ]
    assert found[0].reasons == ("twice as much",) and found[0].log == "printed"
    assert len(calls) == times and found[1].reasons == (
        ("twice as much",) if verbose else ("printed",)
    )


@pytest.mark.slow
def test_a_diagnosis_in_a_process_of_its_own(spoiled):
    """As on a GPU, with the CPU as the device."""
    ((_, one),) = labelled(definition("small").name, wanted=["first-rank"])

    def diagnosed(packed):
        return isolated.diagnosed(120, definition("small"), paths.ROOT, packed, one, DEFAULT, "cpu")

    packed = spoiled("mine", "given.output.copy_(y)", "print('noise'); given.output.copy_(1.5 * y)")
    assert "1.5" in diagnosed(packed)[-1]
    assert len(diagnosed(spoiled("right", "output.copy_(y)", "output.copy_(y)  # this time"))) == 1
    (said,) = diagnosed(spoiled("other", "given.output.copy_(y)", "raise ValueError('no')"))
    assert "ValueError: no" in said
