"""deepgemm with torch in place of DeepGEMM's kernels; the stand-in makes the same checks as
DeepGEMM's host code.
"""

import ctypes
import inspect
import json
import os
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from unittest import mock

import ahead_of_time
import pytest
import torch
import triton
import tvm_ffi.cpp
from layer_inputs import arguments, reference, wanted
from moebench.operators import moe_fp8_block_scale as moe
from moebench.operators import moe_fp8_block_scale_renorm as renorm
from moebench.operators import swiglu as activations
from moebench.operators.catalogue import GEOMETRIES
from moebench.packing import manifest

pytestmark = [
    pytest.mark.skipif(
        torch.cuda.is_available(), reason="Triton compiles for the GPU in this process"
    ),
    pytest.mark.usefixtures("poisoned_scratch"),
]
SAMPLES = Path(__file__).parents[1] / "samples"
RECORDED = json.loads((SAMPLES / "deep_gemm_signatures.json").read_text())
SERVED = manifest.read_manifest("deepgemm").definitions
SLOW = [
    pytest.param(geometry, marks=pytest.mark.slow)
    for geometry in (*moe.small()[1:], *renorm.small())
]
OFFSET, TILE = 29, 128


def dequantised(values, scales, rows):
    """fp8 [R, C] and its scales [R / rows, C / 128] -> fp32."""
    return values.float() * scales.repeat_interleave(rows, 0)[: len(values)].repeat_interleave(
        128, 1
    )


def stand_in(calls):
    """A module with the part of deep_gemm that is used; appends (function, arguments) to calls.

    It checks what DeepGEMM 0.1's host code asserts on SM90, and fills rows that it would not, or
    only partly, define with NaN.
    """
    module = ModuleType("deep_gemm")

    def accepted(function, *args, **kwargs):
        for (
            release
        ) in RECORDED.values():  # else a TypeError on the GPU, after a rename or a removal
            parameters = [
                inspect.Parameter(
                    name,
                    getattr(inspect.Parameter, kind),
                    default=default or inspect.Parameter.empty,
                )
                for name, kind, default in release[function]
            ]
            inspect.Signature(parameters).bind(*args, **kwargs)
        calls.append((function, *args, kwargs))
        return made[function](*args, **kwargs)

    def check(a, b, d, layout):
        (x, x_scale), (w, w_scale) = a, b
        groups, columns, depth = w.shape
        rows = x.shape[-2]
        assert x.dtype == w.dtype == torch.float8_e4m3fn and d.dtype == torch.bfloat16
        assert x_scale.dtype == w_scale.dtype == torch.float32 and layout.dtype == torch.int32
        assert (
            x.is_contiguous()
            and w.is_contiguous()
            and d.is_contiguous()
            and w_scale.is_contiguous()
        )
        assert x_scale.shape == (*x.shape[:-1], depth // 128)
        assert x_scale.stride()[-2:] == (1, rows), (
            "else DeepGEMM launches a kernel that transposes the scales"
        )
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
        for e, count in enumerate(masked_m.tolist()):
            d[e, :count] = multiply(x[e, :count], x_scale[e, :count], w[e], w_scale[e])

    def contiguous(
        a,
        b,
        d,
        grouped_layout,
        use_psum_layout=False,
        ensure_zero_padding=True,
        expected_m_for_psum_layout=None,
    ):
        check(a, b, d, grouped_layout)
        assert use_psum_layout
        (x, x_scale), (w, w_scale) = a, b
        ends = grouped_layout.tolist()
        for e, end in enumerate(ends):
            first = -(-ends[e - 1] // TILE) * TILE if e else 0
            assert first <= end <= len(x), "DeepGEMM subtracts them as unsigned integers"
            d[first:end] = multiply(x[first:end], x_scale[first:end], w[e], w_scale[e])

    made = {
        "fp8_m_grouped_gemm_nt_masked": masked,
        "m_grouped_fp8_gemm_nt_contiguous": contiguous,
        "set_pdl": bool,
    }
    for name in made:
        setattr(module, name, partial(accepted, name))
    return module


@pytest.fixture
def load(packed_module, monkeypatch):
    """Geometry -> the packed solution's modules by name, as a function, and the list of deep_gemm's
    calls.
    """

    def load(geometry="small"):
        monkeypatch.setitem(sys.modules, "deep_gemm", stand_in(calls := []))
        return lambda name="main": packed_module("deepgemm", name, geometry), calls

    return load


def inputs(geometry, num_tokens):
    return arguments(geometry, num_tokens, "cpu", offset=OFFSET)


def call(module, geometry, given):
    """The layer's output and the reference's, fp32."""
    entry = (
        "run_routed"
        if "topk_ids" in given
        else "run_renorm"
        if geometry in renorm.geometries()
        else "run"
    )
    getattr(module(), entry)(*given.values())
    return given["output"].float(), wanted(geometry, given).float()


def always_contiguous(module, monkeypatch):
    """Make a few tokens take the layout of many."""
    monkeypatch.setattr(module("rows"), "MOST_MASKED_TOKENS", 0)
    module("rows").arrange.cache_clear()


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("geometry", ["small", "small-routed", *SLOW])
def test_the_layer_gives_the_definitions_answer(load, monkeypatch, geometry, masked):
    """Gate taken for up, another row's scale, a row of another expert, an expert
    without rows.
    """
    module, calls = load(geometry)
    if not masked:
        always_contiguous(module, monkeypatch)
    for num_tokens in (
        1,
        5,
        1,
    ):  # later calls find the counters that the first left, the last one larger scratch
        given = inputs(geometry, num_tokens)
        if "topk_ids" in given:
            given["topk_ids"][-1, 1] = given["topk_ids"][-1, 0] = OFFSET + 1  # twice the same
        found, right = call(module, geometry, given)
        assert torch.isclose(found, right, rtol=0.1, atol=0.1).float().mean() > 0.85
        assert (found - right).norm() < 0.05 * right.norm()
    assert {name for name, *_ in calls[1:]} == {calls[1][0]}
    assert (
        ("masked" in calls[1][0]) == masked
        and calls[0] == ("set_pdl", True, {})
        and len(calls) == 7
    )


def test_the_activation_is_the_definitions(load, monkeypatch):
    """A clamp that is dropped."""
    module, _ = load("small")
    for name, value in dict(LIMIT=0.3, ALPHA=1.702, UP_OFFSET=1.0).items():
        monkeypatch.setattr(module("common.host.problem"), f"SWIGLU_{name}", value)
    monkeypatch.setattr(activations, "LIMIT", 0.3)
    monkeypatch.setitem(
        reference("small").local_experts.__globals__, "swiglu", activations.swigluoai
    )
    found, right = call(module, "small", inputs("small", 5))
    assert (found - right).norm() < 0.05 * right.norm()


def test_a_call_that_fails_leaves_no_counts(load, monkeypatch):
    """One failed compilation of DeepGEMM, and every later answer wrong."""
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
    """A graph replayed beside eager calls, or two threads on a stream, and both
    count together.
    """
    module = load()[0]("counters")
    cuda, at = mock.Mock(type="cuda", index=0), {"stream": 7, "capture": None}
    monkeypatch.setattr(
        torch.cuda, "is_current_stream_capturing", lambda: at["capture"] is not None
    )
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


@pytest.mark.parametrize("geometry", SERVED)
def test_rows_have_room_for_any_routing(load, geometry):
    """A write past an operand when routing is uneven, or scratch that does not
    fit.
    """
    module = load(geometry)[0]
    rows, places, of = module("rows"), module("scratch").places, GEOMETRIES[geometry]
    local, seen = of["num_local_experts"], []
    for num_tokens in (1, 7, 64, 127, 128, 129, 256, 901, 1024, 1025, 4096, 14107, 16384):
        found = rows.arrange(num_tokens)
        seen.append(found.masked)
        pairs = num_tokens * min(of["top_k"], local)
        assert found.total % TILE == found.room % TILE == 0 and 1 <= found.expected <= num_tokens
        parts, end = places(num_tokens)
        starts = [offset for offset, *_ in parts.values()]
        assert starts[:-1] == sorted(starts[:-1]) and starts[-1] == parts["x_scale"][0], (
            "h is read while y is written"
        )
        assert end <= found.total * rows.BYTES_PER_ROW + 16 * num_tokens * of["top_k"] + 7 * 256
        if found.masked:
            assert found.room >= num_tokens and found.total == local * found.room
            assert found.total * rows.BYTES_PER_ROW <= rows.MOST_MASKED_BYTES
        else:
            active = min(local, pairs)  # at worst all but one have a single row
            assert (
                found.room
                == found.total
                >= -(-(pairs - active + 1) // TILE) * TILE + (active - 1) * TILE
            )
    assert seen == sorted(seen, reverse=True) and seen[0] and not seen[-1], (
        "masked, then contiguous"
    )


class Launch(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in ("grid", "y", "z", "block", "by", "bz", "shared")]
    _fields_ += [
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    ]


def test_a_recorded_call_is_launched_for_other_tensors(tmp_path):
    """Another call's weights, a launch left out, or a pointer that was taken for
    a number.
    """
    roots = [Path(triton.__file__).parent / "backends/nvidia/include", manifest.paths.SOLUTIONS]
    built, source = tmp_path / "d", tmp_path / "l.cpp"
    subprocess.run(
        ["cc", "-shared", "-fPIC", f"-I{roots[0]}", "-o", built, SAMPLES / "deepgemm_driver.c"],
        check=True,
    )
    source.write_text((manifest.paths.SOLUTIONS / "deepgemm/launches.cuh").read_text())
    flags, folders = (
        [rf"-DCUDA_DRIVER=\"{built}\"", "-Wall", "-Werror"],
        dict(build_directory=str(tmp_path)),
    )
    folders |= {"cpp_files": [str(source)], "extra_include_paths": [*map(str, roots)]}
    library = tvm_ffi.cpp.load("launches", extra_cflags=flags, **folders)
    (replay, begin, end, keep, lend), driver, handles = (
        library.functions(),
        ctypes.CDLL(str(built)),
        [],
    )
    scratch, larger = (torch.empty(size, dtype=torch.uint8) for size in (1024, 4096))
    counts, (x, w, output), (x2, w2, output2) = (
        torch.empty(8),
        torch.empty(3, 4, 4),
        torch.empty(3, 4, 4),
    )

    def launch(
        stream, grid, *values
    ):  # an address, a number, or the first two words of a tensor map
        packed = [
            struct.pack("<QQ112x" if len(v) > 1 else "<Q" if v[0] > 99 else "<I", *v)
            for v in values
        ]
        handles.append((ctypes.c_int * (len(values) + 1))(*map(len, packed), 0))
        pointers = (ctypes.c_char_p * len(values))(*packed)
        driver.cuLaunchKernelEx(
            ctypes.byref(Launch(grid, stream=stream)), handles[-1], pointers, None
        )

    def record(*arguments, nobody=0, x=x, output=output):
        first, stream = scratch.data_ptr(), begin()
        launch(stream, 3, [x.data_ptr() + nobody], [first + 256], [7])
        launch(
            stream,
            5,
            [w.data_ptr(), 98],
            [first + 512, 97],
            [output.data_ptr()],
            [counts.data_ptr()],
        )
        return keep(end(stream), parts(scratch), [first + 512], x, w, *arguments, output)

    def parts(block):
        return [counts.data_ptr(), counts.nbytes, block.data_ptr(), block.nbytes]

    unknown, done, ordinary = range(3)
    assert replay(x, w, 2.5, 3, output) == unknown and record(2.5, 3) == ""
    assert replay(x, w, 2.5, 3, output) == ordinary, "no scratch yet"
    lend(0, 0, parts(larger))
    assert replay(x2, w2, 2.5, 3, output2) == done
    at = larger.data_ptr()
    second = f"5 2 {w2.data_ptr()} 98 {at + 512} 97 {output2.data_ptr()} {counts.data_ptr()}"
    assert replay(x, w, 2.5, 4, output) == replay(x.double(), w, 2.5, 3, output) == unknown
    lend(0, 0, parts(larger[:512]))
    assert replay(x, w, 2.5, 3, output) == replay(x.t(), w, 2.5, 3, output) == ordinary
    assert record(2.5, 5, nobody=1 << 40) and replay(x, w, 2.5, 5, output) == ordinary
    assert record(2.5, 6, output=x) and replay(x, w, 2.5, 6, x) == unknown, (
        "whose is a pointer to x?"
    )
    assert (
        ctypes.string_at(driver.told).decode() == f"\n3 2 {x2.data_ptr()} {at + 256} 7\n{second}"
    ), "and no more"


@pytest.mark.slow
def test_the_stages_compile_for_sm_90(tmp_path, monkeypatch):
    """The first call at some token count dies in the compiler, or a stage that
    spills.
    """
    names = "set_pdl = fp8_m_grouped_gemm_nt_masked = m_grouped_fp8_gemm_nt_contiguous"
    (tmp_path / "deep_gemm.py").write_text(f"{names} = lambda *_, **__: None")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    kernels = ahead_of_time.compiled("deepgemm", "full", "sm_90", (1, 64, 1024, 4096), tmp_path)
    stages = {
        name for name in manifest.read_manifest("deepgemm").stages if name.endswith("_kernel")
    }
    assert {kernel["kernel"] for kernel in kernels} == stages
    assert not [kernel for kernel in kernels if kernel["stack"]]
