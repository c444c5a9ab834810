"""Packages as an experts implementation of Hugging Face transformers: a whole model's logits, and what is refused."""

import copy
import sys

import pytest
import torch
from harness.commands.generate import ON_CPU, ON_GPU, adapter
from harness.packing import pack
from harness.served import deepseek_v3, generation

pytest.importorskip("transformers.integrations.finegrained_fp8", reason="transformers is not installed")

ON = ON_GPU if torch.cuda.is_available() else ON_CPU
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """The module for_transformers of a package."""
    name = "hopper_fused" if DEVICE == "cuda" else "triton_fused_v2"
    (folder,) = pack.pack_packages([name], tmp_path_factory.mktemp("engine"), [ON["geometry"]])
    return adapter(folder)


@pytest.fixture(scope="module")
def model():
    return deepseek_v3.build(ON["geometry"], 1, DEVICE)


def swap_gate_and_up(model):
    for experts in model.fp8:
        rolled = experts.gate_up_proj.data.view(torch.uint8).roll(experts.intermediate_dim, 1)
        experts.gate_up_proj.data = rolled.view(torch.float8_e4m3fn)


def test_logits_are_those_of_the_model_in_bf16(ours, model):
    """A user would miss: gate taken for up, a scale for its inverse, ids or weights of another token."""
    line = generation.compare_logits(model, ours.register(), ON["checked"])
    assert line.error is None and line.median < 0.04, line
    swap_gate_and_up(model)  # the check can fail: up first
    wrong = generation.compare_logits(model, ours.register(), ON["checked"])
    swap_gate_and_up(model)
    assert wrong.error and wrong.median > 0.2, wrong


@torch.inference_mode()
def test_an_id_beyond_the_experts_costs_nothing(ours, model):
    """Under expert parallelism transformers writes the number of local experts where an expert is another rank's."""
    (fp8,), (bf16,) = model.fp8, model.bf16
    experts, top_k = fp8.num_experts, model.lm.config.num_experts_per_tok
    generator = torch.Generator(DEVICE).manual_seed(0)
    x = torch.randn(2, fp8.hidden_dim, generator=generator, device=DEVICE).bfloat16()
    ids = torch.stack([torch.randperm(experts, generator=generator, device=DEVICE)[:top_k] for _ in x])
    weights = torch.rand(2, top_k, generator=generator, device=DEVICE)
    without, ids[0, 3:] = weights.clone(), experts
    without[0, 3:] = 0
    model.use(deepseek_v3.BF16)
    bf16.config._experts_implementation_internal = "eager"
    want = bf16(x, ids.clamp(max=experts - 1), without).float()  # that of 5.12 knows no such ids
    got = ours.experts(fp8, x, ids, weights)
    assert got.dtype == torch.bfloat16 and ((got - want).norm(dim=1) / want.norm(dim=1)).max() < 0.06


@torch.inference_mode()
def test_the_step_that_is_captured_is_the_step_that_decode_takes(model):
    """A figure would be wrong: a graph that attends to a cache of another length."""
    model.use(deepseek_v3.BF16)
    growing, fixed = generation.decode(model, 2, 5), generation.decode_in_place(model, 2, 5)
    want, got = growing(), fixed()
    assert torch.equal(got.argmax(-1), want) and torch.equal(fixed(), got)


def test_scales_in_bf16_are_served(ours, model):
    """A user would miss: Qwen3's own FP8 checkpoints, refused for the dtype of their scales."""
    module = copy.copy(model.fp8[0])
    scale = module.down_proj_scale_inv.data.bfloat16()
    module._parameters = module._parameters | {"down_proj_scale_inv": torch.nn.Parameter(scale, requires_grad=False)}
    ours.use_float_scales(module)
    assert module.down_proj_scale_inv.dtype == torch.float32 and torch.equal(module.down_proj_scale_inv, scale.float())


# ---- what is refused ----

FAULTS = {
    "has_bias": (True, "has_bias=True, want experts with a gate and without bias"),
    "has_gate": (False, "has_gate=False"),
    "activation_scheme": ("static", "activation_scheme: got 'static', want 'dynamic'"),
    "block_size": (None, r"weight_block_size: got None, want \(128, 128\)"),
    "swiglu_limit": (7.0, "activation: got swiglu_limit=7.0, want silu"),
    "mlp_gate_softcap": (30.0, "activation: got mlp_gate_softcap=30.0"),
    "act_fn": (torch.nn.GELU(), "activation: got GELU, want silu"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_another_kind_of_experts_is_refused(ours, model, name):
    """A user would miss: a model that talks nonsense, as its clamp or bias is left out."""
    value, message = FAULTS[name]
    module = copy.copy(model.fp8[0])
    module.__dict__ = {k: v for k, v in module.__dict__.items() if k != "_fits_moe_package"}
    module._modules = dict(module._modules)
    if name in ours._BESIDES_SWIGLU:
        from transformers.integrations.finegrained_fp8 import FP8Experts

        changed = copy.deepcopy(model.lm.config)
        setattr(changed, name, value)
        changed.mlp_up_softcap = value if "softcap" in name else None
        with torch.device("meta"):
            module = FP8Experts(changed, block_size=(128, 128))
    else:
        setattr(module, name, value)
    x = torch.zeros(1, module.hidden_dim, dtype=torch.bfloat16, device=DEVICE)
    ids = torch.zeros(1, model.lm.config.num_experts_per_tok, dtype=torch.int64, device=DEVICE)
    with torch.inference_mode(), pytest.raises(ValueError, match=message):
        ours.experts(module, x, ids, ids.float())


def test_other_sizes_are_refused(ours, model):
    """A user would miss: which of sizes, ranks and dispatch does not fit, in a message about a tensor's shape."""
    module = copy.copy(model.fp8[0])
    ids = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="top_k_index: got 1 experts a token .*ep_implementation='all_reduce'"):
        ours.check(module, ids)
    module._parameters = module._parameters | {"down_proj": module.down_proj[:-1]}
    with pytest.raises(ValueError, match="down_proj: got .* of another model or expert-parallel size"):
        ours.check(module, ids.expand(1, model.lm.config.num_experts_per_tok))


def test_training_is_refused(ours, model):
    """A user would miss: a loss that falls without the experts' gradients."""
    x = torch.zeros(1, model.fp8[0].hidden_dim, requires_grad=True)
    with pytest.raises(RuntimeError, match="no backward: call the model under torch.no_grad"):
        ours.experts(model.fp8[0], x, None, None)


def test_a_model_in_bf16_is_refused(ours, model):
    """transformers says so itself: the name is one of its FP8 experts only."""
    model.use(ours.register())
    with pytest.raises(KeyError, match="not a valid experts implementation"):
        model.bf16[0](torch.zeros(1, model.fp8[0].hidden_dim), None, None)


def test_an_old_transformers_is_named(ours, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.integrations.finegrained_fp8", None)
    with pytest.raises(ImportError, match="transformers: got .*, want a release with FP8ExpertsInterface, 5.12 on"):
        ours.register()
