"""The activations of the FP8 layers, from gemm1's halves to h, each under the name by which engines
know it.

Each is the reference's `swiglu`; LIMIT stands there as a constant of the definition. A NaN passes
through every clamp.
"""

import inspect

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


def function_of(of):
    """The activation of a geometry's sizes."""
    name = "silu_clamp" if of["activation"] == "silu" and of["swiglu_limit"] else of["activation"]
    return {each.__name__: each for each in (silu, silu_clamp, swigluoai, swiglustep)}[name]


def source(of):
    """The text of the reference's `swiglu`, with its LIMIT."""
    function = function_of(of)
    text = inspect.getsource(function).replace(f"def {function.__name__}(", "def swiglu(")
    return f"LIMIT = {float(of['swiglu_limit'])}\n\n\n{text}" if of["swiglu_limit"] else text


def description(of):
    """In a definition's description."""
    return (
        f"SwiGLU clamped at {of['swiglu_limit']:g} ({of['activation']})"
        if of["swiglu_limit"]
        else "SwiGLU"
    )


def suffix(of):
    """What it adds to a definition's name: _clamp10, _swigluoai7, _swiglustep7; nothing for silu
    alone.
    """
    if not of["swiglu_limit"]:
        return ""
    return f"_{'clamp' if of['activation'] == 'silu' else of['activation']}{of['swiglu_limit']:g}".replace(
        ".", "p"
    )


def constants(of):
    """What a kernel computes h from: h = s * (up + up_offset), s = gate * sigmoid(alpha * gate).

    limit (0: none): up within +-limit, and gate at most limit, or s where clamp_after_silu.
    """
    oai = of["activation"] == "swigluoai"
    return {
        "swiglu_limit": float(of["swiglu_limit"]),
        "swiglu_alpha": 1.702 if oai else 1.0,
        "swiglu_up_offset": 1.0 if oai else 0.0,
        "clamp_after_silu": of["activation"] == "swiglustep",
    }
