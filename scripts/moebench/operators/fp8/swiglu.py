"""The activations of the FP8 layers: what is computed of gate and up, the halves of GEMM1's output.

In a definition's reference one of these functions is called `swiglu`, and LIMIT is a constant
beside it. NaN passes through every clamp. In layers.toml and in engines the activation is "silu",
which with a limit is "clamp" here, "swigluoai" or "swiglustep".
"""

import inspect
from collections.abc import Callable

import torch

LIMIT = 10.0  # DeepSeek-V4's; in another layer's definition it has another value


def silu(gate, up):
    """silu(gate) * up."""
    return torch.nn.functional.silu(gate) * up


def silu_clamp(gate, up):
    """gate at most LIMIT and up within +-LIMIT, then silu(gate) * up: DeepSeek-V4's and
    GLM-5.3's.
    """
    gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
    return torch.nn.functional.silu(gate) * up


def swigluoai(gate, up):
    """gate at most LIMIT and up within +-LIMIT, then gate * sigmoid(1.702 * gate) * (up + 1):
    gpt-oss'.
    """
    gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


def swiglustep(gate, up):
    """silu(gate) at most LIMIT and up within +-LIMIT, then their product: Step's."""
    return torch.nn.functional.silu(gate).clamp(max=LIMIT) * up.clamp(-LIMIT, LIMIT)


FUNCTIONS = {
    "silu": silu,
    "clamp": silu_clamp,
    "swigluoai": swigluoai,
    "swiglustep": swiglustep,
}


def kind(sizes: dict) -> str:
    """Return the key in FUNCTIONS of the activation of a layer with these sizes."""
    if sizes["activation"] == "silu" and sizes["swiglu_limit"]:
        return "clamp"
    return sizes["activation"]


def function_of(sizes: dict) -> Callable:
    """Return the activation of a layer with these sizes."""
    return FUNCTIONS[kind(sizes)]


def source(sizes: dict) -> str:
    """Return the text of `swiglu` in a layer's reference, with LIMIT before it where it has one."""
    function = function_of(sizes)
    text = inspect.getsource(function)
    text = text.replace(f"def {function.__name__}(", "def swiglu(")
    limit = float(sizes["swiglu_limit"])
    return f"LIMIT = {limit}\n\n\n{text}" if limit else text


def description(sizes: dict) -> str:
    """Return the activation's name in a definition's description."""
    if not sizes["swiglu_limit"]:
        return "SwiGLU"
    return f"SwiGLU clamped at {sizes['swiglu_limit']:g} ({sizes['activation']})"


def suffix(sizes: dict) -> str:
    """Return the activation's part of a definition's name: "_clamp10"; "" for silu alone."""
    limit = sizes["swiglu_limit"]
    if not limit:
        return ""
    return f"_{kind(sizes)}{limit:g}".replace(".", "p")


def constants(sizes: dict) -> dict[str, float | bool]:
    """Return the constants of the formula by which kernels compute every activation.

    It is s * (up + swiglu_up_offset) with s = gate * sigmoid(swiglu_alpha * gate). Where
    swiglu_limit is not 0, up is clamped to +-swiglu_limit before, and gate to at most that, or s
    where clamp_after_silu.
    """
    oai = sizes["activation"] == "swigluoai"
    return {
        "swiglu_limit": float(sizes["swiglu_limit"]),
        "swiglu_alpha": 1.702 if oai else 1.0,
        "swiglu_up_offset": 1.0 if oai else 0.0,
        "clamp_after_silu": sizes["activation"] == "swiglustep",
    }
