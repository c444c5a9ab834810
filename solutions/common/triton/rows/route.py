"""route: which experts a token goes to, and with what weight.

The first stage of layer.py, sglang_triton, flashinfer_cutlass and deepgemm, where the caller does
not pass experts and weights.

With DeepSeek-V3's "no auxiliary loss" routing s = sigmoid(logits); experts are chosen by s + bias
and weighed by s. The experts may stand in groups; a group's score is the sum of its two largest s +
bias, the best groups are kept, and the largest s + bias inside them are the token's experts.
Non-local experts count in the sum that normalises the weights, and are then marked -1: this rank
has no work for them. With renorm routing experts are chosen by their logits, and the weights are a
softmax over those of the chosen. Shared experts, which are the last local ones, take a token's last
slots on rank token % ranks.

Map of the kernel: one program a token; its scores live in registers, and every step (group maxima,
rank of a group, TOP_K rounds of argmax) is a reduction over them. Two stores at the end.
"""

import torch
import triton
import triton.language as tl

from ...host import problem

# the definition's sizes, as constants that kernels may read
E = tl.constexpr(problem.NUM_EXPERTS)
NUM_GROUPS = tl.constexpr(problem.NUM_GROUPS)
KEPT_GROUPS = tl.constexpr(problem.KEPT_GROUPS)
# A lane an expert; groups and what is in each are padded to powers of two, with lanes that are
# never chosen.
GROUPS = tl.constexpr(triton.next_power_of_2(problem.NUM_GROUPS))
IN_GROUP = tl.constexpr(
    triton.next_power_of_2(problem.NUM_EXPERTS // problem.NUM_GROUPS)
)
LANES = tl.constexpr(GROUPS.value * IN_GROUP.value)
CHOSEN = tl.constexpr(problem.TOP_K)  # experts that the router chooses for a token
SHARED = tl.constexpr(problem.NUM_SHARED_EXPERTS)
TOP_K = tl.constexpr(problem.TOP_K + problem.NUM_SHARED_EXPERTS)  # with the shared ones
SLOTS = tl.constexpr(triton.next_power_of_2(TOP_K.value))
RENORM = tl.constexpr(problem.RENORM)


@triton.jit(do_not_specialize=["local_expert_offset", "routed_scaling_factor"])
def route_kernel(
    logits_ptr,  # [T, E] fp32; bf16 with RENORM
    bias_ptr,  # [E] bf16; not read with RENORM
    expert_ptr,  # [T, TOP_K] int32, written
    weight_ptr,  # [T, TOP_K] fp32, written
    local_expert_offset,
    routed_scaling_factor,
    E_LOCAL: tl.constexpr,
):
    token = tl.program_id(0)
    lane = tl.arange(0, LANES)
    slot = tl.arange(0, SLOTS)
    expert = lane
    if LANES > E and NUM_GROUPS > 1:
        # a lane without an expert gets E, the number after the last
        expert = lane // IN_GROUP * (E // NUM_GROUPS) + lane % IN_GROUP
        expert = tl.where(lane % IN_GROUP < E // NUM_GROUPS, expert, E)

    if LANES == E:
        logits = tl.load(logits_ptr + token * E + expert).to(tl.float32)
    else:
        logits = tl.load(
            logits_ptr + token * E + expert, mask=expert < E, other=0.0
        ).to(tl.float32)
    if RENORM:
        s = logits
        # -inf is for experts that cannot be chosen
        selectable = tl.maximum(logits, -3.0e38)
    else:
        s = 1.0 / (1.0 + tl.exp(-logits))
        if LANES == E:
            selectable = s + tl.load(bias_ptr + expert).to(tl.float32)
        else:
            selectable = s + tl.load(bias_ptr + expert, mask=expert < E, other=0.0).to(
                tl.float32
            )
    if LANES > E:
        selectable = tl.where(expert < E, selectable, float("-inf"))
    if KEPT_GROUPS < NUM_GROUPS:
        group = tl.arange(0, GROUPS)
        in_group = tl.arange(0, IN_GROUP)
        biased = tl.reshape(selectable, (GROUPS, IN_GROUP))
        first = tl.max(biased, 1)
        first_at = tl.argmax(biased, 1)
        second = tl.max(
            tl.where(in_group[None, :] == first_at[:, None], float("-inf"), biased), 1
        )
        score = first + second
        # transposing by a masked sum keeps both axes of the comparison in one layout
        score_row = tl.sum(
            tl.where(group[:, None] == group[None, :], score[:, None], 0.0), 0
        )
        ahead = (score_row[None, :] > score[:, None]) | (
            (score_row[None, :] == score[:, None]) & (group[None, :] < group[:, None])
        )
        kept = tl.sum(ahead.to(tl.int32), 1) < KEPT_GROUPS
        selectable = tl.reshape(
            tl.where(kept[:, None], biased, float("-inf")), (LANES,)
        )

    chosen = tl.zeros((SLOTS,), tl.int32)
    weight = tl.zeros((SLOTS,), tl.float32)
    for k in tl.static_range(CHOSEN):
        best = tl.argmax(selectable, 0)
        is_best = lane == best
        if LANES > E and NUM_GROUPS > 1:
            chosen = tl.where(
                slot == k, tl.sum(tl.where(is_best, expert, 0), 0), chosen
            )
        else:
            chosen = tl.where(slot == k, best, chosen)
        weight = tl.where(slot == k, tl.sum(tl.where(is_best, s, 0.0), 0), weight)
        selectable = tl.where(is_best, float("-inf"), selectable)

    if RENORM:
        most = tl.max(tl.where(slot < TOP_K, weight, float("-inf")), 0)
        weight = tl.where(slot < TOP_K, tl.exp(weight - most), 0.0)
        weight = weight / tl.sum(weight, 0)
    else:
        weight = weight / (tl.sum(weight, 0) + 1e-20) * routed_scaling_factor
    local = chosen - local_expert_offset
    local = tl.where((local >= 0) & (local < E_LOCAL - SHARED), local, -1)
    if SHARED > 0:  # all ranks have them, and the ranks' outputs add up
        ROUTED: tl.constexpr = E_LOCAL - SHARED
        here = token % (E // ROUTED) == local_expert_offset // ROUTED
        local = tl.where(
            slot >= CHOSEN, tl.where(here, ROUTED + slot - CHOSEN, -1), local
        )
        weight = tl.where(slot >= CHOSEN, 1.0, weight)
    if SLOTS == TOP_K:
        tl.store(expert_ptr + token * TOP_K + slot, local)
        tl.store(weight_ptr + token * TOP_K + slot, weight)
    else:
        tl.store(expert_ptr + token * TOP_K + slot, local, mask=slot < TOP_K)
        tl.store(weight_ptr + token * TOP_K + slot, weight, mask=slot < TOP_K)


def route(
    routing_logits,
    routing_bias,
    local_expert_offset,
    routed_scaling_factor,
    num_local_experts,
):
    """Return each token's experts and their weights.

    Args:
        routing_logits: [T, E] float32, bfloat16 with renorm routing; E a multiple of the number of
            groups.
        routing_bias: [E] bfloat16, takes part in the choice only; None with renorm routing.
        local_expert_offset: global number of the first local expert.
        routed_scaling_factor: factor on the normalised weights.
        num_local_experts: E_local, with shared experts.

    Returns:
        expert [T, TOP_K] int32: local expert number, -1 for an expert of another rank; weight [T,
            TOP_K] float32: routing weight, also of the non-local ones.

    Source: DeepSeek-V3 technical report, section 2.1.2.
    """
    num_tokens = routing_logits.shape[0]
    device = routing_logits.device
    expert = torch.empty(num_tokens, TOP_K.value, dtype=torch.int32, device=device)
    weight = torch.empty(num_tokens, TOP_K.value, dtype=torch.float32, device=device)
    route_kernel[(num_tokens,)](
        routing_logits,
        routing_logits if problem.RENORM else routing_bias,
        expert,
        weight,
        local_expert_offset,
        float(routed_scaling_factor),  # an int would make another kernel
        E_LOCAL=num_local_experts,
        num_warps=1,
    )
    return expert, weight


def topk_of(args):
    """Return each token's experts and weights: the caller's, in a routed layer, else `route`'s.

    Args:
        args: the call's arguments, as `check_arguments` returns them.

    Returns:
        expert, weight [T, TOP_K]; first_expert: the number that the first local expert has in
            `expert`.
    """
    if args.topk_ids is not None:
        return args.topk_ids, args.topk_weights, args.local_expert_offset

    expert, weight = route(
        args.routing_logits,
        args.routing_bias,
        args.local_expert_offset,
        args.routed_scaling_factor,
        len(args.gemm1_weights),
    )
    return expert, weight, 0


def route_ref(
    routing_logits,
    routing_bias,
    local_expert_offset,
    routed_scaling_factor,
    num_local_experts,
):
    """Compute `route` in plain torch, for tests, on any device."""
    if problem.RENORM:
        chosen, expert = routing_logits.float().topk(problem.TOP_K, dim=-1)
        return expert.to(torch.int32), torch.softmax(chosen, dim=-1)

    s = torch.sigmoid(routing_logits.float())
    selectable = selectable_ref(s + routing_bias.float())
    expert = selectable.topk(problem.TOP_K, dim=-1).indices

    chosen = s.gather(1, expert)
    total = chosen.sum(-1, keepdim=True) + 1e-20
    weight = chosen / total * routed_scaling_factor

    local = expert - local_expert_offset
    num_routed = num_local_experts - problem.NUM_SHARED_EXPERTS
    is_local = (local >= 0) & (local < num_routed)
    local = torch.where(is_local, local, -1)
    local, weight = with_shared_ref(
        local, weight, local_expert_offset // num_routed, num_routed
    )
    return local.to(torch.int32), weight


def with_shared_ref(local, weight, rank, num_routed):
    """Return local experts and weights with the shared experts' columns behind them.

    local, weight: [T, TOP_K]. Shared experts have the local numbers from num_routed on; their
    weight is 1, their number -1 on other ranks than token % ranks.
    """
    ranks = problem.NUM_EXPERTS // num_routed
    here = torch.arange(len(local), device=local.device) % ranks == rank
    shared = num_routed + torch.arange(problem.NUM_SHARED_EXPERTS, device=local.device)
    shared = torch.where(here[:, None], shared, -1)
    return torch.cat([local, shared], 1), torch.cat(
        [weight, torch.ones_like(shared) * 1.0], 1
    )


def selectable_ref(biased):
    """Return scores [T, E] with -inf outside of the groups that are kept."""
    groups = biased.unflatten(1, (problem.NUM_GROUPS, -1))
    two_largest = groups.topk(2, dim=-1).values
    score = two_largest.sum(-1)
    best = score.topk(problem.KEPT_GROUPS, dim=-1).indices

    dropped = torch.ones_like(score, dtype=torch.bool)
    dropped.scatter_(1, best, False)
    return groups.masked_fill(dropped[:, :, None], float("-inf")).flatten(1)
