"""for_transformers: this package as an experts implementation of Hugging Face transformers >= 5.12.

    from moe.PACKAGE.for_transformers import register

    model = AutoModelForCausalLM.from_pretrained(
        MODEL, device_map="cuda", experts_implementation=register()
    )

It serves models in fine-grained FP8: blocks of 128 x 128, float32 scales, tokens quantised at run
time. Anything else is refused at the first call of a layer; integrations/README.md lists what.
"""

from functools import cache

import torch

from integrations import DEFINITION, SIZES, run_bf16
from integrations.for_engines import ACTIVE, NAME, Split, commands
from solutions.common.host import problem

# Keys of a model's config that change SwiGLU, and the values that this package is compiled for;
# None where the model must not have the key
_SWIGLU_CONFIG = {
    "swiglu_limit": problem.SWIGLU_LIMIT or None,
    "mlp_gate_softcap": None,
    "mlp_up_softcap": None,
    "swiglu_alpha": problem.SWIGLU_ALPHA if problem.SWIGLU_UP_OFFSET else None,
}


def register(name=NAME):
    """Make `experts_implementation=name` known to transformers, for FP8 experts. Return name.

    Raises:
        ImportError: this version of transformers has no interface for it.
    """
    try:
        from transformers.integrations.finegrained_fp8 import FP8ExpertsInterface
    except ImportError as error:
        from transformers import __version__

        want = "a release with FP8ExpertsInterface, 5.12 on"
        raise ImportError(f"transformers: got {__version__}, want {want}") from error

    FP8ExpertsInterface.register(name, experts)
    return name


@torch.compiler.disable  # torch.compile cannot trace the launch of the kernels
def experts(self, hidden_states, top_k_index, top_k_weights):
    """Return the sum over the routed experts, as transformers' FP8Experts.forward does.

    Args:
        self: FP8Experts, with gate_up_proj [L, 2 I, H] and down_proj [L, H, I] float8_e4m3fn and
            their scales.
        hidden_states: [T, H] bfloat16.
        top_k_index: [T, k] int; numbers of experts in the tensors above. The number of experts
            stands for none.
        top_k_weights: [T, k], with the model's scaling factor.

    Returns:
        [T, H] bfloat16.

    Raises:
        ValueError: the model or an argument is not what this package is compiled for.
        RuntimeError: a gradient is wanted.
    """
    if torch.is_grad_enabled() and hidden_states.requires_grad:
        advice = "call the model under torch.no_grad() or inference_mode()"
        raise RuntimeError(f"{NAME} has no backward: {advice}")

    if getattr(self, "_fits_moe_package", None) != __package__:
        check(self, top_k_index)
        use_float_scales(self)
        # another package may compute on this module next
        self._fits_moe_package = __package__
        say_active()

    output = torch.empty_like(hidden_states, memory_format=torch.contiguous_format)
    run_bf16(
        hidden_states.contiguous(),
        top_k_index.to(torch.int32),
        top_k_weights.float(),
        self.gate_up_proj,
        self.gate_up_proj_scale_inv,
        self.down_proj,
        self.down_proj_scale_inv,
        0,  # transformers numbers the experts of a rank from 0
        output,
    )
    return output


def check(module, top_k_index):
    """Raise ValueError unless a module, FP8Experts, computes what this package does.

    Dtypes and scales are checked by run_bf16.
    """
    check_kind(module)
    check_top_k(top_k_index.shape[-1])

    experts = SIZES["num_local_experts"]
    hidden = SIZES["hidden_size"]
    intermediate = SIZES["intermediate_size"]
    check_shape(module, "gate_up_proj", (experts, 2 * intermediate, hidden))
    check_shape(module, "down_proj", (experts, hidden, intermediate))

    check_activation(module)


def check_kind(module):
    """Raise ValueError unless experts are gated, without bias, and in blocks of 128 x 128."""
    if not module.has_gate or module.has_bias:
        got = f"has_gate={module.has_gate}, has_bias={module.has_bias}"
        raise ValueError(
            f"experts: got {got}, want experts with a gate and without bias"
        )
    if module.activation_scheme != "dynamic":
        raise ValueError(
            f"activation_scheme: got {module.activation_scheme!r}, want 'dynamic'"
        )
    if module.block_size is None or tuple(module.block_size) != (128, 128):
        raise ValueError(f"weight_block_size: got {module.block_size}, want (128, 128)")


def check_top_k(top_k):
    """Raise ValueError unless a token has as many experts as this package is compiled for."""
    if top_k == SIZES["top_k"]:
        return

    got = f"{top_k} experts a token"
    if top_k == 1:
        got += " (tokens sent to the ranks of their experts?"
        got += " then set ep_implementation='all_reduce')"
    raise ValueError(f"top_k_index: got {got}, want {SIZES['top_k']}")


def check_shape(module, name, want):
    """Raise ValueError unless a weight has the wanted shape.

    The message has the commands that make a package for the model.
    """
    got = tuple(getattr(module, name).shape)
    if got != want:
        advice = commands(module.config._name_or_path, Split(experts="N", width=1))
        raise ValueError(
            f"{name}: got {got}, want {want}; for a package of this layer on N ranks: {advice}"
        )


def check_activation(module):
    """Raise ValueError where a module's activation is not the one that this package computes."""
    others = []
    for key, ours in _SWIGLU_CONFIG.items():
        value = getattr(module.config, key, None)
        if value is not None and value != ours:
            others.append(f"{key}={value}")

    if not others and not computes_our_activation(module):
        others.append(type(module.act_fn).__name__)
    if others:
        raise ValueError(
            f"activation: got {', '.join(others)}, want that of {DEFINITION}"
        )


def use_float_scales(module):
    """Convert scales that are bf16 in a checkpoint, such as Qwen3's, to float32, in place."""
    for scale in (module.gate_up_proj_scale_inv, module.down_proj_scale_inv):
        if scale.dtype == torch.bfloat16:
            scale.data = scale.data.float()


def computes_our_activation(module):
    """Return whether the module's activation is the one that this package computes.

    Both are computed for some numbers and compared, because a config's key for a clamp may have any
    name.
    """
    # 0.5 apart, so small ones are among them
    numbers = torch.linspace(-1000, 1000, 4001)
    gate = numbers.expand(3, -1)
    up = torch.stack([numbers, numbers.roll(1000), numbers.roll(2000)])

    gate_up = torch.cat([gate, up], -1)
    theirs = module._apply_gate(gate_up)
    return torch.allclose(theirs, activation(gate, up))


def activation(gate, up):
    """Return the activation of this package in float32: h of gate and up, of any shape."""
    limit = problem.SWIGLU_LIMIT or torch.inf
    if not problem.CLAMP_AFTER_SILU:
        gate = gate.clamp(max=limit)

    weighed = gate * torch.sigmoid(problem.SWIGLU_ALPHA * gate)
    shifted_up = up.clamp(-limit, limit) + problem.SWIGLU_UP_OFFSET
    return weighed.clamp(max=limit) * shifted_up


@cache
def say_active():
    """Log once in a process that this package computes.

    The line is of level INFO, which transformers prints only if a user asks for it.
    """
    from transformers.utils import logging

    logging.get_logger(f"transformers.{NAME}").info(ACTIVE)
