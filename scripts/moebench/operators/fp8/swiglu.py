"""The activations of the FP8 layers, from gemm1's halves to h, each under the name by which engines
know it.

Each is the reference's `swiglu`; LIMIT stands there as a constant of the definition. A NaN passes
through every clamp.
"""

import inspect
from collections.abc import Callable

import torch

LIMIT = 10.0  # of DeepSeek-V4; a definition has its own


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
    """Return which of FUNCTIONS is the activation of a layer's sizes."""
    if sizes["activation"] == "silu" and sizes["swiglu_limit"]:
        return "clamp"
    return sizes["activation"]


def function_of(sizes: dict) -> Callable:
    """Return the activation of a layer's sizes."""
    return FUNCTIONS[kind(sizes)]


def source(sizes: dict) -> str:
    """Return the text of the reference's `swiglu`, with its LIMIT."""
    function = function_of(sizes)
    text = inspect.getsource(function)
    text = text.replace(f"def {function.__name__}(", "def swiglu(")
    limit = float(sizes["swiglu_limit"])
    return f"LIMIT = {limit}\n\n\n{text}" if limit else text


def description(sizes: dict) -> str:
    """Return how a definition's description names the activation."""
    if not sizes["swiglu_limit"]:
        return "SwiGLU"
    return f"SwiGLU clamped at {sizes['swiglu_limit']:g} ({sizes['activation']})"


def suffix(sizes: dict) -> str:
    """Return what the activation adds to a definition's name: "_clamp10"; "" for silu alone."""
    limit = sizes["swiglu_limit"]
    if not limit:
        return ""
    return f"_{kind(sizes)}{limit:g}".replace(".", "p")


def constants(sizes: dict) -> dict[str, float | bool]:
    """Return what a kernel computes h from.

    h = s * (up + up_offset), s = gate * sigmoid(alpha * gate). limit (0: none): up within +-limit,
    and gate at most limit, or s where clamp_after_silu.
    """
    oai = sizes["activation"] == "swigluoai"
    return {
        "swiglu_limit": float(sizes["swiglu_limit"]),
        "swiglu_alpha": 1.702 if oai else 1.0,
        "swiglu_up_offset": 1.0 if oai else 0.0,
        "clamp_after_silu": sizes["activation"] == "swiglustep",
    }
