"""Packages as an experts implementation of Hugging Face transformers: a layer's answer, and what is
refused.
"""

import importlib
import sys

import pytest
import torch
from every_solution import expected_output
from layer_inputs import DEVICE
from layer_inputs import arguments as layer_arguments
from moebench.packing import python_package

from solutions.common.triton.rows.quantise_tokens import quantise_tokens_ref

finegrained = pytest.importorskip(
    "transformers.integrations.finegrained_fp8", reason="transformers is not installed"
)
SOLUTION = "hopper_fused" if DEVICE == "cuda" else "triton_fused_v2"
LAYER_KEY = "deepseek-v3-ep1-routed" if DEVICE == "cuda" else "small-routed"
WEIGHTS = {"gate_up_proj": "gemm1_weights", "down_proj": "gemm2_weights"}


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """The module for_transformers of a package."""
    parent = tmp_path_factory.mktemp("engine")
    (folder,) = python_package.pack_packages([SOLUTION], parent, [LAYER_KEY])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(parent)
        for name in list(sys.modules):  # another test's package
            if name.partition(".")[0] == folder.name:
                patch.delitem(sys.modules, name)
        yield importlib.import_module(f"{folder.name}.for_transformers")


@pytest.fixture(scope="module")
def arguments():
    """Arguments of a layer whose local experts are all that a model has."""
    arguments = layer_arguments(LAYER_KEY, 2, offset=0)
    for name in ("gemm1_weights_scale", "gemm2_weights_scale"):
        arguments[name] = 0.02 * (0.5 + arguments[name].abs())
    num_experts = len(arguments["gemm1_weights"])
    top_k = arguments["topk_ids"].shape[1]
    order = torch.rand(
        2, num_experts, generator=torch.Generator().manual_seed(0)
    ).argsort(1)
    arguments["topk_ids"] = order[:, :top_k].to(DEVICE, torch.int32)
    arguments["local_expert_offset"] = 0
    return arguments


def experts_with(arguments, **changes):
    """Return FP8Experts with those weights, of a config with those changes."""
    from transformers import DeepseekV3Config

    local, hidden, inter = arguments["gemm2_weights"].shape
    config = DeepseekV3Config(
        hidden_size=hidden, moe_intermediate_size=inter, n_routed_experts=local
    )
    for name, value in changes.items():
        setattr(config, name, value)
    with torch.device("meta"):
        experts = finegrained.FP8Experts(config, block_size=(128, 128))
    for theirs, ours in WEIGHTS.items():
        setattr(experts, theirs, parameter(arguments[ours]))
        setattr(experts, f"{theirs}_scale_inv", parameter(arguments[f"{ours}_scale"]))
    return experts


def parameter(tensor):
    return torch.nn.Parameter(tensor, requires_grad=False)


@pytest.fixture
def experts(arguments):
    return experts_with(arguments)


@pytest.fixture
def call(arguments):
    """Tokens in bf16, ids as transformers has them, and weights."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    shape = arguments["hidden_states"].shape
    x = torch.randn(shape, generator=generator, device=DEVICE).bfloat16()
    return x, arguments["topk_ids"].long(), arguments["topk_weights"]


# ---- a layer's answer ----


def errors(output, arguments, call, num_experts):
    """Return the error of each token, relative to the reference's norm."""
    x, ids, weights = call
    values, scale = quantise_tokens_ref(x)
    inputs = {
        "hidden_states": values,
        "hidden_states_scale": scale,
        "topk_ids": ids.where(ids < num_experts, -1).int(),
        "topk_weights": weights,
    }
    expected = expected_output(LAYER_KEY, arguments | inputs).float()
    return (output - expected).norm(dim=1) / expected.norm(dim=1)


@torch.inference_mode()
def test_a_layer_is_the_reference(adapter, arguments, experts, call):
    """A scale for its inverse, ids or weights of another token.

    Under expert parallelism transformers writes the number of local experts where an expert is
    another rank's.
    """
    _, ids, _ = call
    ids[0, 3:] = experts.num_experts

    output = adapter.experts(experts, *call)

    assert output.dtype == torch.bfloat16
    assert errors(output, arguments, call, experts.num_experts).max() < 0.03


def test_scales_in_bf16_are_served(adapter, experts):
    """Qwen3's own FP8 checkpoints, refused for the dtype of their scales."""
    scale = experts.down_proj_scale_inv.data.bfloat16()
    experts.down_proj_scale_inv = parameter(scale)

    adapter.use_float_scales(experts)

    assert experts.down_proj_scale_inv.dtype == torch.float32
    assert torch.equal(experts.down_proj_scale_inv, scale.float())


# ---- what is refused ----


@torch.inference_mode()
def assert_refused(adapter, experts, call, name):
    with pytest.raises(ValueError, match=name):
        adapter.experts(experts, *call)


ATTRIBUTES = {
    "has_bias": True,
    "has_gate": False,
    "activation_scheme": "static",
    "block_size": None,
    "down_proj": parameter(torch.zeros(1, 128, 128)),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_another_kind_of_experts_is_refused(adapter, experts, call, name):
    """A model that talks nonsense, as its bias is left out."""
    setattr(experts, name, ATTRIBUTES[name])
    assert_refused(adapter, experts, call, name)


def test_another_activation_is_refused(adapter, experts, call):
    experts.act_fn = torch.nn.GELU()
    assert_refused(adapter, experts, call, "GELU")


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("swiglu_limit", {"swiglu_limit": 7.0}),
        ("mlp_gate_softcap", {"mlp_gate_softcap": 30.0, "mlp_up_softcap": 30.0}),
    ],
)
def test_a_clamp_is_refused(adapter, arguments, call, name, config):
    assert_refused(adapter, experts_with(arguments, **config), call, name)


def test_another_number_of_experts_a_token_is_refused(adapter, experts):
    """Which setting of dispatch does not fit, in a message about a tensor's
    shape.
    """
    with pytest.raises(
        ValueError, match="^top_k_index: .*ep_implementation='all_reduce'"
    ):
        adapter.check(experts, torch.zeros(1, 1, dtype=torch.int64))


def test_training_is_refused(adapter, experts):
    """A loss that falls without the experts' gradients."""
    x = torch.zeros(1, experts.hidden_dim, requires_grad=True)
    with pytest.raises(RuntimeError, match="backward"):
        adapter.experts(experts, x, None, None)


def test_an_old_transformers_is_named(adapter, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.integrations.finegrained_fp8", None)
    with pytest.raises(ImportError, match="^transformers: .*FP8ExpertsInterface"):
        adapter.register()
