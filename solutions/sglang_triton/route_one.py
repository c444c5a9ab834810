"""route_one: route and permute for a single token, in one launch instead of two.

main.py calls it for T = 1. It computes what route.py and permute.py of common/triton/rows do.

Map of the kernel: one program of a single warp calls route_kernel, which stores the experts, and
after a tl.debug_barrier place_kernel, which loads them. Before, it waits for the preceding kernel
(pdl_wait).
"""

import torch
import triton
import triton.language as tl

from ..common.host import problem
from ..common.triton.pdl import pdl_wait
from ..common.triton.rows.permute import Permutation, max_tiles, place_kernel
from ..common.triton.rows.route import TOP_K, route_kernel

GROUP = tl.constexpr(32)  # pairs, one for each lane; TOP_K is at most this


@triton.jit(do_not_specialize=["local_expert_offset", "routed_scaling_factor"])
def route_one_kernel(
    logits_ptr,  # [1, E] fp32; bf16 with RENORM
    bias_ptr,  # [E] bf16; not read with RENORM
    expert_ptr,  # [1, TOP_K] int32, written
    weight_ptr,  # [1, TOP_K] fp32, written
    row_of_pair_ptr,  # this and the next four: fields of a padded `Permutation`, written
    pair_of_row_ptr,
    tile_expert_ptr,
    num_tiles_ptr,
    num_rows_ptr,
    local_expert_offset,
    routed_scaling_factor,
    E_LOCAL: tl.constexpr,
    BINS: tl.constexpr,  # E_LOCAL, or the next power of two
    BLOCK_M: tl.constexpr,
    PAD: tl.constexpr,
    PDL: tl.constexpr,
):
    pdl_wait(PDL)
    route_kernel(
        logits_ptr,
        bias_ptr,
        expert_ptr,
        weight_ptr,
        local_expert_offset,
        routed_scaling_factor,
        E_LOCAL,
    )
    tl.debug_barrier()  # the experts were stored by other threads
    place_kernel(
        expert_ptr,
        expert_ptr,  # group_count_ptr, not read, as there is one group
        row_of_pair_ptr,
        pair_of_row_ptr,
        tile_expert_ptr,
        expert_ptr,  # tile_rows_ptr, not written, as tiles are padded
        num_tiles_ptr,
        num_rows_ptr,
        num_pairs=TOP_K,
        num_groups=1,
        padding=TOP_K,
        first_expert=0,
        LOCAL=E_LOCAL,
        BINS=BINS,
        BLOCK_M=BLOCK_M,
        PADDED=True,
        GROUP=GROUP,
        PAIRS=GROUP,
        SINGLE_GROUP=True,
        GROUPS=1,
        PAD=PAD,
    )


def route_one(
    routing_logits,
    routing_bias,
    local_expert_offset,
    routed_scaling_factor,
    num_local_experts,
    block_m,
):
    """Return a single token's routing weights [1, TOP_K] float32, and its padded `Permutation`.

    Arguments are those of `route`, and block_m of `permute`. pair_of_row is TOP_K in padding rows.
    """
    top_k = TOP_K.value
    bins = 1 << (num_local_experts - 1).bit_length()
    tiles = max_tiles(1, top_k, num_local_experts, block_m)
    device = routing_logits.device

    def int32(*shape):
        return torch.empty(shape, dtype=torch.int32, device=device)

    expert = int32(1, top_k)
    weight = torch.empty(1, top_k, dtype=torch.float32, device=device)
    permutation = Permutation(
        row_of_pair=int32(1, top_k),
        pair_of_row=int32(tiles * block_m),
        tile_expert=int32(tiles),
        num_tiles=int32(1),
        num_rows=int32(1),
        tile_rows=None,
    )
    route_one_kernel[(1,)](
        routing_logits,
        routing_logits if problem.RENORM else routing_bias,
        expert,
        weight,
        *permutation[:5],
        local_expert_offset,
        float(routed_scaling_factor),  # an int would make another kernel
        E_LOCAL=num_local_experts,
        BINS=bins,
        BLOCK_M=block_m,
        PAD=min(block_m, max(1, 1024 // bins)),  # 32 stores a lane
        PDL=device.type != "cpu",
        num_warps=1,
    )
    return weight, permutation
