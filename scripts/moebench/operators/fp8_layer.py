"""What every form of the FP8 block-scale layer shares: the experts of the reference, the parts of
its definitions, and the bytes that it moves.

Nothing in a reference is fast on purpose. All weights are dequantised to fp32, whether or not a
token needs them, because speed-ups are quoted against exactly that amount of work.
"""

import inspect
from collections.abc import Callable, Iterable

import torch

from moebench.operators import swiglu as activations
from moebench.operators.definition_parts import const, module_source, var
from moebench.operators.layers import Sizes
from moebench.operators.roofline import Bound, Counts
from moebench.operators.swiglu import silu as swiglu

BLOCK = 128
EXPERTS_AT_ONCE = 32  # whose weights are dequantised before the first of them is multiplied


def dequantize(values, scales, row_block):
    """values [..., R, C] fp8 -> fp32, times one scale per row_block x 128 block.

    scales is [..., R / row_block, C / 128] float32 and may hold zeros and negative numbers.
    """
    scales = scales.repeat_interleave(row_block, dim=-2).repeat_interleave(BLOCK, dim=-1)
    return values.to(torch.float32) * scales


def local_experts(x, w13, w13_scale, w2, w2_scale, local, weights):
    """Sum over a rank's experts; return [T, hidden_size] bfloat16.

    x [T, hidden_size] float32. local [T, TOP_K]: indices of the chosen experts, counted from the
    rank's first one; those below 0 and from num_local_experts on are another rank's. weights [T,
    TOP_K] float32.
    """
    num_local_experts, _, intermediate_size = w2.shape
    output = torch.zeros_like(x)
    for first in range(0, num_local_experts, EXPERTS_AT_ONCE):
        some = slice(first, first + EXPERTS_AT_ONCE)
        up_gate = dequantize(w13[some], w13_scale[some], row_block=BLOCK)
        down = dequantize(w2[some], w2_scale[some], row_block=BLOCK)
        for at in range(len(down)):
            tokens, slot = torch.nonzero(local == first + at, as_tuple=True)
            if tokens.numel() == 0:
                continue
            up, gate = x[tokens].matmul(up_gate[at].t()).split(intermediate_size, dim=1)
            rows = swiglu(gate, up).matmul(down[at].t())
            output.index_add_(0, tokens, rows * weights[tokens, slot].unsqueeze(1))
    return output.to(torch.bfloat16)


def self_contained(sizes: Sizes, names: Iterable[str], functions: Iterable[Callable]) -> str:
    """Return source text: the sizes of these names as constants, the activation, the functions."""
    constants = {name.upper(): sizes[name] for name in names}
    constants["BLOCK"] = BLOCK
    sources = [inspect.getsource(function) for function in functions]
    return module_source(constants, [activations.source(sizes), *sources])


def size_suffix(sizes: Sizes) -> str:
    """Return the part of a definition's name that local experts, widths and clamp make."""
    experts = f"e{sizes['num_local_experts']}"
    widths = f"h{sizes['hidden_size']}_i{sizes['intermediate_size']}"
    return f"{experts}_{widths}{activations.suffix(sizes)}"


def tags(layer_key: str, sizes: Sizes) -> list[str]:
    """Return a definition's tags: its models, quantisation, ranks and key."""
    ranks = sizes["num_experts"] // sizes["num_local_experts"]
    parallelism = [f"parallelism:ep{ranks}"]
    if sizes["tensor_ranks"] > 1:
        parallelism.append(f"parallelism:tp{sizes['tensor_ranks']}")
    return [
        *(f"model:{model}" for model in sizes["model"]),
        "quantization:fp8_block_scale",
        *parallelism,
        f"geometry:{layer_key}",
    ]


def slice_of_experts(sizes: Sizes) -> str:
    """Return what a definition's description says of a tensor-parallel rank; "" of another one."""
    ranks = sizes["tensor_ranks"]
    if ranks == 1:
        return ""
    share = f"one of {ranks} slices of its intermediate size"
    return f" Each expert is {share}; the ranks' outputs add up."


def axes(sizes: Sizes) -> dict:
    """Return the axes that a definition of the layer has."""
    hidden = sizes["hidden_size"]
    inter = sizes["intermediate_size"]
    return {
        "seq_len": var("Tokens in the batch; 0 is legal."),
        "num_experts": const(sizes["num_experts"], "Experts of the whole layer."),
        "num_local_experts": const(sizes["num_local_experts"], "Experts that this rank holds."),
        "hidden_size": const(hidden, "Model width."),
        "intermediate_size": const(inter, "Width inside an expert."),
        "gemm1_out_size": const(2 * inter, "GEMM1's output: up, then gate."),
        "num_hidden_blocks": const(hidden // BLOCK, "Scale blocks along hidden_size."),
        "num_intermediate_blocks": const(inter // BLOCK, "Scale blocks along intermediate_size."),
        "num_gemm1_out_blocks": const(2 * inter // BLOCK, "Scale blocks along gemm1_out_size."),
    }


CONSTRAINTS = [
    "gemm1_out_size == 2 * intermediate_size",
    f"hidden_size == {BLOCK} * num_hidden_blocks",
    f"intermediate_size == {BLOCK} * num_intermediate_blocks",
    f"gemm1_out_size == {BLOCK} * num_gemm1_out_blocks",
    "num_local_experts <= num_experts",
]


def without_num_experts(sizes: Sizes) -> tuple[dict, list[str]]:
    """Return axes and constraints of a form in which nothing hangs on the number of all experts."""
    kept_axes = axes(sizes)
    del kept_axes["num_experts"]
    constraints = [line for line in CONSTRAINTS if "num_experts" not in line.split()]
    return kept_axes, constraints


def expert_bytes(sizes: Sizes) -> int:
    """Return the bytes of an expert's FP8 weights and their fp32 scales, one per block."""
    weights = 3 * sizes["intermediate_size"] * sizes["hidden_size"]
    return weights + 4 * weights // BLOCK**2


def layer_bound(
    seq_len: int,
    counts: Counts,
    routing_bytes: int,
    sizes: Sizes,
    bytes_per_expert: int | None = None,
) -> Bound:
    """Return the roofline bound of a layer whose routing inputs take so many bytes.

    bytes_per_expert: of weights and scales; default: those of FP8.
    """
    if bytes_per_expert is None:
        bytes_per_expert = expert_bytes(sizes)
    hidden = sizes["hidden_size"]
    token_bytes = hidden + 4 * hidden // BLOCK

    moved = counts.active * bytes_per_expert
    moved += counts.tokens * token_bytes
    moved += routing_bytes
    moved += seq_len * hidden * 2  # output, bf16

    flops = 2 * counts.rows * 3 * sizes["intermediate_size"] * hidden
    return Bound(counts.rows, counts.active, moved, flops)
