"""Entry point of a packed solution for FlashInfer's Trace Apply (flashinfer 0.7.2).

`moebench pack --trace-apply` puts it beside the packed files. Trace Apply loads this file alone, as
a module without a package, where the solution's own relative imports would fail. It passes what
its template of the call names, by name, and returns what `apply` returns.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import torch

ENTRY_FILE = "main.py"  # written anew by packing, like the two lines below
ENTRY_FUNCTION = "run"
LAYER = {"top_k": 8, "n_group": 8, "topk_group": 4}


def load_solution():
    """Return the solution's function, imported from a package that is this file's folder."""
    folder = Path(__file__).parent
    name = f"{folder.name}_package"
    package = ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package
    module = ENTRY_FILE.removesuffix(".py").replace("/", ".")
    return getattr(importlib.import_module(f"{name}.{module}"), ENTRY_FUNCTION)


solution = load_solution()


def apply(*, top_k, n_group, topk_group, **inputs):
    """Return the layer's output, [T, H] bf16, on the current stream.

    Raises ValueError for a call of another layer: other routing, or an activation that is no plain
    SwiGLU; and as the solution does.
    """
    came = {"top_k": top_k, "n_group": n_group, "topk_group": topk_group}
    if came != LAYER:
        raise ValueError(f"trtllm_fp8_block_scale_moe: got {came}, want {LAYER}")
    for name in ("gemm1_alpha", "gemm1_beta", "gemm1_clamp_limit"):
        if name in inputs:
            raise ValueError(
                f"{name}: got a tensor, want None: this layer has a plain SwiGLU"
            )

    tokens = inputs["hidden_states"]
    output = torch.empty_like(tokens, dtype=torch.bfloat16)
    solution(**inputs, output=output)
    return output
