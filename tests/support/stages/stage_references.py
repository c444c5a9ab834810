"""The plain statement of each stage: what it makes of the results of the stages before it."""

from unittest import mock

import torch
from moebench.operators.fp8 import swiglu
from stage_inputs import BLOCK, GEMM1, ROUTING, TOKENS

from solutions.common.triton.gemms import gemm1 as gemm1_module
from solutions.common.triton.gemms.gemm2 import gemm2_ref
from solutions.common.triton.rows import route as route_module
from solutions.common.triton.rows.combine import combine_ref

SILU = {"activation": "silu", "swiglu_limit": 0}  # of layers that name no activation


def reference_choice(layer, arguments):
    """Return what the layer's arguments ask for: chosen [T, E_local] bool and weight [T, E_local],
    NaN elsewhere.
    """
    local = layer["num_local_experts"]
    if layer["routed"]:
        expert = arguments["topk_ids"].long() - arguments["local_expert_offset"]
        weight = arguments["topk_weights"]
    else:
        names = ("NUM_EXPERTS", "TOP_K", "NUM_GROUPS", "KEPT_GROUPS")
        routing = {name: layer[name.lower()] for name in names}
        routing["NUM_SHARED_EXPERTS"] = layer.get("num_shared_experts", 0)
        with mock.patch.multiple(route_module.problem, RENORM=layer["renorm"], **routing):
            expert, weight = route_module.route_ref(*(arguments[name] for name in ROUTING), local)

    expert = torch.where((expert < 0) | (expert >= local), local, expert).long()
    shape = (len(expert), local + 1)  # the last column: not local
    chosen = torch.zeros(shape, dtype=torch.bool, device=expert.device).scatter_(1, expert, True)
    total = torch.zeros(shape, device=expert.device).scatter_add_(1, expert, weight.float())
    return chosen[:, :-1], torch.where(chosen, total, torch.nan)[:, :-1]


def reference_halves(layer, arguments, rows):
    """Return up and gate [rows, I] fp32 of rows."""
    forms = {"GATE_FIRST": layer["routed"], "SCALES_ROW_MAJOR": layer["routed"]}
    operands = [arguments[name] for name in [*TOKENS, *GEMM1]]
    with mock.patch.multiple(gemm1_module, **forms):
        g = gemm1_module.gemm1_ref(*operands, rows.permutation, rows.align)
    return g.chunk(2, dim=-1)


def reference_h(layer, arguments, rows, weight):
    """Return h [rows, I] fp32, times the routing weight [T, E_local] of each row."""
    up, gate = reference_halves(layer, arguments, rows)
    with mock.patch.object(swiglu, "LIMIT", layer.get("swiglu_limit")):
        h = swiglu.function_of(SILU | layer)(gate, up)
    return h * weight[rows.token, rows.expert][:, None]


def reference_y(arguments, read_out):
    """Return y [rows, H] bf16 of the h that was read out."""
    rows = read_out.rows
    w2 = arguments["gemm2_weights"]
    h = torch.where(rows.real[:, None], read_out.h, 0)
    ones = torch.ones((len(h), h.shape[1] // BLOCK), device=h.device)
    scale = arguments["gemm2_weights_scale"]
    return gemm2_ref(h, ones, w2, scale, rows.permutation, rows.align, 0, w2.shape[1])


def combined(y, token_rows):
    """Return [T, H] bf16: sums of the tokens' rows of y."""
    output = torch.empty((len(token_rows), y.shape[1]), dtype=torch.bfloat16, device=y.device)
    if not len(y):
        return output.zero_()
    combine_ref(y, token_rows, torch.ones_like(token_rows, dtype=torch.float32), output, 0)
    return output
