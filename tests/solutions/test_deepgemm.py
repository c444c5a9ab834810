"""deepgemm with torch in place of DeepGEMM's kernels; the stand-in makes the same checks as DeepGEMM's host code."""

import importlib
import inspect
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from unittest import mock

import ahead_of_time
import pytest
import torch
from harness.operators.catalogue import GEOMETRIES
from harness.packing import manifest
from layer_inputs import arguments, wanted

from definitions import moe_fp8_block_scale as moe
from definitions import moe_fp8_block_scale_renorm as renorm

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles for the GPU in this process"),
    pytest.mark.usefixtures("poisoned_scratch"),
]
RECORDED = json.loads((Path(__file__).parents[1] / "samples" / "deep_gemm_signatures.json").read_text())
SERVED = manifest.read_manifest("deepgemm").definitions
OFFSET, FACTOR, LOCAL = 29, 2.5, 32
TILE = 128


def dequantised(values, scales, rows):
    """fp8 [R, C] and its scales [R / rows, C / 128] -> fp32."""
    return values.float() * scales.repeat_interleave(rows, 0)[: len(values)].repeat_interleave(128, 1)


def stand_in(calls):
    """A module with the part of deep_gemm that is used; appends (function, arguments) to calls.

    It checks what DeepGEMM 0.1's host code asserts on SM90, and fills rows that it would not, or only partly, define
    with NaN.
    """
    module = ModuleType("deep_gemm")

    def check(a, b, d, layout):
        (x, x_scale), (w, w_scale) = a, b
        groups, columns, depth = w.shape
        rows = x.shape[-2]
        assert x.dtype == w.dtype == torch.float8_e4m3fn and d.dtype == torch.bfloat16
        assert x_scale.dtype == w_scale.dtype == torch.float32 and layout.dtype == torch.int32
        assert x.is_contiguous() and w.is_contiguous() and d.is_contiguous() and w_scale.is_contiguous()
        assert x_scale.shape == (*x.shape[:-1], depth // 128)
        assert x_scale.stride()[-2:] == (1, rows), "else DeepGEMM launches a kernel that transposes the scales"
        assert rows % TILE == 0, "a tile's store would reach the next expert"
        assert w_scale.shape == (groups, columns // 128, depth // 128)
        assert layout.shape == (groups,) and layout.is_contiguous()
        d.fill_(torch.nan)

    def multiply(x, x_scale, w, w_scale):
        return (dequantised(x, x_scale, 1) @ dequantised(w, w_scale, 128).t()).bfloat16()

    def masked(a, b, d, masked_m, expected_m):
        check(a, b, d, masked_m)
        (x, x_scale), (w, w_scale) = a, b
        assert x.shape[0] == d.shape[0] == len(w) and x_scale.stride(0) == x_scale[0].numel()
        calls.append(("fp8_m_grouped_gemm_nt_masked", masked_m.clone(), expected_m))
        for e, count in enumerate(masked_m.tolist()):
            d[e, :count] = multiply(x[e, :count], x_scale[e, :count], w[e], w_scale[e])

    def contiguous(
        a, b, d, grouped_layout, use_psum_layout=False, ensure_zero_padding=True, expected_m_for_psum_layout=None
    ):
        check(a, b, d, grouped_layout)
        assert use_psum_layout
        (x, x_scale), (w, w_scale) = a, b
        calls.append(("m_grouped_fp8_gemm_nt_contiguous", grouped_layout.clone(), expected_m_for_psum_layout))
        end = 0
        for e, next_end in enumerate(grouped_layout.tolist()):
            first, end = -(-end // TILE) * TILE, next_end
            assert first <= end <= len(x), "DeepGEMM subtracts them as unsigned integers"
            d[first:end] = multiply(x[first:end], x_scale[first:end], w[e], w_scale[e])

    module.set_pdl = lambda on: calls.append(("set_pdl", on))
    module.fp8_m_grouped_gemm_nt_masked = masked
    module.m_grouped_fp8_gemm_nt_contiguous = contiguous
    return module


@pytest.fixture
def load(packed_module, monkeypatch):
    """Geometry -> the packed solution's modules by name, as a function, and the list of deep_gemm's calls."""

    def load(geometry="small"):
        monkeypatch.setitem(sys.modules, "deep_gemm", stand_in(calls := []))
        return lambda name="main": packed_module("deepgemm", name, geometry), calls

    return load


def inputs(geometry, num_tokens):
    return arguments(geometry, num_tokens, "cpu", offset=OFFSET)


def call(module, geometry, given):
    """The layer's output and the reference's, fp32."""
    (module().run_renorm if geometry in renorm.GEOMETRIES else module().run)(*given.values())
    return given["output"].float(), wanted(geometry, given).float()


def always_contiguous(module, monkeypatch):
    """Make a few tokens take the layout of many."""
    monkeypatch.setattr(module("rows"), "MOST_MASKED_TOKENS", 0)
    module("rows").arrange.cache_clear()


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(
    "geometry", ["small", *(pytest.param(name, marks=pytest.mark.slow) for name in (*moe.SMALL[1:], *renorm.SMALL))]
)
def test_the_layer_gives_the_definitions_answer(load, monkeypatch, geometry, masked):
    """A user would miss: gate taken for up, another row's scale, a row of another expert, an expert without rows."""
    module, calls = load(geometry)
    if not masked:
        always_contiguous(module, monkeypatch)
    for num_tokens in (1, 5):  # the second call finds the counters that the first left
        found, right = call(module, geometry, inputs(geometry, num_tokens))
        assert torch.isclose(found, right, rtol=0.1, atol=0.1).float().mean() > 0.85
        assert (found - right).norm() < 0.05 * right.norm()
    assert {name for name, *_ in calls[1:]} == {calls[1][0]}
    assert ("masked" in calls[1][0]) == masked and calls[0] == ("set_pdl", True) and len(calls) == 5


@pytest.mark.parametrize("masked", [True, False])
def test_gather_is_its_plain_statement(load, monkeypatch, masked):
    """A user would miss: which stage is wrong, if one is."""
    module, _ = load()
    if not masked:
        always_contiguous(module, monkeypatch)
    logits, bias, x, x_scale, *_ = inputs("small", 13).values()
    gather, rows = module("gather"), module("rows").arrange(13)
    expert, weight = module("common.triton.route").route_ref(logits, bias, OFFSET, FACTOR, LOCAL)
    wanted = gather.gather_ref(x, x_scale, expert, LOCAL, rows)
    counts, ends = torch.zeros(2, LOCAL, dtype=torch.int32)
    out, out_scale = (allocate() for allocate in module("grouped_gemm").operand(rows, x.shape[1], x.device))
    of_pairs = module("pairs").pairs_of(13, x.device)()
    start = gather.prepare_gather(rows, 13, OFFSET, FACTOR, x.device)
    start(0, logits, bias, x, x_scale, counts, ends, of_pairs, out, out_scale)
    by_column = out_scale.view(-1, rows.room, x_scale.shape[0]).transpose(1, 2)
    _, found_weight, found_row_of_pair, _ = of_pairs
    found = out.view(rows.total, -1), by_column, found_row_of_pair, counts if rows.masked else ends
    found_weight = found_weight.view(torch.float32)
    order, found_order = wanted[2].argsort(-1), found[2].argsort(-1)  # routing lists a token's experts as it likes
    row, found_row = wanted[2].gather(1, order).long(), found[2].gather(1, found_order).long()
    assert torch.equal(row, found_row), "the interpreter runs tokens in order"
    row = row[row >= 0]
    assert torch.equal(found[0][row].float(), wanted[0][row].float())
    at = (row // rows.room, slice(None), row % rows.room)
    assert torch.equal(found[1][at], wanted[1][at])
    assert torch.equal(found[3], wanted[3]) and int(counts.sum()) == len(row)
    torch.testing.assert_close(found_weight.gather(1, found_order), weight.gather(1, order))


def test_a_call_that_fails_leaves_no_counts(load, monkeypatch):
    """A user would miss: one failed compilation of DeepGEMM, and every later answer wrong."""
    module, _ = load()
    given = inputs("small", 5)
    module()  # imports deep_gemm's functions
    with monkeypatch.context() as context:
        context.setattr(sys.modules["deep_gemm"], "fp8_m_grouped_gemm_nt_masked", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            call(module, "small", given)
    found, right = call(module, "small", given)
    assert (found - right).norm() < 0.05 * found.norm()


def test_captures_and_threads_have_counters_of_their_own(load, monkeypatch):
    """A user would miss: a graph replayed beside eager calls, or two threads on a stream, and both count together."""
    module = load()[0]("counters")
    cuda, at = mock.Mock(type="cuda", index=0), {"stream": 7, "capture": None}
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: at["capture"] is not None)
    monkeypatch.setattr(module, "_capture_number", lambda stream: at["capture"])
    monkeypatch.setattr(module, "_new", lambda device: [])

    def of(**where):
        at.update(where)
        return module.counters(cuda, at["stream"])

    eager = of()
    with ThreadPoolExecutor(1) as pool:
        other_thread = pool.submit(of).result()
    first, second = of(capture=1), of(capture=2)
    assert of(capture=2) is second, "layers of one graph share them, so that one memset serves all"
    everyone = [eager, other_thread, first, second, of(stream=8, capture=2), of(capture=None)]
    assert len({id(counts) for counts in everyone}) == len(everyone)
    assert of(stream=7) is eager


def test_a_known_kind_of_call_lets_no_other_pass(load):
    """A user would miss: tensors that kernels were not written for, let through because an earlier call was right."""
    main = load()[0]()
    given = inputs("small", 5)
    output, good = given["output"], [value for value in given.values() if torch.is_tensor(value)]
    plan_of = partial(main.plan_of, main.DS_ROUTING)
    plan = plan_of(tuple(good), OFFSET, FACTOR)
    assert plan_of(tuple(tensor.clone() for tensor in good), OFFSET, FACTOR) is plan, "other addresses, same kind"
    longer = inputs("small", 6)["routing_logits"]
    shifted = torch.empty(output.numel() + 1, dtype=output.dtype)[1:].view_as(output)
    bad = [
        (0, good[0].double()),
        (0, longer),
        (1, None),
        (2, good[2].t().contiguous().t()),
        (3, good[3].tolist()),
        (4, good[4].to("meta")),
        (6, good[6][:-1]),
        (8, shifted),
    ]
    for at, value in bad:
        with pytest.raises(ValueError):
            plan_of((*good[:at], value, *good[at + 1 :]), OFFSET, FACTOR)
    for offset, factor in ((float(OFFSET), FACTOR), ([OFFSET], FACTOR), (250, FACTOR), (OFFSET, None), (OFFSET, True)):
        with pytest.raises(ValueError):
            plan_of(tuple(good), offset, factor)
    assert plan_of(tuple(good), OFFSET + 1, FACTOR) is not plan, "an offset is part of the launches"
    assert plan_of(tuple(good), OFFSET, FACTOR) is plan


def test_later_launches_take_the_tensors_of_their_call(load, monkeypatch):
    """A user would miss: results in the output tensor of an earlier call, or kernels that a profiler does not list."""
    prepare = load()[0]("prepare")
    quick, ordinary = mock.Mock(), mock.Mock()
    kernel = mock.MagicMock(params=[mock.Mock(is_constexpr=name.isupper()) for name in ("a_ptr", "n", "B", "A")])
    for parameter, name in zip(kernel.params, ("a_ptr", "n", "B", "A"), strict=True):
        parameter.name = name
    kernel.__getitem__.return_value = ordinary
    monkeypatch.setattr(prepare.launch, "SUPPORTED", True)
    monkeypatch.setattr(prepare.launch, "launcher_of", lambda compiled: (quick, ("function",)))
    first, second, third = (torch.empty(4) for _ in range(3))
    settings = dict(A="a", B="b", num_warps=4)
    start = prepare.prepare(kernel, first.device, (7, 2, 1), (9,), **settings)
    start("stream", first)
    ordinary.assert_called_once_with(first, 9, **settings)
    start("stream", second)
    quick.assert_called_once_with(7, 2, 1, "stream", "function", second.data_ptr(), 9, "b", "a")
    prepare.prepare(kernel, first.device, (8, 2, 1), (10,), **settings)("other", third)
    quick.assert_called_with(8, 2, 1, "other", "function", third.data_ptr(), 10, "b", "a")
    assert ordinary.call_count == 1, "another T needs no new kernel"
    prepare.prepare(kernel, first.device, (8, 2, 1), (10,), **settings | {"A": "c"})("other", third)
    assert ordinary.call_count == 2, "other constexprs do"
    monkeypatch.setattr(prepare.launch, "hooked", lambda: True)
    start("stream", second)
    assert ordinary.call_count == 3 and quick.call_count == 2


@pytest.mark.parametrize("geometry", SERVED)
def test_rows_have_room_for_any_routing(load, geometry):
    """A user would miss: a write past an operand when routing is uneven, or scratch that does not fit."""
    rows, of = load(geometry)[0]("rows"), GEOMETRIES[geometry]
    local = of["num_local_experts"]
    seen = []
    for num_tokens in (1, 7, 64, 127, 128, 129, 256, 901, 1024, 1025, 4096, 14107, 16384):
        found = rows.arrange(num_tokens)
        seen.append(found.masked)
        pairs = num_tokens * min(of["top_k"], local)
        assert found.total % TILE == found.room % TILE == 0 and 1 <= found.expected <= num_tokens
        if found.masked:
            assert found.room >= num_tokens and found.total == local * found.room
            assert found.total * rows.BYTES_PER_ROW <= rows.MOST_MASKED_BYTES
        else:
            active = min(local, pairs)  # at worst all but one have a single row
            assert found.room == found.total >= -(-(pairs - active + 1) // TILE) * TILE + (active - 1) * TILE
    assert seen == sorted(seen, reverse=True), "masked, then contiguous"
    assert seen[0] and not seen[-1]


@pytest.mark.parametrize("release", RECORDED)
def test_our_calls_fit_the_signatures(load, release):
    """A user would miss: a TypeError on the GPU, after a rename or a removal."""
    module, bound = load()[0], {}
    module()
    for function, parameters in RECORDED[release].items():
        signature = inspect.Signature(
            inspect.Parameter(name, getattr(inspect.Parameter, kind), default=default or inspect.Parameter.empty)
            for name, kind, default in parameters
        )

        def call(*args, of=signature, name=function, **kwargs):
            bound[name] = of.bind(*args, **kwargs).arguments

        setattr(sys.modules["deep_gemm"], function, call)
    product, rows = importlib.reload(module("grouped_gemm")), module("rows").Rows
    w, w_scale = (inputs("small", 1)[name] for name in ("gemm1_weights", "gemm1_weights_scale"))
    layout = torch.ones(32, dtype=torch.int32)
    for masked, room, shape in ((True, TILE, (32, TILE)), (False, 32 * TILE, (32 * TILE,))):
        form = rows(masked, room, 32 * TILE, shape, 7)
        a = tuple(allocate() for allocate in product.operand(form, w.shape[2], w.device))
        product.grouped_gemm(a, (w, w_scale), product.result(form, w.shape[1], w.device)(), layout, form)
    masked, contiguous = bound["fp8_m_grouped_gemm_nt_masked"], bound["m_grouped_fp8_gemm_nt_contiguous"]
    assert masked["masked_m"] is contiguous["grouped_layout"] is layout
    assert masked["expected_m"] == contiguous["expected_m_for_psum_layout"] == 7
    assert contiguous["use_psum_layout"] is True
    assert bound["set_pdl"] == {"new_value": True}


def test_a_deep_gemm_of_another_torch_is_named(tmp_path, load, monkeypatch):
    """A user would miss: that the wheel, not this project, has to change; the linker only names a symbol."""
    product = load()[0]("grouped_gemm")
    (tmp_path / "deep_gemm.py").write_text("raise OSError('_C.so: undefined symbol: _ZN3c10')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "deep_gemm")
    with pytest.raises(ImportError, match="deep_gemm.*torch.*_ZN3c10"):
        importlib.reload(product)


@pytest.mark.slow
def test_the_stages_compile_for_sm_90(tmp_path, monkeypatch):
    """A user would miss: the first call at some token count dies in the compiler, or a stage that spills."""
    names = "set_pdl = fp8_m_grouped_gemm_nt_masked = m_grouped_fp8_gemm_nt_contiguous"
    (tmp_path / "deep_gemm.py").write_text(f"{names} = lambda *_, **__: None")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    kernels = ahead_of_time.compiled("deepgemm", "full", "sm_90", (1, 64, 1024, 4096), tmp_path)
    stages = {name for name in manifest.read_manifest("deepgemm").stages if name.endswith("_kernel")}
    assert {kernel["kernel"] for kernel in kernels} == stages
    assert not [kernel for kernel in kernels if kernel["stack"]]
