"""The plain statement of each stage: what it makes of the results of the stages before it."""

from unittest import mock

import torch
from moebench.operators.fp8 import swiglu
from stage_inputs import BLOCK, GEMM1, ROUTING, TOKENS

from solutions.common.triton.gemms import gemm1 as gemm1_module
from solutions.common.triton.gemms.gemm2 import gemm2_ref
from solutions.common.triton.rows import route as route_module
from solutions.common.triton.rows.combine import combine_ref

ROUTING_SIZES = ("NUM_EXPERTS", "TOP_K", "NUM_GROUPS", "KEPT_GROUPS")
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
        expert, weight = reference_route(layer, arguments)

    is_local = (expert >= 0) & (expert < local)
    column = torch.where(is_local, expert, local).long()  # the last: not local
    zeros = torch.zeros((len(expert), local + 1), device=expert.device)
    chosen = zeros.bool().scatter(1, column, True)
    total = zeros.scatter_add(1, column, weight.float())
    total = total.where(chosen, torch.nan)
    return chosen[:, :-1], total[:, :-1]


def reference_route(layer, arguments):
    """Return local experts, or -1, and weights [T, top_k] of the layer's logits."""
    constants = {name: layer[name.lower()] for name in ROUTING_SIZES}
    constants["RENORM"] = layer["renorm"]
    constants["NUM_SHARED_EXPERTS"] = layer.get("num_shared_experts", 0)
    operands = [arguments[name] for name in ROUTING]
    with mock.patch.multiple(route_module.problem, **constants):
        return route_module.route_ref(*operands, layer["num_local_experts"])


def reference_h(layer, arguments, rows, weight):
    """Return h [rows, I] fp32, times the routing weight [T, E_local] of each row."""
    forms = {"GATE_FIRST": layer["routed"], "SCALES_ROW_MAJOR": layer["routed"]}
    operands = [arguments[name] for name in [*TOKENS, *GEMM1]]
    with mock.patch.multiple(gemm1_module, **forms):
        g = gemm1_module.gemm1_ref(*operands, rows.permutation, rows.align)
    up, gate = g.chunk(2, dim=-1)

    with mock.patch.object(swiglu, "LIMIT", layer.get("swiglu_limit")):
        h = swiglu.function_of(SILU | layer)(gate, up)
    row_weight = weight[rows.token, rows.expert]
    return h * row_weight[:, None]


def reference_y(arguments, rows, h):
    """Return y [rows, H] bf16 of h [rows, I] fp32, times its scale."""
    w2 = arguments["gemm2_weights"]
    w2_scale = arguments["gemm2_weights_scale"]
    _, hidden, inter = w2.shape
    h = torch.where(rows.real[:, None], h, 0)
    ones = torch.ones((len(h), inter // BLOCK), device=h.device)
    return gemm2_ref(h, ones, w2, w2_scale, rows.permutation, rows.align, 0, hidden)


def combined(y, token_rows):
    """Return [T, H] bf16: sums of the tokens' rows of y."""
    shape = (len(token_rows), y.shape[1])
    output = torch.zeros(shape, dtype=torch.bfloat16, device=y.device)
    if len(y):
        ones = torch.ones_like(token_rows, dtype=torch.float32)
        combine_ref(y, token_rows, ones, output, 0)
    return output
