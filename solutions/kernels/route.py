"""route: which eight experts a token goes to, and with what weight.

DeepSeek-V3's "no auxiliary loss" routing: s = sigmoid(logits); s + bias selects, s alone weighs. The
experts stand in groups; a group's score is the sum of its two largest s + bias, the best groups are
kept, and the largest s + bias inside them are the token's experts. Non-local experts count in the sum
that normalises the weights, and are then marked -1: this rank has no work for them.

Map of the kernel: one program a token; 256 scores live in registers, and every step (group maxima,
rank of a group, eight rounds of argmax) is a reduction over them. Two stores at the end.
"""

import torch
import triton
import triton.language as tl

NUM_GROUPS = 8
TOPK_GROUPS = 4
TOP_K = 8


def route_ref(routing_logits, routing_bias, local_expert_offset, routed_scaling_factor, num_local_experts):
    """Plain statement of `route`; same arguments and results, on any device."""
    num_tokens, num_experts = routing_logits.shape
    s = torch.sigmoid(routing_logits.float())
    biased = s + routing_bias.float()
    grouped = biased.view(num_tokens, NUM_GROUPS, num_experts // NUM_GROUPS)
    group_score = grouped.topk(2, dim=-1).values.sum(-1)
    kept = torch.zeros_like(group_score, dtype=torch.bool)
    kept.scatter_(1, group_score.topk(TOPK_GROUPS, dim=-1).indices, True)
    selectable = grouped.masked_fill(~kept[:, :, None], float("-inf")).view(num_tokens, num_experts)
    expert = selectable.topk(TOP_K, dim=-1).indices
    weight = s.gather(1, expert)
    weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * routed_scaling_factor
    local = expert - local_expert_offset
    local = torch.where((local >= 0) & (local < num_local_experts), local, -1)
    return local.to(torch.int32), weight


@triton.jit(do_not_specialize=["local_expert_offset", "routed_scaling_factor"])
def route_kernel(
    logits_ptr,  # [T, E] fp32
    bias_ptr,  # [E] bf16
    expert_ptr,  # [T, TOP_K] int32, written
    weight_ptr,  # [T, TOP_K] fp32, written
    local_expert_offset,
    routed_scaling_factor,
    E: tl.constexpr,
    E_LOCAL: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    TOPK_GROUPS: tl.constexpr,
    TOP_K: tl.constexpr,
):
    token = tl.program_id(0)
    expert = tl.arange(0, E)
    group = tl.arange(0, NUM_GROUPS)
    in_group = tl.arange(0, E // NUM_GROUPS)
    slot = tl.arange(0, TOP_K)

    s = 1.0 / (1.0 + tl.exp(-tl.load(logits_ptr + token * E + expert)))
    biased = tl.reshape(s + tl.load(bias_ptr + expert).to(tl.float32), (NUM_GROUPS, E // NUM_GROUPS))

    first = tl.max(biased, 1)
    first_at = tl.argmax(biased, 1)
    second = tl.max(tl.where(in_group[None, :] == first_at[:, None], float("-inf"), biased), 1)
    score = first + second
    # transposing by a masked sum keeps both axes of the comparison in one layout
    score_row = tl.sum(tl.where(group[:, None] == group[None, :], score[:, None], 0.0), 0)
    ahead = (score_row[None, :] > score[:, None]) | (
        (score_row[None, :] == score[:, None]) & (group[None, :] < group[:, None])
    )
    kept = tl.sum(ahead.to(tl.int32), 1) < TOPK_GROUPS
    selectable = tl.reshape(tl.where(kept[:, None], biased, float("-inf")), (E,))

    chosen = tl.zeros((TOP_K,), tl.int32)
    weight = tl.zeros((TOP_K,), tl.float32)
    for k in tl.static_range(TOP_K):
        best = tl.argmax(selectable, 0)
        is_best = expert == best
        chosen = tl.where(slot == k, best, chosen)
        weight = tl.where(slot == k, tl.sum(tl.where(is_best, s, 0.0), 0), weight)
        selectable = tl.where(is_best, float("-inf"), selectable)

    weight = weight / (tl.sum(weight, 0) + 1e-20) * routed_scaling_factor
    local = chosen - local_expert_offset
    local = tl.where((local >= 0) & (local < E_LOCAL), local, -1)
    tl.store(expert_ptr + token * TOP_K + slot, local)
    tl.store(weight_ptr + token * TOP_K + slot, weight)


def route(routing_logits, routing_bias, local_expert_offset, routed_scaling_factor, num_local_experts):
    """Choose each token's experts.

    Args:
        routing_logits: [T, E] float32; E a power of two, divisible by 8 groups.
        routing_bias: [E] bfloat16, takes part in the choice only.
        local_expert_offset: global number of the first local expert.
        routed_scaling_factor: factor on the normalised weights.
        num_local_experts: E_local.

    Returns:
        expert [T, 8] int32: local expert number, -1 for an expert of another rank;
        weight [T, 8] float32: routing weight, also of the non-local ones.

    Source: DeepSeek-V3 technical report, section 2.1.2.
    """
    num_tokens, num_experts = routing_logits.shape
    expert = torch.empty(num_tokens, TOP_K, dtype=torch.int32, device=routing_logits.device)
    weight = torch.empty(num_tokens, TOP_K, dtype=torch.float32, device=routing_logits.device)
    route_kernel[(num_tokens,)](
        routing_logits,
        routing_bias,
        expert,
        weight,
        local_expert_offset,
        float(routed_scaling_factor),  # an int would make another kernel
        E=num_experts,
        E_LOCAL=num_local_experts,
        NUM_GROUPS=NUM_GROUPS,
        TOPK_GROUPS=TOPK_GROUPS,
        TOP_K=TOP_K,
        num_warps=1,
    )
    return expert, weight
