"""flashinfer_cutlass and flashinfer_trtllm: their calls fit FlashInfer's functions, where they
cannot run.
"""

import importlib
import importlib.metadata
import inspect
import json
import os
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from layer_inputs import DEVICE, arguments, reference
from moebench.core import paths
from moebench.operators import catalogue
from moebench.operators import moe_fp8_block_scale as moe
from moebench.operators import moe_fp8_block_scale_renorm as renorm
from moebench.operators.catalogue import GEOMETRIES, RENORM
from packaging.requirements import Requirement
from packaging.version import Version

from solutions.flashinfer_cutlass import build as cutlass_build
from solutions.flashinfer_cutlass import keywords as cutlass
from solutions.flashinfer_cutlass.dequantise import dequantise, dequantise_ref
from solutions.flashinfer_trtllm import keywords as trtllm

RECORDED = json.loads(
    (Path(__file__).parents[1] / "samples" / "flashinfer_signatures.json").read_text()
)
MODULES = {"trtllm_fp8_block_scale_moe": trtllm, "cutlass_fused_moe": cutlass}
OFFSET = 29  # no multiple of the number of local experts
SMALL = [*moe.small(), *renorm.small()]


def recorded(release, function):
    """inspect.Signature of a function of a release that need not be installed."""
    parameters = [
        inspect.Parameter(
            name,
            getattr(inspect.Parameter, kind),
            # an annotation or an enum as a default is only told apart from None
            default=inspect.Parameter.empty
            if default is None
            else None
            if default == "None"
            else default,
        )
        for name, kind, default in RECORDED[release][function]
    ]
    return inspect.Signature(parameters)


def installed(function):
    return inspect.signature(getattr(importlib.import_module("flashinfer.fused_moe"), function))


def entry_of_installed():
    """What flashinfer_signatures.json has of a release: function -> [name, kind, default as text or
    null].
    """
    return {
        function: [
            [p.name, p.kind.name, None if p.default is p.empty else repr(p.default)]
            for p in installed(function).parameters.values()
        ]
        for function in MODULES
    }


def inputs(geometry="small", num_tokens=19, device="cpu"):
    """The layer's arguments, as check_arguments returns them."""
    given = arguments(geometry, num_tokens, device, offset=OFFSET)
    return SimpleNamespace(
        **{"routing_bias": None, "local_expert_offset": 0, "routed_scaling_factor": 1.0} | given
    )


@cache
def inputs_once(geometry):
    """`inputs`, for tests that only look at them."""
    return inputs(geometry)


def sizes_of(geometry):
    """As problem.py has them."""
    sizes = {key.upper(): value for key, value in GEOMETRIES[geometry].items()}
    return SimpleNamespace(**sizes, RENORM=geometry in RENORM)


def call(function, parameters, geometry, given):
    """Keywords that our solution hands to the function."""
    if function == "trtllm_fp8_block_scale_moe":
        return trtllm.keywords(parameters, sizes_of(geometry), given)
    logits, bias, w13 = given.routing_logits, given.routing_bias, given.gemm1_weights
    experts, weight = reference(geometry).route(
        logits, *(() if bias is None else (bias, given.routed_scaling_factor))
    )
    local = experts - given.local_expert_offset
    local = torch.where((local >= 0) & (local < len(w13)), local, -1).int()
    x = dequantise_ref(given.hidden_states, given.hidden_states_scale)
    gemms = (w13, given.gemm1_weights_scale), (given.gemm2_weights, given.gemm2_weights_scale)
    return cutlass.keywords(parameters, local, weight, x, logits.shape[1], *gemms, given.output)


# ---- signatures ----


def test_what_is_recorded_is_what_we_allow():
    """Pyproject.toml allows a FlashInfer whose arguments nobody looked at."""
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["project"]
    allowed = next(
        r.specifier
        for r in map(Requirement, project["dependencies"])
        if r.name == "flashinfer-python"
    )
    assert all(release in allowed for release in RECORDED)
    assert f">={min(RECORDED, key=Version)}" in str(allowed), (
        "record the oldest release that is allowed"
    )
    here = importlib.metadata.version("flashinfer-python")
    assert here in allowed
    record = f"record the installed release: {json.dumps({here: entry_of_installed()})}"
    assert Version(here) <= max(map(Version, RECORDED)), record
    for function, parameters in RECORDED.get(here, {}).items():
        names_and_kinds = [parameter[:2] for parameter in entry_of_installed()[function]]
        assert names_and_kinds == [parameter[:2] for parameter in parameters]


@pytest.mark.parametrize("geometry", SMALL)
@pytest.mark.parametrize("function", MODULES)
@pytest.mark.parametrize("release", [*RECORDED, None])
def test_our_call_fits(release, function, geometry):
    """A TypeError on the GPU, after a rename or a removal. None: what is
    installed.
    """
    found = recorded(release, function) if release else installed(function)
    MODULES[function].check_signature(found.parameters)
    bound = found.bind(**call(function, found.parameters, geometry, inputs_once(geometry)))
    assert set(bound.arguments) >= {"output"} & set(found.parameters)


@pytest.mark.parametrize("function", MODULES)
def test_an_unknown_signature_is_named(function):
    """Which argument the installed FlashInfer wants or no longer takes."""
    parameters = dict(installed(function).parameters)
    module = MODULES[function]
    new = inspect.Parameter("moon_phase", inspect.Parameter.KEYWORD_ONLY)
    with pytest.raises(ImportError, match="moon_phase"):
        module.check_signature(parameters | {"moon_phase": new})
    gone = next(iter(parameters))
    del parameters[gone]
    with pytest.raises(ImportError, match=gone):
        module.check_signature(parameters)


# ---- what is handed over ----


def test_trtllm_gets_what_its_statement_does_not_read():
    """A refusal in FlashInfer's C++, or weights read in another layout."""
    layer, parameters = (
        inputs("full", 5, "meta"),
        installed("trtllm_fp8_block_scale_moe").parameters,
    )
    given = call("trtllm_fp8_block_scale_moe", parameters, "full", layer)
    sizes = {"num_experts": 256, "local_num_experts": 32, "intermediate_size": 2048}
    assert (
        given.items()
        >= (sizes | {"use_shuffled_weight": False, "weight_layout": trtllm.K_MAJOR}).items()
    )


def test_our_constants_are_flashinfers():
    """Another routing under the same number."""
    from flashinfer.fused_moe import RoutingMethodType, WeightLayout

    assert RoutingMethodType.DeepSeekV3 == trtllm.DEEPSEEK_V3
    assert RoutingMethodType.Renormalize == trtllm.RENORMALIZE
    assert WeightLayout.MajorK == trtllm.K_MAJOR


@pytest.mark.parametrize("geometry", SMALL)
def test_cutlass_gets_the_checked_dtypes(geometry):
    """A refusal in FlashInfer's C++, on the GPU only."""
    of = sizes_of(geometry)
    parameters = installed("cutlass_fused_moe").parameters
    given = call("cutlass_fused_moe", parameters, geometry, inputs(geometry))
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
        statement = templates.trtllm_fp8_block_scale_moe_trace_dispatch(
            routing_method_type=routing
        ).reference
    parameters = inspect.signature(statement).parameters
    takes_all = any(p.kind == p.VAR_KEYWORD for p in parameters.values())
    return lambda **given: statement(
        **{k: v for k, v in given.items() if takes_all or k in parameters}
    )


def share_of_equal(found, wanted):
    """Within a tenth: activations that pass through bf16 differ by less, another layout by far
    more.
    """
    return torch.isclose(found.float(), wanted.float(), rtol=0.1, atol=0.1).float().mean()


@pytest.mark.parametrize("geometry", SMALL)
@pytest.mark.parametrize("function", MODULES)
def test_flashinfers_statement_of_our_call_is_our_definition(function, geometry):
    """Gate taken for up, scales of other columns, another rank's experts."""
    layer = inputs(geometry)
    want = reference(geometry).run(
        *(getattr(layer, name) for name in catalogue.definition(geometry).inputs)
    )
    given = call(function, installed(function).parameters, geometry, layer)
    if function == "cutlass_fused_moe":  # its statement leaves the weights' scales out
        for name, scale in zip(
            ("fc1_expert_weights", "fc2_expert_weights"), given["quant_scales"], strict=True
        ):
            grown = scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
            given[name] = given[name].float() * grown
        given["input"] = dequantise_ref(layer.hidden_states, layer.hidden_states_scale).float()
    statement = flashinfers_statement(function, given.get("routing_method_type"))
    assert share_of_equal(statement(**given), want) > 0.97

    names = (
        ("gemm1_weights", "gemm1_weights_scale")
        if function != "cutlass_fused_moe"
        else ("fc1_expert_weights",)
    )
    swapped = {name: torch.cat(given[name].chunk(2, 1)[::-1], 1) for name in names}
    assert share_of_equal(statement(**(given | swapped)), want) < 0.5


@pytest.mark.parametrize("num_tokens", [1, 16, 37])
def test_dequantise(num_tokens):
    """Another token's scale, which the routing's weights would hide."""
    given = inputs(num_tokens=num_tokens, device=DEVICE)
    x, x_scale = given.hidden_states, given.hidden_states_scale
    step = (
        0 if DEVICE == "cuda" else 2**-7
    )  # Triton's interpreter cuts bf16 off instead of rounding it
    torch.testing.assert_close(
        dequantise(x, x_scale), dequantise_ref(x, x_scale), rtol=step, atol=0
    )


# ---- the build of one runner ----


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("nvcc") is None, reason="FlashInfer asks nvcc for its version; there is none"
)
def test_the_installed_flashinfer_has_those_sources(tmp_path):
    """Sources that were renamed, so that everything or nothing is compiled."""
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
    done = subprocess.run(
        command, env=env, cwd=paths.ROOT, capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stderr[-2000:]
    total, *names = done.stdout.split()
    assert {
        cutlass_build.RUNNER,
        "fp8_blockscale_gemm.cu",
        "flashinfer_cutlass_fused_moe_binding.cu",
    } <= set(names)
    assert 5 * len(names) < int(total)
