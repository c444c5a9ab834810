"""Packages as an experts implementation of Hugging Face transformers: a layer's answer, and what is
refused.
"""

import sys

import pytest
import torch
from layer_inputs import DEVICE, arguments, wanted
from moebench.packing import python_package

from solutions.common.triton.quantise_tokens import quantise_tokens_ref

finegrained = pytest.importorskip(
    "transformers.integrations.finegrained_fp8", reason="transformers is not installed"
)

GEOMETRY = "deepseek-v3-ep1-routed" if DEVICE == "cuda" else "small-routed"


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """The module for_transformers of a package."""
    name, parent = (
        "hopper_fused" if DEVICE == "cuda" else "triton_fused_v2",
        tmp_path_factory.mktemp("engine"),
    )
    (folder,) = python_package.pack_packages([name], parent, [GEOMETRY])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(parent)
        for module in [
            one for one in sys.modules if one.partition(".")[0] == folder.name
        ]:  # another test's package
            patch.delitem(sys.modules, module)
        yield __import__(f"{folder.name}.for_transformers").for_transformers


@pytest.fixture(scope="module")
def given():
    """Arguments of a layer whose local experts are all that a model has."""
    found = arguments(GEOMETRY, 2, offset=0)
    for name in ("gemm1_weights_scale", "gemm2_weights_scale"):
        found[name] = 0.02 * (0.5 + found[name].abs())
    of_token = torch.rand(
        2, len(found["gemm1_weights"]), generator=torch.Generator().manual_seed(0)
    )
    experts = of_token.argsort(1)[:, : found["topk_ids"].shape[1]]
    return found | {"topk_ids": experts.to(DEVICE, torch.int32), "local_expert_offset": 0}


@pytest.fixture
def module(given):
    """FP8Experts with those weights."""
    return experts_with(given)


def experts_with(given, **changes):
    from transformers import DeepseekV3Config

    local, hidden, inter = given["gemm2_weights"].shape
    config = DeepseekV3Config(
        hidden_size=hidden, moe_intermediate_size=inter, n_routed_experts=local
    )
    for name, value in changes.items():
        setattr(config, name, value)
    with torch.device("meta"):
        module = finegrained.FP8Experts(config, block_size=(128, 128))
    for theirs, name in (("gate_up_proj", "gemm1_weights"), ("down_proj", "gemm2_weights")):
        for end, of in (("", name), ("_scale_inv", f"{name}_scale")):
            setattr(module, theirs + end, torch.nn.Parameter(given[of], requires_grad=False))
    return module


def tokens(given):
    """x in bf16, ids as transformers has them, and weights."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    x = torch.randn(given["hidden_states"].shape, generator=generator, device=DEVICE).bfloat16()
    return x, given["topk_ids"].long(), given["topk_weights"]


def error(given, got, x, ids, weights):
    """Of each token, relative to the reference's norm."""
    quantised = dict(
        zip(("hidden_states", "hidden_states_scale"), quantise_tokens_ref(x), strict=True)
    )
    want = wanted(
        GEOMETRY, given | quantised | {"topk_ids": ids.int(), "topk_weights": weights}
    ).float()
    return (got - want).norm(dim=1) / want.norm(dim=1)


@torch.inference_mode()
def test_a_layer_is_the_reference(ours, given, module):
    """Gate taken for up, a scale for its inverse, ids or weights of another
    token.

    Under expert parallelism transformers writes the number of local experts where an expert is
    another rank's.
    """
    x, ids, weights = tokens(given)
    ids[0, 3:] = module.num_experts
    got = ours.experts(module, x, ids, weights)
    assert got.dtype == torch.bfloat16
    assert error(given, got, x, ids.where(ids < module.num_experts, -1), weights).max() < 0.03
    halves = (
        given["gemm1_weights"]
        .view(torch.uint8)
        .roll(module.intermediate_dim, 1)
        .view(torch.float8_e4m3fn)
    )
    swapped = ours.experts(experts_with(given | {"gemm1_weights": halves}), x, ids, weights)
    assert error(given, swapped, x, ids.where(ids < module.num_experts, -1), weights).max() > 0.2, (
        "the check can fail"
    )


def test_scales_in_bf16_are_served(ours, module):
    """Qwen3's own FP8 checkpoints, refused for the dtype of their scales."""
    scale = module.down_proj_scale_inv.data.bfloat16()
    module.down_proj_scale_inv = torch.nn.Parameter(scale, requires_grad=False)
    ours.use_float_scales(module)
    assert module.down_proj_scale_inv.dtype == torch.float32 and torch.equal(
        module.down_proj_scale_inv, scale.float()
    )


# ---- what is refused ----

FAULTS = {
    "has_bias": True,
    "has_gate": False,
    "activation_scheme": "static",
    "block_size": None,
    "swiglu_limit": 7.0,
    "mlp_gate_softcap": 30.0,
    "act_fn": torch.nn.GELU(),
    "down_proj": torch.nn.Parameter(torch.zeros(1, 128, 128), requires_grad=False),
}


@pytest.mark.parametrize("name", FAULTS)
def test_another_kind_of_experts_is_refused(ours, given, module, name):
    """A model that talks nonsense, as its clamp or bias is left out."""
    if name in ours._BESIDES_SWIGLU:
        module = experts_with(
            given, **{name: FAULTS[name], "mlp_up_softcap": 30.0 if "softcap" in name else None}
        )
    else:
        setattr(module, name, FAULTS[name])
    with (
        torch.inference_mode(),
        pytest.raises(ValueError, match="GELU" if name == "act_fn" else name),
    ):
        ours.experts(module, *tokens(given))


def test_another_number_of_experts_a_token_is_refused(ours, module):
    """Which setting of dispatch does not fit, in a message about a tensor's
    shape.
    """
    with pytest.raises(ValueError, match="^top_k_index: .*ep_implementation='all_reduce'"):
        ours.check(module, torch.zeros(1, 1, dtype=torch.int64))


def test_training_is_refused(ours, module):
    """A loss that falls without the experts' gradients."""
    with pytest.raises(RuntimeError, match="backward"):
        ours.experts(module, torch.zeros(1, module.hidden_dim, requires_grad=True), None, None)


def test_an_old_transformers_is_named(ours, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.integrations.finegrained_fp8", None)
    with pytest.raises(ImportError, match="^transformers: .*FP8ExpertsInterface"):
        ours.register()
