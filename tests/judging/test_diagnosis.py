"""What a solution's author is shown: the cause of a wrong output, and the own frame of an error."""

import shutil
from pathlib import PurePosixPath

import judged
import pytest
import torch
from flashinfer_bench.bench.utils import load_safetensors
from flashinfer_bench.compile import BuilderRegistry
from moebench import cli
from moebench.core import paths
from moebench.judging.calling import call, seeded_inputs
from moebench.judging.dataset import labelled
from moebench.judging.explaining import bias, diagnosis, frames
from moebench.judging.tolerances import TOLERANCES
from moebench.operators.catalogue import definition
from moebench.packing import pack

DEFAULT = TOLERANCES["default"]


# Sentences on an output


@pytest.fixture
def reference():
    """[8, 256] bfloat16; one token has no local expert."""
    torch.manual_seed(0)
    expected = torch.randn(8, 256)
    expected[5] = 0
    return expected.bfloat16()


def with_bad(output, place, value):
    output = output.clone()
    output[place] = value
    return output


NAMED = {  # cause -> a name or number in the last sentence
    "never written": "`output`",
    "no local expert": "(no local expert)",
    "nan": "(3, 7)",
    "inf": "infinite",
    "zero": "is zero",
    "factor": "is forgotten",
    "twice": "applied twice",
    "other factor": "1.5 times",
    "a tile": "(128 to 255)",
}


def with_cause(cause, output):
    """Return what a solution with this fault makes of a right output."""
    wrong = {
        "never written": torch.full_like(output, torch.nan),
        "no local expert": with_bad(output, 5, torch.nan),
        "nan": with_bad(output, (3, 7), torch.nan),
        "inf": with_bad(output, (3, 7), torch.inf),
        "zero": torch.zeros_like(output),
        "factor": output / 2.5,
        "twice": output * 2.5,
        "other factor": output * 1.5,
        "a tile": with_bad(output, (slice(2, 4), slice(128, 256)), 100),
    }
    return wrong[cause]


@pytest.mark.parametrize("cause", NAMED)
def test_a_common_cause_is_named(reference, cause):
    output = with_cause(cause, reference)
    factors = {"routed_scaling_factor": 2.5}
    sentences = diagnosis.sentences(output, reference, DEFAULT, factors)
    assert NAMED[cause] in sentences[-1]


def test_errors_are_located(reference):
    output = with_bad(reference, (6, 9), 300)
    absolute, _, wrong = diagnosis.sentences(
        output, reference, TOLERANCES["contest"], {}
    )
    assert "(6, 9): got 300" in absolute
    assert "(6, 9)" in wrong


def test_noise_has_no_cause_made_up(reference):
    torch.manual_seed(1)
    noise = torch.randn(8, 256).bfloat16()
    assert len(diagnosis.sentences(noise, reference, DEFAULT, {"x": 2.5})) == 3


def test_no_tokens_have_no_bias(reference):
    assert bias.bias(reference[:0], reference[:0]) is None


def fp8_rounded(expected):
    """Return an output as one FP8 rounding leaves it."""
    expected = expected.float()
    scale = expected.abs().max() / 448
    codes = (expected / scale).to(torch.float8_e4m3fn)
    rounded = codes.float() * scale
    return rounded.bfloat16()


BIASES = {  # -> what is named
    "factor": "1.05",
    "small factor": "0.99",
    "factor and noise": "1.02",
    "factor and wrong tokens": "1.05",
    "above": "above",
    "truncated": "closer to zero",
    "right": None,
    "rounded": None,
    "wrong tokens": None,
}


def biased(name, output):
    """Return what a solution with this bias makes of a right output."""
    outputs = {
        "factor": output * 1.05,
        "small factor": output * 0.99,
        "factor and noise": fp8_rounded(output * 1.02),
        "factor and wrong tokens": with_bad(output * 1.05, slice(0, 6), 3),
        "above": output + 1,
        "truncated": (output.view(torch.int16) & -2).view(torch.bfloat16),
        "right": output,
        "rounded": fp8_rounded(output),
        "wrong tokens": with_bad(output, slice(0, 8), 3),
    }
    return outputs[name]


@pytest.mark.parametrize("name", BIASES)
def test_a_bias_is_recognised_in_noise_and_among_wrong_tokens(name):
    torch.manual_seed(2)
    expected = torch.randn(64, 256).bfloat16()
    sentence = bias.bias(biased(name, expected), expected)
    if BIASES[name] is None:
        assert sentence is None
    else:
        assert BIASES[name] in sentence


@pytest.fixture(scope="module")
def layer():
    """(definition, inputs, reference as a function of inputs) on a small workload."""
    full = definition("small")
    ((_, workload),) = labelled(full.name, wanted=["first-rank"])
    runnable = BuilderRegistry.get_instance().build_reference(full)
    stored = load_safetensors(full, workload, paths.ROOT)
    (inputs,) = seeded_inputs(full, workload, 1, "cpu", stored)
    inputs[list(full.inputs).index("local_expert_offset")] = 32
    return full, inputs, lambda changed: call(full, runnable, changed, "cpu")[0]


MISTAKES = [
    "hidden_states_scale",
    "gemm2_weights_scale",
    "local_expert_offset",
    "halves of gemm1",
]


@pytest.mark.parametrize("named", MISTAKES)
def test_a_mistake_of_the_layer_is_recognised(layer, named):
    full, inputs, reference = layer
    by_name = dict(zip(full.inputs, inputs, strict=True))
    mistakes = dict(diagnosis.mistakes(by_name))
    (mistake,) = [each for each in mistakes if named in each]

    mistaken_inputs = by_name | mistakes[mistake]
    output = reference(list(mistaken_inputs.values()))
    expected = reference(inputs)
    *_, cause = diagnosis.diagnose(full, inputs, 0, output, expected, DEFAULT)
    assert cause == mistake


# The place of an error

ORIGINS = {
    "main.py": PurePosixPath("solutions/mine/main.py"),
    "layer.cu": PurePosixPath("solutions/mine/layer.cu"),
    "common/triton/route.py": PurePosixPath("solutions/common/triton/route.py"),
    "common/cuda/mma.cuh": PurePosixPath("solutions/common/cuda/mma.cuh"),
}
ROUTE = ORIGINS["common/triton/route.py"]
MMA = ORIGINS["common/cuda/mma.cuh"]
XYZ = 'identifier "xyz" is undefined'

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
HUNG = """printed before
Timeout (0:00:03)!
Thread 0x00007f (most recent call first):
  File "/venv/torch/tensor.py", line 9 in matmul
  File "/c/fib_python_mine_0/fib_python_mine_0/main.py", line 40 in experts
  File "/c/fib_python_mine_0/fib_python_mine_0/main.py", line 7 in run
"""
RAISED = {
    "triton": (
        LAUNCH,
        ["NameError: name 'nothing' is not defined", f"at {ROUTE}:39 in route_kernel"],
    ),
    "nvcc": (NVCC, [f"layer.cu(12): error: {XYZ}", "at solutions/mine/layer.cu:12"]),
    "nvcc in a common file": (
        NVCC.replace("layer.cu", "common/cuda/mma.cuh"),
        [f"mma.cuh(12): error: {XYZ}", f"at {MMA}:12"],
    ),
    "triton's compiler": (
        COMPILED,
        [
            "triton.compiler.errors.CompilationError: at 3:8: name is not defined",
            "at solutions/mine/main.py:7 in run",
        ],
    ),
    "no traceback": ("it did not work", ["it did not work"]),
    "nothing": ("", ["no message"]),
}


@pytest.mark.parametrize("name", RAISED)
def test_the_own_frame_of_an_error_is_shown(name):
    log, lines = RAISED[name]
    named = frames.with_shown_paths(log, ORIGINS)
    assert "fib_" not in "".join(line for line in named.splitlines() if "File" in line)
    assert frames.error_lines(named, ORIGINS) == lines


def test_the_place_of_a_time_out_is_the_innermost_own_frame():
    named = frames.with_shown_paths(HUNG, ORIGINS)
    (line,) = frames.hang_lines(named, ORIGINS)
    assert line == "at solutions/mine/main.py:40 in experts"
    assert frames.hang_lines("printed", ORIGINS) == []


# Of a solution that is evaluated


def test_a_solution_that_raises_shows_its_own_line(monkeypatch, tmp_path):
    folder = tmp_path / "solutions"
    without_caches = shutil.ignore_patterns("__pycache__")
    for name in ("torch_moe", "common"):
        shutil.copytree(paths.SOLUTIONS / name, folder / name, ignore=without_caches)
    monkeypatch.setattr(paths, "SOLUTIONS", folder)
    assert cli.main(["new", "mine"]) == 0
    main = folder / "mine" / "main.py"
    before, line, after = main.read_text().partition("    y = torch.zeros_like(x)")
    main.write_text(f"{before}{line}.no_such{after}")

    evaluated = judged.evaluated(pack.pack("mine")["small"], tolerance="default")

    assert evaluated.trace.evaluation.status.value == "RUNTIME_ERROR"
    number = before.count("\n") + 1
    assert evaluated.reasons == (
        "AttributeError: 'Tensor' object has no attribute 'no_such'",
        f"at solutions/mine/main.py:{number} in experts",
    )
    for log in (evaluated.log, evaluated.trace.evaluation.log):
        assert 'File "solutions/mine/main.py"' in log
    assert 'File "/' not in evaluated.trace.evaluation.log
