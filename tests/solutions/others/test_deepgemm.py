"""deepgemm with torch in place of DeepGEMM's kernels; the stand-in makes the same checks as
DeepGEMM's host code.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import reload
from types import ModuleType
from unittest import mock

import ahead_of_time
import pytest
import torch
from every_solution import (
    expected_output,
    interpreted,
    relative_error,
    share_of_close,
    slow,
)
from layer_inputs import arguments as layer_arguments
from layer_inputs import reference
from moebench.operators import catalogue
from moebench.operators.fp8 import swiglu
from moebench.packing import manifest
from signatures import recorded, signature_of

from solutions.common.host import problem
from solutions.deepgemm import rows

pytestmark = [interpreted, pytest.mark.usefixtures("poisoned_scratch")]
MASKED = "fp8_m_grouped_gemm_nt_masked"
CONTIGUOUS = "m_grouped_fp8_gemm_nt_contiguous"
RELEASES = recorded("deep_gemm_signatures.json").values()
CASES = [
    ("small", MASKED),
    ("small", CONTIGUOUS),
    ("small-routed", MASKED),
    ("small-routed", CONTIGUOUS),
    slow("small-one-group", CONTIGUOUS),
    slow("small-renorm", MASKED),
]
OPERAND_DTYPES = [
    torch.float8_e4m3fn,  # x
    torch.float8_e4m3fn,  # w
    torch.bfloat16,  # d
    torch.float32,  # x_scale
    torch.float32,  # w_scale
    torch.int32,  # the layout
]
FIRST_EXPERT = 29
TILE = 128


# ---- DeepGEMM's part ----


class DeepGemm(ModuleType):
    """The functions of deep_gemm that are used; `calls` has the names of those that were called.

    They check what DeepGEMM 0.1's host code asserts on SM90, and fill rows that it would not, or
    only partly, define with NaN.
    """

    def __init__(self):
        super().__init__("deep_gemm")
        self.calls = []
        self.overlapping = None

    def note(self, function, *args, **kwargs):
        """Note a call. Raises TypeError for one that a recorded release does not take."""
        for release in RELEASES:
            signature_of(release[function]).bind(*args, **kwargs)
        self.calls.append(function)

    def set_pdl(self, enabled):
        self.overlapping = enabled

    def fp8_m_grouped_gemm_nt_masked(self, *args, **kwargs):
        self.note(MASKED, *args, **kwargs)
        multiply_masked(*args, **kwargs)

    def m_grouped_fp8_gemm_nt_contiguous(self, *args, **kwargs):
        self.note(CONTIGUOUS, *args, **kwargs)
        multiply_contiguous(*args, **kwargs)


def whole_tiles(num_rows):
    """Return the rows of as many tiles as these rows need."""
    return -(-num_rows // TILE) * TILE


def check_operands(a, b, d, layout):
    x, x_scale = a
    w, w_scale = b
    num_experts, columns, depth = w.shape
    rows = x.shape[-2]

    dtypes = [tensor.dtype for tensor in (x, w, d, x_scale, w_scale, layout)]
    assert dtypes == OPERAND_DTYPES
    for tensor in (x, w, d, w_scale, layout):
        assert tensor.is_contiguous()
    assert x_scale.shape == (*x.shape[:-1], depth // 128)
    # else DeepGEMM launches a kernel to transpose it
    assert x_scale.stride()[-2:] == (1, rows)
    assert rows % TILE == 0, "a tile's store would reach the next expert"
    assert w_scale.shape == (num_experts, columns // 128, depth // 128)
    assert layout.shape == (num_experts,)


def multiply(x, x_scale, w, w_scale):
    """Return [R, K] times [N, K] transposed, in bf16."""
    x_factor = x_scale.repeat_interleave(128, 1)
    w_factor = w_scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
    x = x.float() * x_factor
    w = w.float() * w_factor
    return (x @ w.t()).bfloat16()


def multiply_masked(a, b, d, masked_m, expected_m):
    """Multiply the first masked_m[e] rows of every expert's own matrix."""
    check_operands(a, b, d, masked_m)
    x, x_scale = a
    assert len(x) == len(d) == len(masked_m)
    assert x_scale.stride(0) == x_scale[0].numel()

    d.fill_(torch.nan)
    w, w_scale = b
    for expert, count in enumerate(masked_m.tolist()):
        tokens = x[expert, :count]
        token_scale = x_scale[expert, :count]
        d[expert, :count] = multiply(tokens, token_scale, w[expert], w_scale[expert])


def multiply_contiguous(a, b, d, grouped_layout, use_psum_layout=False, **hints):
    """Multiply the rows of each expert in one matrix; grouped_layout has where they end."""
    check_operands(a, b, d, grouped_layout)
    x, x_scale = a
    assert use_psum_layout

    d.fill_(torch.nan)
    first = 0
    for end, w, w_scale in zip(grouped_layout.tolist(), *b, strict=True):
        assert first <= end <= len(x), "DeepGEMM subtracts them as unsigned integers"
        rows = slice(first, end)
        d[rows] = multiply(x[rows], x_scale[rows], w, w_scale)
        first = whole_tiles(end)


# ---- the layer ----


@pytest.fixture
def deep_gemm(monkeypatch):
    module = DeepGemm()
    monkeypatch.setitem(sys.modules, "deep_gemm", module)
    return module


@pytest.fixture
def module(deep_gemm, packed_module):
    """A function of a name and a layer key that returns that module of the packed solution."""
    return lambda name="main", layer_key="small": packed_module(
        "deepgemm", name, layer_key
    )


def inputs(layer_key, num_tokens):
    return layer_arguments(layer_key, num_tokens, "cpu", offset=FIRST_EXPERT)


def run(main, layer_key, arguments):
    """Return the layer's output."""
    if "topk_ids" in arguments:
        main.run_routed(*arguments.values())
    elif layer_key in catalogue.RENORM.layer_sizes():
        main.run_renorm(*arguments.values())
    else:
        main.run(*arguments.values())
    return arguments["output"]


def assert_close(output, layer_key, arguments):
    expected = expected_output(layer_key, arguments)
    assert share_of_close(output, expected) > 0.85
    assert relative_error(output, expected) < 0.05


@pytest.mark.parametrize(("layer_key", "function"), CASES)
def test_the_layer_gives_the_definitions_answer(
    module, deep_gemm, monkeypatch, layer_key, function
):
    """Catches gate taken for up, scales of another row, rows of another expert or of none."""
    if function == CONTIGUOUS:  # at a few tokens as well
        packed_rows = module("rows", layer_key)
        monkeypatch.setattr(packed_rows, "MOST_MASKED_TOKENS", 0)
        packed_rows.arrange.cache_clear()

    # Later calls find the counters that the first left, the last one larger scratch.
    for num_tokens in (1, 5, 1):
        arguments = inputs(layer_key, num_tokens)
        if "topk_ids" in arguments:
            arguments["topk_ids"][-1, :2] = FIRST_EXPERT + 1  # twice the same

        output = run(module(layer_key=layer_key), layer_key, arguments)

        assert_close(output, layer_key, arguments)
    assert deep_gemm.calls == [function] * 6
    assert deep_gemm.overlapping


def test_the_activation_is_the_definitions(module, monkeypatch):
    """Catches a clamp that is dropped."""
    packed_problem = module("common.host.problem")
    monkeypatch.setattr(packed_problem, "SWIGLU_LIMIT", 0.3)
    monkeypatch.setattr(packed_problem, "SWIGLU_ALPHA", 1.702)
    monkeypatch.setattr(packed_problem, "SWIGLU_UP_OFFSET", 1.0)
    monkeypatch.setattr(swiglu, "LIMIT", 0.3)
    names = reference("small").local_experts.__globals__
    monkeypatch.setitem(names, "swiglu", swiglu.swigluoai)

    arguments = inputs("small", 5)
    output = run(module(), "small", arguments)

    assert relative_error(output, expected_output("small", arguments)) < 0.05


def test_a_call_that_fails_leaves_no_counts(module, deep_gemm, monkeypatch):
    """Catches a failed compilation of DeepGEMM that makes every later answer wrong."""
    arguments = inputs("small", 5)
    main = module()
    with monkeypatch.context() as context:
        context.setattr(deep_gemm, MASKED, lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(main, "small", arguments)

    output = run(main, "small", arguments)

    assert_close(output, "small", arguments)


# ---- scratch ----


def test_captures_and_threads_have_counters_of_their_own(module, monkeypatch):
    """Catches a graph and eager calls, or two threads on a stream, that count together."""
    counters = module("counters")
    device = mock.Mock(type="cuda", index=0)
    capture = None
    monkeypatch.setattr(
        torch.cuda, "is_current_stream_capturing", lambda: capture is not None
    )
    monkeypatch.setattr(counters, "_capture_number", lambda stream: capture)
    monkeypatch.setattr(counters, "_new", lambda device: [])

    eager = counters.counters(device, 7)
    with ThreadPoolExecutor(1) as pool:
        other_thread = pool.submit(counters.counters, device, 7).result()
    other_stream = counters.counters(device, 8)
    capture = 1
    first_graph = counters.counters(device, 7)
    capture = 2
    second_graph = counters.counters(device, 7)
    same_graph = counters.counters(device, 7)
    capture = None

    separate = [eager, other_thread, other_stream, first_graph, second_graph]
    assert len({id(counts) for counts in separate}) == 5
    assert same_graph is second_graph  # so that one memset serves all layers of a graph
    assert counters.counters(device, 7) is eager


TOKENS = (1, 7, 64, 127, 128, 129, 256, 901, 1024, 1025, 4096, 14107, 16384)
NUMBERS = (
    "num_experts",
    "num_local_experts",
    "top_k",
    "hidden_size",
    "intermediate_size",
)


@pytest.fixture
def rows_for():
    """A function of a layer's sizes that returns rows.py as packing makes it for them."""

    def load(sizes):
        constants = {name.upper(): sizes[name] for name in NUMBERS}
        with mock.patch.multiple(problem, **constants):
            return reload(rows)

    yield load
    reload(rows)


@pytest.mark.parametrize("layer_key", manifest.read_manifest("deepgemm").definitions)
def test_rows_have_room_for_any_routing(rows_for, layer_key):
    """Catches a write past an operand when routing is uneven."""
    sizes = catalogue.layer_sizes()[layer_key]
    rows = rows_for(sizes)
    num_local = sizes["num_local_experts"]

    for num_tokens in TOKENS:
        layout = rows.arrange(num_tokens)

        assert layout.total % TILE == 0
        assert layout.room % TILE == 0
        if layout.masked:
            assert layout.room >= num_tokens
            assert layout.total == num_local * layout.room
            assert layout.total * rows.BYTES_PER_ROW <= rows.MOST_MASKED_BYTES
        else:
            assert layout.room == layout.total
            assert layout.total >= most_contiguous_rows(num_tokens, sizes)


def most_contiguous_rows(num_tokens, sizes):
    """Return the rows in whole tiles at worst: all experts but one have a single row."""
    num_local = sizes["num_local_experts"]
    pairs = num_tokens * min(sizes["top_k"], num_local)
    others = min(num_local, pairs) - 1
    return whole_tiles(pairs - others) + others * TILE


# ---- ahead of time ----


@pytest.mark.slow
def test_the_stages_compile_for_sm_90(tmp_path, monkeypatch):
    """Catches a first call that dies in the compiler, or a stage that spills."""
    functions = f"set_pdl = {MASKED} = {CONTIGUOUS} = lambda *_, **__: None"
    (tmp_path / "deep_gemm.py").write_text(functions)
    folders = [str(tmp_path), *filter(None, sys.path)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))

    tokens = (1, 64, 1024, 4096)
    kernels = ahead_of_time.compiled("deepgemm", "full", "sm_90", tokens, tmp_path)

    stages = manifest.read_manifest("deepgemm").stages
    in_triton = {name for name in stages if name.endswith("_kernel")}
    assert {kernel["kernel"] for kernel in kernels} == in_triton
    for kernel in kernels:
        assert not kernel["stack"], kernel
