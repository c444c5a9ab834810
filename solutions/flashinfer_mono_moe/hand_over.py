"""hand_over: convert tokens and gemm1's weights to what FlashInfer's mono_moe takes, in one kernel.

mono_moe takes bf16 tokens, and gemm1's weights as eight rows of gate, eight rows of up, and so on.
A server would reorder its weights once. Here every call may bring other weights, so each call
reorders those of the experts that a token goes to. The kernel finds these experts by mono_moe's
rule: infinite and NaN logits are the lowest, and of two equal ones the lower expert comes first.

A program has ROWS rows of one expert, and reorders them if the expert is chosen. The first
T x H / 128 programs also convert a block of 128 columns of a token each.
"""

import torch
import triton
import triton.language as tl

BLOCK = 128
MOST_TOKENS = 8
ROWS = 64
WORDS = 128  # 4-byte words that a program copies at a time from each of its rows


def hand_over_ref(
    hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale
):
    """Compute `hand_over` in plain torch, for tests, for all experts, on any device."""
    scale = hidden_states_scale.t().repeat_interleave(BLOCK, dim=1)
    x = hidden_states.float() * scale

    up, gate = gemm1_weights.view(torch.uint8).chunk(2, dim=1)
    by_eight = [half.unflatten(1, (-1, 8)) for half in (gate, up)]
    weights = torch.stack(by_eight, dim=2).flatten(1, 3)

    up_scale, gate_scale = gemm1_weights_scale.chunk(2, dim=1)
    weights_scale = torch.cat([gate_scale, up_scale], dim=1)
    return x.bfloat16(), weights.view(gemm1_weights.dtype), weights_scale


@triton.jit(do_not_specialize=["num_tokens"])
def hand_over_kernel(
    logits_ptr,  # [T, E] bf16
    x_ptr,  # [T, H] fp8
    x_scale_ptr,  # [H / 128, T] fp32
    weights_ptr,  # [E, 2 I, H / 4] int32, up first
    scale_ptr,  # [E, 2 I / 128, H / 128] fp32, up first
    x_out_ptr,  # [T, H] bf16, written
    weights_out_ptr,  # [E, 2 I, H / 4] int32, written for chosen experts
    scale_out_ptr,  # [E, 2 I / 128, H / 128] fp32, written for chosen experts
    num_tokens,
    E: tl.constexpr,
    H: tl.constexpr,
    INNER: tl.constexpr,
    TOP_K: tl.constexpr,
    MOST_TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):
    BLOCK: tl.constexpr = 128
    BLOCKS: tl.constexpr = H // BLOCK
    SCALES: tl.constexpr = 2 * INNER // BLOCK * BLOCKS
    LOWEST: tl.constexpr = -3.4e38
    expert = tl.program_id(0)
    slab = tl.program_id(1)

    # tokens: of_x is the number of this program's block of 128 columns
    of_x = expert * tl.num_programs(1) + slab
    if of_x < num_tokens * BLOCKS:
        at = of_x * BLOCK + tl.arange(0, BLOCK)
        scale = tl.load(x_scale_ptr + of_x % BLOCKS * num_tokens + of_x // BLOCKS)
        tl.store(
            x_out_ptr + at, (tl.load(x_ptr + at).to(tl.float32) * scale).to(tl.bfloat16)
        )

    # whether any token chooses the expert: fewer than TOP_K others are ahead of it
    token = tl.arange(0, MOST_TOKENS)
    other = tl.arange(0, E)[None, :]
    there = token < num_tokens
    logit = tl.load(logits_ptr + token * E + expert, mask=there, other=0.0).to(
        tl.float32
    )
    logits = tl.load(
        logits_ptr + token[:, None] * E + other, mask=there[:, None], other=0.0
    ).to(tl.float32)
    logit = tl.where(tl.abs(logit) < float("inf"), logit, LOWEST)[:, None]
    logits = tl.where(tl.abs(logits) < float("inf"), logits, LOWEST)
    ahead = (logits > logit) | ((logits == logit) & (other < expert))
    chosen = there & (tl.sum(ahead.to(tl.int32), 1) < TOP_K)

    # weights and scales
    if tl.max(chosen.to(tl.int32), 0) > 0:
        if slab == 0:
            at = tl.arange(0, SCALES)
            scale = tl.load(scale_ptr + expert * SCALES + (at + SCALES // 2) % SCALES)
            tl.store(scale_out_ptr + expert * SCALES + at, scale)

        row = slab * ROWS + tl.arange(0, ROWS)
        source = row // 16 * 8 + row % 8 + tl.where(row % 16 < 8, INNER, 0)
        first = expert.to(tl.int64) * (2 * INNER * H // 4)
        for start in range(0, H // 4, WORDS):
            word = start + tl.arange(0, WORDS)[None, :]
            words = tl.load(weights_ptr + first + source[:, None] * (H // 4) + word)
            tl.store(weights_out_ptr + first + row[:, None] * (H // 4) + word, words)


def hand_over(
    routing_logits,
    hidden_states,
    hidden_states_scale,
    gemm1_weights,
    gemm1_weights_scale,
    top_k,
):
    """Return bf16 tokens, and gemm1's weights and scales in mono_moe's order.

    Args:
        routing_logits: [T, E] bfloat16; 1 <= T <= MOST_TOKENS, E a power of two.
        hidden_states: [T, H] float8_e4m3fn; H / 128 a power of two, from 4 on.
        hidden_states_scale: [H / 128, T] float32.
        gemm1_weights: [E, 2 I, H] float8_e4m3fn, up first; I / 128 a power of two.
        gemm1_weights_scale: [E, 2 I / 128, H / 128] float32.
        top_k: experts of a token.

    Returns:
        Tokens [T, H] bfloat16; weights and scales with shape and dtype of the arguments, undefined
            for experts that no token goes to.
    """
    num_tokens, hidden = hidden_states.shape
    experts, rows, _ = gemm1_weights.shape
    x = torch.empty(
        num_tokens, hidden, dtype=torch.bfloat16, device=hidden_states.device
    )
    weights = torch.empty_like(gemm1_weights)
    scale = torch.empty_like(gemm1_weights_scale)
    hand_over_kernel[experts, rows // ROWS](
        routing_logits,
        hidden_states,
        hidden_states_scale,
        gemm1_weights.view(torch.int32),
        gemm1_weights_scale,
        x,
        weights.view(torch.int32),
        scale,
        num_tokens,
        E=experts,
        H=hidden,
        INNER=rows // 2,
        TOP_K=top_k,
        MOST_TOKENS=MOST_TOKENS,
        ROWS=ROWS,
        WORDS=WORDS,
        num_warps=8,
    )
    return x, weights, scale
