"""Solutions that call other people's kernels: their calls fit, on a machine that cannot run them."""

import contextlib
import dataclasses
import importlib
import importlib.metadata
import inspect
import io
import json
import os
import shutil
import subprocess
import sys
import tomllib
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import ahead_of_time
import pytest
import recorded as recorded_traces
import torch
from harness import cli
from harness.core import paths
from harness.judging.selection import build_slow
from harness.packing import eligibility, manifest, pack, problem
from harness.report.blocks import solutions as solutions_block
from harness.results import comparison
from harness.results.comparison import Comparison
from packaging.requirements import Requirement
from packaging.version import Version

from definitions import moe_fp8_block_scale as moe
from definitions import moe_fp8_block_scale_renorm as renorm
from solutions.flashinfer_cutlass import arguments as cutlass
from solutions.flashinfer_cutlass import build as cutlass_build
from solutions.flashinfer_cutlass.dequantise import dequantise, dequantise_ref
from solutions.flashinfer_trtllm import arguments as trtllm
from solutions.kernels import permute
from solutions.kernels.combine import combine_ref
from solutions.kernels.swiglu_quant import swiglu_quant_ref

# of Triton's interpreter, thousands of times
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RECORDED = json.loads((Path(__file__).parents[1] / "samples" / "flashinfer_signatures.json").read_text())
MODULES = {"trtllm_fp8_block_scale_moe": trtllm, "cutlass_fused_moe": cutlass}
BACKENDS = ["flashinfer_cutlass", "flashinfer_trtllm"]
OFFSET = 29  # no multiple of the number of local experts
SMALL = [*moe.SMALL, *renorm.SMALL]


def recorded(release, function):
    """inspect.Signature of a function of a release that need not be installed."""
    parameters = [
        inspect.Parameter(
            name,
            getattr(inspect.Parameter, kind),
            # an annotation or an enum as a default is only told apart from None
            default=inspect.Parameter.empty if default is None else None if default == "None" else default,
        )
        for name, kind, default in RECORDED[release][function]
    ]
    return inspect.Signature(parameters)


def installed(release, function):
    return inspect.signature(getattr(importlib.import_module("flashinfer.fused_moe"), function))


def entry_of_installed():
    """What flashinfer_signatures.json has of a release: function -> [name, kind, default as text or null]."""
    return {
        function: [
            [p.name, p.kind.name, None if p.default is p.empty else repr(p.default)]
            for p in installed(None, function).parameters.values()
        ]
        for function in MODULES
    }


SIGNATURES = [pytest.param(recorded, release, id=release) for release in RECORDED]
SIGNATURES.append(pytest.param(installed, None, id="installed"))


def sizes_of(geometry):
    """The module of sizes that is packed for a geometry."""
    module = ModuleType(f"problem_{geometry}")
    exec(problem.source("problem.py", geometry), vars(module))
    return module


def inputs(geometry="small", num_tokens=19, device="cpu", seed=0):
    """The layer's eight tensors, routing_bias None with renorm routing, then an output; and offset and factor."""
    of = sizes_of(geometry)
    h, i, local = of.HIDDEN_SIZE // 128, of.INTERMEDIATE_SIZE // 128, of.NUM_LOCAL_EXPERTS
    generator = None if device == "meta" else torch.Generator(device).manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, device=device)

    logits, offset = normal(num_tokens, of.NUM_EXPERTS), 0 if of.RENORM else OFFSET
    logits[:, offset : offset + local] += 1.5
    tensors = (
        logits.bfloat16() if of.RENORM else logits,
        None if of.RENORM else (0.05 * normal(of.NUM_EXPERTS)).bfloat16(),
        normal(num_tokens, 128 * h).to(torch.float8_e4m3fn),
        normal(h, num_tokens),
        normal(local, 256 * i, 128 * h).to(torch.float8_e4m3fn),
        normal(local, 2 * i, h),
        normal(local, 128 * h, 128 * i).to(torch.float8_e4m3fn),
        normal(local, h, i),
        torch.empty(num_tokens, 128 * h, dtype=torch.bfloat16, device=device),
    )
    return tensors, offset, 1.0 if of.RENORM else 2.5


@cache
def inputs_once(geometry):
    """`inputs`, for tests that only look at them."""
    return inputs(geometry)


def reference(geometry):
    """The definition's own `run` and `route`, with the geometry's constants."""
    module = ModuleType(f"reference_{geometry}")
    exec((renorm if geometry in renorm.GEOMETRIES else moe).reference_source(geometry), vars(module))
    return module


def wanted(geometry, tensors, *scalars):
    run = reference(geometry).run
    return run(*(t for t in tensors[:-1] if t is not None), *(scalars if tensors[1] is not None else ()))


def call(function, parameters, geometry, tensors, offset, factor):
    """Keywords that our solution hands to the function."""
    if function == "trtllm_fp8_block_scale_moe":
        return trtllm.keywords(parameters, sizes_of(geometry), tensors, offset, factor)
    logits, bias, x, x_scale, w13, s13, w2, s2, output = tensors
    experts, weight = reference(geometry).route(logits, *(() if bias is None else (bias, factor)))
    local = experts - offset
    local = torch.where((local >= 0) & (local < len(w13)), local, -1).int()
    return cutlass.keywords(
        parameters, local, weight, dequantise_ref(x, x_scale), logits.shape[1], (w13, s13), (w2, s2), output
    )


# ---- signatures ----


def test_what_is_recorded_is_what_we_allow():
    """A user would miss: pyproject.toml allows a FlashInfer whose arguments nobody looked at."""
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["project"]
    allowed = next(r.specifier for r in map(Requirement, project["dependencies"]) if r.name == "flashinfer-python")
    assert all(release in allowed for release in RECORDED)
    oldest, newest = min(RECORDED, key=Version), max(RECORDED, key=Version)
    assert f">={oldest}" in str(allowed), "record the oldest release that is allowed"
    here = importlib.metadata.version("flashinfer-python")
    assert here in allowed
    assert Version(here) <= Version(newest), f"record the installed release: {json.dumps({here: entry_of_installed()})}"
    for function, parameters in RECORDED.get(here, {}).items():
        names_and_kinds = [parameter[:2] for parameter in entry_of_installed()[function]]
        assert names_and_kinds == [parameter[:2] for parameter in parameters]


@pytest.mark.parametrize("geometry", SMALL)
@pytest.mark.parametrize("function", MODULES)
@pytest.mark.parametrize(("signature", "release"), SIGNATURES)
def test_our_call_fits(signature, release, function, geometry):
    """A user would miss: a TypeError on the GPU, after a rename or a removal."""
    found = signature(release, function)
    MODULES[function].check_signature(found.parameters)
    bound = found.bind(**call(function, found.parameters, geometry, *inputs_once(geometry)))
    assert set(bound.arguments) >= {"output"} & set(found.parameters)


@pytest.mark.parametrize("function", MODULES)
def test_an_unknown_signature_is_named(function):
    """A user would miss: which argument the installed FlashInfer wants or no longer takes."""
    parameters = dict(installed(None, function).parameters)
    module = MODULES[function]
    wanted = inspect.Parameter("moon_phase", inspect.Parameter.KEYWORD_ONLY)
    with pytest.raises(ImportError, match=f"{function} wants moon_phase, unknown here"):
        module.check_signature(parameters | {"moon_phase": wanted})
    gone = next(iter(parameters))
    del parameters[gone]
    with pytest.raises(ImportError, match=f"{function} no longer takes {gone}"):
        module.check_signature(parameters)


def test_the_tile_is_ours_only_where_the_function_does_not_choose():
    """A user would miss: 8 tokens a tile for 14107, which is an old release's default."""
    given = {
        release: call(
            "trtllm_fp8_block_scale_moe", recorded(release, "trtllm_fp8_block_scale_moe").parameters, "small", *inputs()
        )
        for release in RECORDED
    }
    assert "tile_tokens_dim" in given["0.3.1"]
    assert not any("tile_tokens_dim" in given[release] for release in RECORDED if release != "0.3.1")
    assert [trtllm.tile_tokens(8 * t, 256) for t in (1, 256, 1024, 14107)] == [8, 16, 64, 64]


# ---- what is handed over ----


def test_trtllm_gets_the_documented_layouts():
    """A user would miss: a scale table read across instead of down, or routing of another model."""
    parameters = installed(None, "trtllm_fp8_block_scale_moe").parameters
    given = call("trtllm_fp8_block_scale_moe", parameters, "full", *inputs("full", 5, "meta"))
    want = {
        "routing_logits": ((5, 256), torch.float32),
        "routing_bias": ((256,), torch.bfloat16),
        "hidden_states": ((5, 7168), torch.float8_e4m3fn),
        "hidden_states_scale": ((7168 // 128, 5), torch.float32),
        "gemm1_weights": ((32, 4096, 7168), torch.float8_e4m3fn),
        "gemm1_weights_scale": ((32, 4096 // 128, 7168 // 128), torch.float32),
        "gemm2_weights": ((32, 7168, 2048), torch.float8_e4m3fn),
        "gemm2_weights_scale": ((32, 7168 // 128, 2048 // 128), torch.float32),
    }
    for name, (shape, dtype) in want.items():
        assert (tuple(given[name].shape), given[name].dtype) == (shape, dtype), name
        assert given[name].is_contiguous(), name
    numbers = {name: value for name, value in given.items() if not torch.is_tensor(value)}
    assert numbers == {
        "num_experts": 256,
        "top_k": 8,
        "n_group": 8,
        "topk_group": 4,
        "intermediate_size": 2048,
        "local_expert_offset": OFFSET,
        "local_num_experts": 32,
        "routed_scaling_factor": 2.5,
        "routing_method_type": 2,
        "use_shuffled_weight": False,
        "weight_layout": 0,
    }


def test_trtllm_gets_the_routing_of_the_definition():
    """A user would miss: experts chosen as another model does, with answers that look plausible."""
    names = ("num_experts", "local_num_experts", "top_k", "n_group", "topk_group", "routing_method_type")
    parameters = installed(None, "trtllm_fp8_block_scale_moe").parameters
    given = {
        geometry: [
            call("trtllm_fp8_block_scale_moe", parameters, geometry, *inputs(geometry, 5, "meta"))[name]
            for name in names
        ]
        for geometry in ("kimi-k2-ep8", "glm-5-ep8", "qwen3-next")
    }
    assert given == {
        "kimi-k2-ep8": [384, 48, 8, 1, 1, trtllm.DEEPSEEK_V3],
        "glm-5-ep8": [256, 32, 8, 1, 1, trtllm.DEEPSEEK_V3],
        "qwen3-next": [128, 128, 10, None, None, trtllm.RENORMALIZE],
    }


def test_our_constants_are_flashinfers():
    """A user would miss: another routing under the same number."""
    from flashinfer.fused_moe import RoutingMethodType, WeightLayout

    assert RoutingMethodType.DeepSeekV3 == trtllm.DEEPSEEK_V3
    assert RoutingMethodType.Renormalize == trtllm.RENORMALIZE
    assert WeightLayout.MajorK == trtllm.K_MAJOR


@pytest.mark.parametrize("geometry", SMALL)
def test_cutlass_gets_the_checked_dtypes(geometry):
    """A user would miss: a refusal in FlashInfer's C++, on the GPU only."""
    of = sizes_of(geometry)
    parameters = installed(None, "cutlass_fused_moe").parameters
    given = call("cutlass_fused_moe", parameters, geometry, *inputs(geometry))
    assert given["input"].dtype == given["output"].dtype == given["output_dtype"] == torch.bfloat16
    assert given["token_selected_experts"].dtype == torch.int32
    assert given["token_final_scales"].dtype == torch.float32
    assert [scale.dtype for scale in given["quant_scales"]] == [torch.float32] * 2
    assert given["ep_size"] * given["fc1_expert_weights"].shape[0] == of.NUM_EXPERTS
    experts = given["token_selected_experts"]
    assert experts.shape[1] == of.TOP_K
    assert experts.min() == (0 if of.RENORM else -1) and 0 <= experts.max() < of.NUM_LOCAL_EXPERTS


def flashinfers_statement(name, routing):
    """FlashInfer's own plain torch statement of a function; releases before 0.6.11 have none."""
    templates = pytest.importorskip("flashinfer.trace.templates.moe")
    statement = templates.cutlass_fused_moe_trace.reference
    if name != "cutlass_fused_moe":
        statement = templates.trtllm_fp8_block_scale_moe_trace_dispatch(routing_method_type=routing).reference
    parameters = inspect.signature(statement).parameters
    takes_all = any(p.kind == p.VAR_KEYWORD for p in parameters.values())
    return lambda **given: statement(**{k: v for k, v in given.items() if takes_all or k in parameters})


def share_of_equal(found, wanted):
    """Within a tenth: activations that pass through bf16 differ by less, another layout by far more."""
    return torch.isclose(found.float(), wanted.float(), rtol=0.1, atol=0.1).float().mean()


@pytest.mark.parametrize("geometry", SMALL)
@pytest.mark.parametrize("function", MODULES)
def test_flashinfers_statement_of_our_call_is_our_definition(function, geometry):
    """A user would miss: gate taken for up, scales of other columns, another rank's experts."""
    tensors, *scalars = inputs(geometry)
    want = wanted(geometry, tensors, *scalars)
    given = call(function, installed(None, function).parameters, geometry, tensors, *scalars)
    if function == "cutlass_fused_moe":  # its statement leaves the weights' scales out
        for name, scale in zip(("fc1_expert_weights", "fc2_expert_weights"), given["quant_scales"], strict=True):
            grown = scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
            given[name] = given[name].float() * grown
        given["input"] = dequantise_ref(tensors[2], tensors[3]).float()
    statement = flashinfers_statement(function, given.get("routing_method_type"))
    assert share_of_equal(statement(**given), want) > 0.97

    names = ("gemm1_weights", "gemm1_weights_scale") if function != "cutlass_fused_moe" else ("fc1_expert_weights",)
    swapped = {name: torch.cat(given[name].chunk(2, 1)[::-1], 1) for name in names}
    assert share_of_equal(statement(**(given | swapped)), want) < 0.5


@pytest.mark.parametrize("num_tokens", [1, 16, 37])
def test_dequantise(num_tokens):
    """A user would miss: another token's scale, which the routing's weights would hide."""
    *_, x, x_scale = inputs(num_tokens=num_tokens, device=DEVICE)[0][:4]
    step = 0 if DEVICE == "cuda" else 2**-7  # Triton's interpreter cuts bf16 off instead of rounding it
    torch.testing.assert_close(dequantise(x, x_scale), dequantise_ref(x, x_scale), rtol=step, atol=0)


# ---- the build of one runner ----


@dataclasses.dataclass
class Spec:
    """As much of FlashInfer's JitSpec as build.py uses."""

    name: str
    sources: list
    extra_ldflags: list | None
    folder: Path

    def get_library_path(self):
        return self.folder / f"{self.name}.so"

    jit_library_path = property(get_library_path)


@pytest.fixture
def spec(tmp_path, monkeypatch):
    names = ["binding.cu", "x.generated.cu", "moe_gemm_kernels_fp16_fp16.cu", cutlass_build.RUNNER, "logger.cpp"]
    full = Spec("fused_moe_90", [Path(name) for name in names], ["-lnvrtc"], tmp_path)
    core = cutlass_build.core
    used = []
    monkeypatch.setattr(core, "gen_cutlass_fused_moe_sm90_module", lambda use_fast_build=False: full)
    monkeypatch.setattr(
        core, "get_cutlass_fused_moe_module", lambda _: used.append(core.gen_cutlass_fused_moe_sm90_module())
    )
    return full, used


def test_only_the_needed_sources_are_compiled(spec, capfd):
    """A user would miss: a quarter of an hour without a word."""
    _, used = spec
    cutlass_build.load_runner()
    assert [path.name for path in used[0].sources] == ["binding.cu", cutlass_build.RUNNER, "logger.cpp"]
    assert used[0].name != "fused_moe_90" and used[0].extra_ldflags[0] == "-lnvrtc"
    said = capfd.readouterr().err
    assert "compiling 3 CUDA and C++ sources" in said and "this takes minutes" in said and "compiled (" in said


def test_a_module_that_is_there_is_taken(spec, capfd):
    """A user would miss: minutes of compiling what FlashInfer's own build had made."""
    full, used = spec
    full.get_library_path().touch()
    cutlass_build.load_runner()
    assert used == [full] and not capfd.readouterr().err


def test_other_names_of_sources_are_noticed(spec):
    full, _ = spec
    full.sources.remove(Path(cutlass_build.RUNNER))
    with pytest.raises(RuntimeError, match=f"has no source {cutlass_build.RUNNER}"):
        cutlass_build.load_runner()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="FlashInfer asks nvcc for its version; there is none")
def test_the_installed_flashinfer_has_those_sources(tmp_path):
    """A user would miss: sources that were renamed, so that everything or nothing is compiled."""
    code = """
from solutions.flashinfer_cutlass import build
full = build.core.gen_cutlass_fused_moe_sm90_module()
few = build.choose_spec()
print(len(full.sources), *(path.name for path in few.sources))
"""
    env = os.environ | {
        "FLASHINFER_WORKSPACE_BASE": str(tmp_path),
        "FLASHINFER_CUDA_ARCH_LIST": "9.0a",
    }
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, cwd=paths.ROOT, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr[-2000:]
    total, *names = done.stdout.split()
    assert {cutlass_build.RUNNER, "fp8_blockscale_gemm.cu", "flashinfer_cutlass_fused_moe_binding.cu"} <= set(names)
    assert 5 * len(names) < int(total)


# ---- SGLang's package, stood in for ----


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Import a module of a packed solution: (solution, module), or with a geometry."""

    def load(solution, name, geometry="small"):
        package = tmp_path / f"packed_{solution}_{geometry.replace('-', '_')}"
        for source in pack.pack(solution)[geometry].sources:
            path = package / source.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source.content)
        return importlib.import_module(f"{package.name}.{name}")

    monkeypatch.syspath_prepend(tmp_path)
    yield load
    for name in [name for name in sys.modules if name.startswith("packed_")]:
        del sys.modules[name]


SGLANG_STAND_IN = """
import triton
from sglang.srt.utils import is_cuda
from sglang.no_such_library import per_token_group_quant_fp8

SETTLED = "on a GPU" if is_cuda() else "without"

@triton.jit
def fused_moe_kernel(a_ptr, N):
    pass
"""


@pytest.mark.parametrize("place", ["srt/layers/moe/fused_moe_triton", "kernels/ops/moe"])
def test_sglangs_kernel_is_loaded_without_its_package(module, place, tmp_path, monkeypatch):
    """A user would miss: that one module needs none of SGLang's compiled libraries, wherever a version keeps it."""
    folder = tmp_path / "sglang" / place
    folder.mkdir(parents=True)
    (tmp_path / "sglang" / "__init__.py").write_text("raise ImportError('the package must not be imported')")
    (folder / "fused_moe_triton_kernels.py").write_text(SGLANG_STAND_IN)
    load = module("sglang_triton", "load")
    monkeypatch.delitem(sys.modules, "sglang", raising=False)
    importlib.invalidate_caches()
    before = set(sys.modules)
    assert load.load_kernel().arg_names == ["a_ptr", "N"]
    assert not any(name.startswith("sglang") for name in set(sys.modules) - before)

    (folder / "fused_moe_triton_kernels.py").unlink()
    with pytest.raises(ImportError, match="has no fused_moe_triton_kernels.py where it was looked for"):
        load.load_kernel()


def test_what_a_newer_sglang_adds_keeps_its_default(module, tmp_path, monkeypatch):
    """A user would miss: a release whose kernel has one parameter more than those that we know."""
    folder = tmp_path / "sglang" / "kernels/ops/moe"
    folder.mkdir(parents=True)
    (tmp_path / "sglang" / "__init__.py").touch()
    parameters = "a_ptr, N, even_Ks: tl.constexpr, FUSE_SWIGLU: tl.constexpr = False"
    newer = SGLANG_STAND_IN.replace("a_ptr, N", parameters).replace(
        "import triton", "import triton\nfrom triton import language as tl", 1
    )
    (folder / "fused_moe_triton_kernels.py").write_text(newer)
    monkeypatch.delitem(sys.modules, "sglang", raising=False)
    importlib.invalidate_caches()
    product = module("sglang_triton", "grouped_product")
    assert product._OPTIONAL == {"even_Ks": True, "FUSE_SWIGLU": False}
    assert product._ORDINARY == ["a_ptr", "N"]


def test_sglangs_two_products_share_the_order_of_rows(module):
    """A user would miss: rows padded to one tile and multiplied by another."""
    tiles = module("sglang_triton", "tiles")
    for intermediate in (384, 512, 768, 1536, 2048):
        for rows_per_expert in (0.03, 4, 4.1, 12, 12.1, 24, 24.1, 32, 500):
            first, second, _ = tiles.choose_configs(rows_per_expert, intermediate)
            assert first.keys() == second.keys(), (rows_per_expert, intermediate)
            assert first["BLOCK_SIZE_M"] == second["BLOCK_SIZE_M"], (rows_per_expert, intermediate)


def test_sglangs_launches_with_and_without_descriptors_are_told_apart(module, tmp_path, monkeypatch):
    """A user would miss: the second product through the launcher of the first, which was compiled without TMA."""
    folder = tmp_path / "sglang" / "kernels/ops/moe"
    folder.mkdir(parents=True)
    (tmp_path / "sglang" / "__init__.py").touch()
    (folder / "fused_moe_triton_kernels.py").write_text(SGLANG_STAND_IN)
    monkeypatch.delitem(sys.modules, "sglang", raising=False)
    importlib.invalidate_caches()
    product = module("sglang_triton", "grouped_product")
    launched = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *ordinary, **keywords: launched.append((grid, keywords))

    monkeypatch.setattr(product, "_KERNEL", Kernel())
    config, _, _ = module("sglang_triton", "tiles").choose_configs(100, 512)
    int32 = partial(torch.zeros, dtype=torch.int32)
    permutation = permute.Permutation(int32(9, 8), int32(192), int32(3), int32(1), int32(1), None)
    x, scale = torch.empty(192, 512, dtype=torch.float8_e4m3fn), torch.empty(192, 4)
    weights, weights_scale = torch.empty(2, 256, 512, dtype=torch.float8_e4m3fn), torch.empty(2, 2, 4)
    for in_order in (False, True):
        operands = (x, scale, scale.stride(), weights, weights_scale, permutation)
        product.grouped_product(*operands, config, tiles=3, x_in_order=in_order, weights_by_tma=True)
    (grid, first), (_, second) = launched
    assert grid == (6,)
    assert (first["top_k"], second["top_k"]) == (8, 1), "a constexpr, and so part of what a launch is known by"


@pytest.mark.parametrize(
    ("share", "num_tokens"), [(1 / 8, 1), (1 / 8, 4096), (1 / 8, 16384), (1 / 16, 16384), (1, 16384)]
)
def test_usual_tiles_hold_twice_the_usual_rows(module, share, num_tokens):
    """A user would miss: times of our own kernel shown as SGLang's, or thousands of programs without a tile."""
    tiles = module("sglang_triton", "tiles")
    pairs, local, block_m = num_tokens * 8, int(256 * share), 64
    most = permute.max_tiles(num_tokens, 8, local, block_m)
    usual = tiles.usual_tiles(pairs, share, local, block_m, most)
    assert usual == most or usual < most / 3, "a launch more, for programs that hardly matter"
    for seed in range(5):  # rows of the experts, uneven
        popular = torch.rand(local, generator=torch.Generator().manual_seed(seed)) ** 4
        rows = (popular / popular.sum() * min(2 * share, 1) * pairs).int()
        assert int(rows.add(block_m - 1).floor_divide(block_m).sum()) <= usual


@pytest.mark.parametrize("geometry", SMALL)
def test_routing_one_token_is_routing_and_sorting_it(module, geometry):
    """A user would miss: rows of a decode step at batch 1, which has a launch of its own."""
    one = module("sglang_triton", "route_one", geometry)
    route, sort = (module("sglang_triton", f"kernels.{name}", geometry) for name in ("route", "permute"))
    for seed in range(3):
        (logits, bias, *_, w2, _, _), *scalars = inputs(geometry, num_tokens=1, device=DEVICE, seed=seed)
        expert, want_weight = route.route(logits, bias, *scalars, len(w2))
        want = sort.permute(expert, len(w2), 16, padding=expert.numel())
        weight, found = one.route_one(logits, bias, *scalars, len(w2), 16)
        tiles, rows = int(want.num_tiles), int(want.num_rows)
        assert rows > 0 and torch.equal(weight, want_weight)
        used = {"pair_of_row": rows, "tile_expert": tiles}
        for name in ("row_of_pair", "num_tiles", "num_rows", *used):
            assert torch.equal(getattr(found, name)[: used.get(name)], getattr(want, name)[: used.get(name)]), name


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("first_tile", [0, 2])
def test_the_rest_of_sglangs_product_is_multiplied(module, in_order, first_tile):
    """A user would miss: a rank that gets more than twice its share of the rows."""
    rest = module("sglang_triton", "rest_product")
    torch.manual_seed(0)
    top_k, block_m, columns, depth = 4, 16, 256, 384
    expert = torch.randint(-1, 3, (21, top_k), dtype=torch.int32, device=DEVICE)
    permutation = permute.permute_ref(expert, 3, block_m, padding=expert.numel())
    rows = len(permutation.pair_of_row)
    token = (permutation.pair_of_row // top_k).clamp(max=20).long()
    x = torch.randn(21, depth, device=DEVICE).to(torch.float8_e4m3fn)
    x_scale = torch.randn(depth // 128, 21, device=DEVICE).t()
    w = torch.randn(3, 2 * columns, depth, device=DEVICE).to(torch.float8_e4m3fn)[:, columns:]
    w_scale = torch.randn(3, 2 * columns // 128, depth // 128, device=DEVICE)[:, columns // 128 :]
    if in_order:
        x, x_scale = x[token], x_scale[token].contiguous()
    out = torch.full((rows, columns), torch.nan, dtype=torch.bfloat16, device=DEVICE)
    operands = (x, x_scale, x_scale.stride(), w, w_scale, permutation)
    rest.rest_product(*operands, block_m, first_tile, in_order, out)
    whole_x = x.float() * x_scale.repeat_interleave(128, 1)
    whole_w = w.float() * w_scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
    for row in range(int(permutation.num_rows)):
        if permutation.pair_of_row[row] == expert.numel() or row < first_tile * block_m:
            assert out[row].isnan().all()
            continue
        of = whole_x[row if in_order else token[row]]
        want = whole_w[permutation.tile_expert[row // block_m]] @ of
        assert (out[row].float() - want).norm() < 0.01 * want.norm()


@pytest.mark.parametrize("num_tokens", [9, 70])
def test_sglangs_lean_stages_are_the_shared_ones(module, num_tokens):
    """A user would miss: rows of padding read, or rows of other ranks weighed in."""
    swiglu, combine = (module("sglang_triton", name) for name in ("swiglu_quant_rows", "combine_rows"))
    torch.manual_seed(0)
    expert = torch.randint(-1, 5, (num_tokens, 8), dtype=torch.int32, device=DEVICE)
    expert[0] = -1
    permutation = permute.permute_ref(expert, 5, 16, padding=expert.numel())
    rows = permutation.row_of_pair[expert >= 0].long()
    g = torch.full((len(permutation.pair_of_row), 512), torch.nan, dtype=torch.bfloat16, device=DEVICE)
    g[rows] = torch.randn(len(rows), 512, device=DEVICE).bfloat16()
    h, scale = swiglu.swiglu_quant_rows(g, permutation)
    want_h, want_scale = swiglu_quant_ref(g[rows])
    torch.testing.assert_close(scale[rows], want_scale)
    assert (h[rows].float() - want_h.float()).abs().max() <= 32, "more than one step of FP8 at its largest"

    weight = torch.rand(num_tokens, 8, device=DEVICE)
    outputs = [torch.full((num_tokens, 1536), torch.nan, dtype=torch.bfloat16, device=DEVICE) for _ in range(2)]
    y = torch.full((len(permutation.pair_of_row), 1280), torch.nan, dtype=torch.bfloat16, device=DEVICE)
    y[rows] = torch.randn(len(rows), 1280, device=DEVICE).bfloat16()
    combine.combine_rows(y, permutation.row_of_pair, weight, outputs[0], 256)
    combine_ref(y, permutation.row_of_pair, weight, outputs[1], 256)
    torch.testing.assert_close(*outputs, equal_nan=True, rtol=0.01, atol=0.01)
    assert not outputs[0][0, 256:].any(), "a token without a local expert is zero"


def test_captured_launches_overlap_once_their_kind_is_known(module, monkeypatch):
    """A user would miss: what a graph gains, or a graph without it because no launch is ever known."""
    overlap = module("sglang_triton", "overlap")
    captured, plain, started = [False], [], []
    monkeypatch.setattr(overlap.torch.cuda, "is_current_stream_capturing", lambda: captured[0])
    monkeypatch.setattr(overlap.torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(overlap.torch._C, "_cuda_getCurrentRawStream", lambda device: 77, raising=False)
    before = ("function", False, False, None, None, "packed", None, None, None)
    monkeypatch.setattr(overlap.launch, "_launcher", lambda compiled: (lambda *given: started.append(given), before))

    def first_returns_the_kernel(*args, **keywords):
        plain.append(args)
        return "compiled" if len(plain) == 1 else None

    names = ("x_ptr", "number", "free")
    parameters = [SimpleNamespace(name=n, is_constexpr=False, do_not_specialize=n == "free") for n in names]
    parameters.append(SimpleNamespace(name="SIZE", is_constexpr=True, do_not_specialize=False))
    run = overlap._overlapping_run(SimpleNamespace(params=parameters), first_returns_the_kernel)
    captured[0] = True
    for number, free in ((16, 1), (32, 2), (33, 2)):  # 33 is no multiple of 16, as the others are
        run("x", number, free, grid=(5, 6), warmup=False, SIZE=8)
    assert plain == [("x", 16, 1), ("x", 33, 2)]
    ((*grid, stream, function, cooperative, overlapping, _, _, _, _, _, _, x, number, free, size),) = started
    assert (grid, stream, function, cooperative, overlapping) == ([5, 6, 1], 77, "function", False, True)
    assert (x, number, free, size) == ("x", 32, 2, 8)
    captured[0] = False
    run("x", 32, 2, grid=(5,), warmup=False, SIZE=8)
    assert len(started) == 1 and len(plain) == 3


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.skipif(not eligibility.is_installed("sglang"), reason="needs sglang; pip install --no-deps sglang")
@pytest.mark.parametrize("geometry", ["small", *(pytest.param(name, marks=pytest.mark.slow) for name in SMALL[1:])])
def test_sglangs_kernel_gives_the_definitions_answer(module, geometry, monkeypatch):
    """A user would miss: a parameter of the installed kernel that means something else; rows beyond its grid."""
    main = module("sglang_triton", "main", geometry)
    usual = main.usual_tiles
    for num_tokens, tiles_of in ((1, usual), (9, usual), (9, lambda *sizes: 2)):
        monkeypatch.setattr(main, "usual_tiles", tiles_of)
        tensors, *scalars = inputs(geometry, num_tokens, device=DEVICE)
        tensors[-1].fill_(torch.nan)
        if geometry in renorm.SMALL:
            main.run_renorm(tensors[0], *tensors[2:])
        else:
            main.run(*tensors[:-1], *scalars, tensors[-1])
        assert share_of_equal(tensors[-1], wanted(geometry, tensors, *scalars)) > 0.85


@pytest.mark.skipif(not eligibility.is_installed("sglang"), reason="needs sglang; pip install --no-deps sglang")
@pytest.mark.slow
def test_sglangs_stages_compile_for_sm_90(tmp_path):
    """A user would miss: the first call at some token count dies in the compiler."""
    kernels = ahead_of_time.compiled("sglang_triton", "full", "sm_90", (1, 300, 500, 1000, 4096), tmp_path)
    assert {kernel["kernel"] for kernel in kernels} == set(manifest.read_manifest("sglang_triton").stages)
    room = ahead_of_time.SHARED_MEMORY["sm_90"]
    assert not [kernel for kernel in kernels if kernel["shared"] > room or kernel["reloads"]]


# ---- where they cannot run ----


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("hardware", ["cpu", "sm_80", "sm_90", "sm_100", "sm_103"])
def test_skipped_where_the_hardware_is_another(name, hardware, monkeypatch):
    """A user would miss: why a backend has no figures here."""
    monkeypatch.setattr(eligibility, "is_installed", lambda module: True)
    targets = manifest.read_manifest(name).target_hardware
    for packed in pack.pack(name).values():
        reason = eligibility.why_skipped(packed, hardware)
        if hardware in targets:
            assert reason is None
        else:
            here = "this machine has no CUDA device" if hardware == "cpu" else f"this GPU is {hardware}"
            assert reason == f"needs {', '.join(targets)}; {here}"


@pytest.mark.parametrize("name", [*BACKENDS, "sglang_triton"])
def test_skipped_where_the_package_is_absent(name, monkeypatch):
    stated = manifest.read_manifest(name)
    missing = stated.dependencies[-1]
    monkeypatch.setattr(eligibility, "is_installed", lambda module: module != missing)
    reason = eligibility.why_skipped(pack.pack(name)["full"], stated.target_hardware[0])
    assert reason == f"needs {missing}, not installed here"


def test_the_main_job_reports_them_skipped(no_gpu, capsys):
    """A user would miss: a backend silently left out of the table."""
    assert cli.main(["run", "--solutions", *BACKENDS]) == 1, "nothing could be run"
    shown = capsys.readouterr().err
    for name in BACKENDS:
        targets = ", ".join(manifest.read_manifest(name).target_hardware)
        assert f"{name}: SKIPPED: needs {targets}; this machine has no CUDA device" in shown


# ---- solutions that compile for minutes ----

MANIFEST = """
name = "slow"
author = "tests"
description = "x"
language = "python"
entry_point = "main.py::run"
target_hardware = ["cpu"]
first_use = "compiles for minutes"
"""


@pytest.mark.parametrize(("body", "outcome"), [("", "built in"), ("raise RuntimeError('no nvcc')", "not built")])
def test_the_user_is_told_before_a_long_build(tmp_path, monkeypatch, body, outcome):
    """A user would miss: that nothing hangs, and that the build is not in the times."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "solution.toml").write_text(MANIFEST)
    code = f"import sys\nprint('-- loaded --', file=sys.stdout)\n{body}\ndef run(*arguments): pass\n"
    (tmp_path / "slow" / "main.py").write_text(code)
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path)
    packed = pack.pack("slow")["small"]
    assert "minutes" not in packed.model_dump_json()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        build_slow({"slow": packed}, {"slow": "compiles for minutes"}, print)
    before, after = said.getvalue().split("-- loaded --")
    assert "slow: building; on first use it compiles for minutes" in before
    assert f"slow: {outcome}" in after and "apart from the runs below" in " ".join(after.split())


# ---- docs/backends.md ----


def test_level_with_the_fastest(tmp_path):
    """A reader would miss: two solutions that differ by a run's scatter, shown as one winning; a stale one winning;
    runs with different versions held against each other, or their token counts out of order."""
    names = ("a", "b", "c", "old")
    traces = [
        recorded_traces.trace("a", 7, 1.0),
        recorded_traces.trace("b", 7, 1.02),
        recorded_traces.trace("c", 7, 1.2),
        recorded_traces.trace("c", 80, 9.0),
        recorded_traces.trace("a", 80, 1.0, torch="2.10"),
        recorded_traces.trace("a", 80, 0.1, tolerance=recorded_traces.DEFAULT),
        recorded_traces.trace("old", 7, 0.1, sha1="0" * 40),
        recorded_traces.trace("old", 57, 2.0),
        recorded_traces.trace("c", 57, 1.0),
    ]
    found = comparison.build([recorded_traces.trace_set(tmp_path, traces, names)])
    gpu = "NVIDIA H200"
    want = {"a": {gpu: [7, 80]}, "b": {gpu: [7]}, "c": {gpu: [57, 80]}, "old": {gpu: []}}
    assert solutions_block.level_at(found) == want


def test_the_table_has_every_solution():
    table = solutions_block.block(Comparison([]))
    for name in manifest.solutions_of(moe.GEOMETRIES):
        assert (f"| `{name}` |" in table) == (manifest.read_manifest(name).facts is not None)
