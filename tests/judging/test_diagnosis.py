"""What a solution's author is shown: the cause of a wrong output, and the own frame of an error."""

from contextlib import nullcontext
from pathlib import PurePosixPath

import pytest
import torch
from flashinfer_bench import EvaluationStatus
from flashinfer_bench.bench.utils import load_safetensors
from flashinfer_bench.compile import BuilderRegistry
from harness import cli
from harness.core import paths
from harness.judging import diagnose_alone, diagnosis, frames, run
from harness.judging.calling import call, seeded_inputs
from harness.judging.tolerances import TOLERANCES
from harness.packing import pack

from definitions.moe_fp8_block_scale import definition

DEFAULT = TOLERANCES["default"]
ORIGINS = {"main.py": PurePosixPath("solutions/mine/main.py"), "layer.cu": PurePosixPath("solutions/mine/layer.cu")}
ORIGINS["kernels/route.py"] = PurePosixPath("solutions/kernels/route.py")


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


CAUSES = {
    "never written": (nan_like, "every element is NaN, which the output is filled with before the call"),
    "some rows": (lambda y: with_bad(y, slice(2, 4), torch.nan), "whole rows are NaN"),
    "no local expert": (lambda y: with_bad(y, 5, torch.nan), "those rows must be zero (no local expert)"),
    "nan": (
        lambda y: with_bad(y, (3, 7), torch.nan),
        "NaN in 1 of 8 tokens (3), 1 of 256 columns (7); first at (3, 7)",
    ),
    "inf": (lambda y: with_bad(y, (3, 7), torch.inf), "infinite in 1 of 8 tokens (3)"),
    "zero": (torch.zeros_like, "every element is zero"),
    "rows": (lambda y: y.roll(1, 0), "rows are permuted: token 0 holds the result of token 7, for instance"),
    "factor": (lambda y: y / 2.5, "the output is 0.4 times the reference: routed_scaling_factor = 2.5 is forgotten"),
    "twice": (lambda y: y * 2.5, "routed_scaling_factor = 2.5 is applied twice"),
    "other factor": (lambda y: y * 1.5, "the output is 1.5 times the reference"),
    "factors": (lambda y: y * torch.arange(1, 9)[:, None], "a factor of its own (1 to 8): look at the routing weights"),
    "dtype": (torch.Tensor.float, "the output is [8, 256] float32, want [8, 256] bfloat16"),
    "shape": (lambda y: y[:7], "the output is [7, 256] bfloat16, want [8, 256] bfloat16"),
    "a tile": (
        lambda y: with_bad(y, (slice(2, 4), slice(128, 256)), 100),
        "wrong: 2 of 8 tokens (2 to 3), 128 of 256 columns (128 to 255); first at (token, column) = (2, 128)",
    ),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_common_cause_is_named(reference, cause):
    spoil, sentence = CAUSES[cause]
    found = diagnosis.sentences(spoil(reference), reference, DEFAULT, None, {"routed_scaling_factor": 2.5})
    assert sentence in found[-1], found


def test_errors_are_located(reference):
    output = with_bad(reference, (6, 9), 300)
    absolute, _, wrong = diagnosis.sentences(output, reference, TOLERANCES["contest"])
    assert absolute.startswith("largest absolute error ") and " at (6, 9): got 300, want " in absolute
    assert "first at (token, column) = (6, 9)" in wrong


def test_a_returned_tensor_is_named(reference):
    (found,) = diagnosis.sentences(nan_like(reference), reference, DEFAULT, returned=reference)
    assert "run() returned a tensor of [8, 256]" in found and "destination_passing_style = false" in found


def test_noise_has_no_cause_made_up(reference):
    torch.manual_seed(1)
    found = diagnosis.sentences(torch.randn(8, 256).bfloat16(), reference, DEFAULT, None, {"x": 2.5})
    assert len(found) == 3 and found[-1].startswith("wrong: ")


def test_no_tokens_break_nothing(reference):
    assert diagnosis.sentences(reference[:0], reference[:0].float(), DEFAULT) == [
        "the output is [0, 256] bfloat16, want [0, 256] float32"
    ]


@pytest.fixture(scope="module")
def layer():
    """(definition, inputs, reference as a function of inputs) on a small workload."""
    full = definition("small")
    ((_, workload),) = run.load_workloads("small", ["first-rank"])
    runnable = BuilderRegistry.get_instance().build_reference(full)
    inputs = seeded_inputs(full, workload, 1, "cpu", load_safetensors(full, workload, paths.ROOT))[0]
    inputs[list(full.inputs).index("local_expert_offset")] = 32
    return full, inputs, lambda changed: call(full, runnable, changed, "cpu")


@pytest.mark.parametrize(
    "mistake",
    [
        "hidden_states_scale is not applied",
        "gemm2_weights_scale is not applied",
        "local_expert_offset is taken as 0",
        "the halves of gemm1, gate and up, are swapped",
    ],
)
def test_a_mistake_of_the_layer_is_recognised(layer, mistake):
    full, inputs, reference = layer
    changed = dict(diagnosis.mistakes(dict(zip(full.inputs, inputs, strict=True))))[mistake]
    output = reference(list(changed.values()))
    assert diagnosis.diagnose(full, inputs, output, reference(inputs), DEFAULT, None)[-1] == mistake


LAUNCH = """Traceback (most recent call last):
  File "/venv/triton/runtime/interpreter.py", line 1357, in __call__
    self.fn(**args)
  File "/c/fib_triton_mine_0/fib_triton_mine_0/kernels/route.py", line 39, in route_kernel
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
FALLBACK = """Traceback (most recent call last):
  File "/c/fib_python_mine_0/fib_python_mine_0/main.py", line 3, in run
    import fast
ModuleNotFoundError: No module named 'fast'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/c/fib_python_mine_0/fib_python_mine_0/main.py", line 5, in run
    raise ValueError("no fallback: neither")
ValueError: no fallback: neither
"""
WORKER = """a line that the solution printed
BuildError: Failed importing module 'x' from sources: no

Traceback:
Traceback (most recent call last):
  File "/c/fib_python_mine_0/fib_python_mine_0/main.py", line 9, in <module>
    build()
RuntimeError: no nvcc

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/venv/flashinfer_bench/compile/builders/python_builder.py", line 120, in build
    raise BuildError(f"x") from e
flashinfer_bench.compile.builder.BuildError: Failed importing module 'x' from sources: no nvcc
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
        (LAUNCH, ["NameError: name 'nothing' is not defined", "at solutions/kernels/route.py:39 in route_kernel"]),
        (FALLBACK, ["ValueError: no fallback: neither", "at solutions/mine/main.py:5 in run"]),
        (WORKER, ["RuntimeError: no nvcc", "at solutions/mine/main.py:9 in <module>"]),
        (NVCC, ['layer.cu(12): error: identifier "xyz" is undefined', "at solutions/mine/layer.cu:12"]),
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
    (folder / "kernels").mkdir(parents=True)
    for stage in ("check_tensors", "problem", "check_inputs"):
        (folder / "kernels" / f"{stage}.py").write_text((paths.SOLUTIONS / "kernels" / f"{stage}.py").read_text())
    monkeypatch.setattr(paths, "SOLUTIONS", folder)

    def make(name, old, new):
        cli.main(["new", name])
        main = folder / name / "main.py"
        assert old in main.read_text()
        main.write_text(main.read_text().replace(old, new))
        return pack.pack(name)["small"]

    return make


def judged(name, packed, workload="first-rank", **changes):
    ((label, one),) = run.load_workloads("small", [workload])
    config = DEFAULT.config(num_trials=1, timeout_seconds=60)
    with run.judging("small", {name: packed}, DEFAULT, config, "cpu", "x", **changes) as judge:
        return judge(label, one)


def test_a_solution_that_raises_shows_its_own_line(spoiled):
    found = judged("mine", spoiled("mine", "    y = torch.zeros_like(x)", "    y = torch.zeros_like(x).no_such"))
    assert found.traces["mine"].evaluation.status == EvaluationStatus.RUNTIME_ERROR
    line = next(n for n, t in enumerate((paths.SOLUTIONS / "mine" / "main.py").open(), 1) if "no_such" in t)
    assert found.reasons["mine"] == [
        "AttributeError: 'Tensor' object has no attribute 'no_such'",
        f"at solutions/mine/main.py:{line} in experts",
    ]
    assert 'File "solutions/mine/main.py"' in found.logs["mine"]
    assert 'File "solutions/mine/main.py"' in found.traces["mine"].evaluation.log


def test_a_solution_that_does_not_import_shows_its_own_line(spoiled):
    found = judged("mine", spoiled("mine", "BLOCK = 128", "BLOCK = one_hundred"))
    assert found.traces["mine"].evaluation.status == EvaluationStatus.COMPILE_ERROR
    assert found.reasons["mine"][0] == "NameError: name 'one_hundred' is not defined"
    assert found.reasons["mine"][1].startswith("at solutions/mine/main.py:")


def test_a_wrong_solution_is_diagnosed(spoiled):
    found = judged("mine", spoiled("mine", "up, gate = g.chunk", "gate, up = g.chunk"))
    assert found.reasons["mine"][-1] == "the halves of gemm1, gate and up, are swapped" and not found.logs


def test_a_returned_tensor_is_diagnosed(spoiled):
    call = "    experts(weight[:, local_expert_offset:], *rows, "
    returned = f"{call}y := torch.empty_like(output))\n    return y\n"
    found = judged("mine", spoiled("mine", f"{call}output)\n", returned))
    assert found.reasons["mine"][-1].startswith("run() returned a tensor of [16, 512]")


class Worker:
    """Stands in for FIB's worker on a GPU, which judges and keeps the outputs to itself."""

    def __init__(self, evaluation):
        self.run_workload = lambda definition, workload, solutions, *rest: {s.name: evaluation for s in solutions}


def test_what_a_worker_found_wrong_is_diagnosed_once(spoiled, monkeypatch):
    packed = spoiled("mine", "output.copy_(y)", "output.copy_(2 * y)")
    wrong = judged("mine", packed).traces["mine"].evaluation.model_copy(update={"log": "printed"})
    monkeypatch.setattr(run.workers, "running", lambda log_dir, clock: nullcontext(Worker(wrong)))
    monkeypatch.setattr(run.provenance, "here", lambda device, here=run.provenance.here, **known: here("cpu", **known))
    calls = []
    monkeypatch.setattr(diagnose_alone, "in_a_process", lambda *job: calls.append(job) or ["twice as much"])
    ((label, one),) = run.load_workloads("small", ["first-rank"])
    for diagnose_all, times in ((False, 1), (True, 2)):
        calls.clear()
        known = DEFAULT, DEFAULT.config(timeout_seconds=60), "cuda:0", "x", diagnose_all
        with run.judging("small", {"mine": packed}, *known) as judge:
            first, second = judge(label, one), judge(label, one)
        assert first.reasons["mine"] == ["twice as much"] and first.logs == {"mine": "printed"}
        assert len(calls) == times and second.reasons["mine"] == (["twice as much"] if diagnose_all else ["printed"])


@pytest.mark.slow
def test_a_diagnosis_in_a_process_of_its_own(spoiled):
    """As on a GPU, with the CPU as the device: the job goes in, sentences come out."""
    packed = spoiled("mine", "output.copy_(y)", "print('noise'); output.copy_(1.5 * y)")
    ((_, one),) = run.load_workloads("small", ["first-rank"])
    found = diagnose_alone.in_a_process("small", packed, one, DEFAULT, "cpu", 120)
    assert found[-1] == "the output is 1.5 times the reference"
    right = spoiled("right", "output.copy_(y)", "output.copy_(y)  # this time")
    (said,) = diagnose_alone.in_a_process("small", right, one, DEFAULT, "cpu", 120)
    assert "does it differ from run to run?" in said
    broken = spoiled("other", "output.copy_(y)", "raise ValueError('no')")
    assert diagnose_alone.in_a_process("small", broken, one, DEFAULT, "cpu", 120) == ["no diagnosis: ValueError: no"]
