"""The first stage of hopper_fused whose result is not what the results before it ask for."""

import torch
from hopper_read_out import few, few_route, many, many_route
from stage_inputs import BLOCK
from stage_references import combined, reference_choice, reference_h, reference_y

# Largest error of 128 columns of a row, relative to their norm: h in one or two FP8 parts, y and
# output as bf16. One wrong value among 128 of like size is an error of 0.09.
H_ERROR = {1: 0.05, 2: 0.01}
BF16_ERROR = 5e-3


def differing(got, want, limit, what):
    """Return what differs by more than `limit` of its norm, in blocks of 128 columns of [...,
    columns]; None if nothing does.
    """
    got = got.float().unflatten(-1, (-1, BLOCK))
    want = want.float().unflatten(-1, (-1, BLOCK))
    error = (got - want).norm(dim=-1) / want.norm(dim=-1).clamp(min=1e-30)
    wrong = ~(error <= limit)  # NaN is wrong
    if not wrong.any():
        return None
    places = wrong.nonzero()
    most = error.nan_to_num(torch.inf)[wrong].max().item()
    return (
        f"{len(places)} blocks of 128 columns off by up to {most:.3g}, want {limit}; "
        f"[{what}, block]: {places[:6].tolist()}"
    )


def wrong_route(layer, arguments, chosen, weight):
    want, want_weight = reference_choice(layer, arguments)
    other_experts = (chosen != want).any(1)
    if other_experts.any():
        return f"other experts of tokens {other_experts.nonzero().flatten()[:6].tolist()}"

    close = (weight - want_weight).abs() <= 1e-5 * want_weight.abs()
    other_weights = (want & ~close).any(1)
    if other_weights.any():
        return f"other weights of tokens {other_weights.nonzero().flatten()[:6].tolist()}"
    return None


def wrong_layout(layout):
    for name, (got, want) in layout.items():
        if got.shape != want.shape:
            return f"{name}: got {list(got.shape)} values, want {list(want.shape)}"
        if not torch.equal(got, want):
            places = (got != want).nonzero()
            return f"{name}: {len(places)} values differ, the first at {places[:6].tolist()}"
    return None


def wrong_h(layer, arguments, read_out):
    real = read_out.rows.real
    want = reference_h(layer, arguments, read_out.rows, read_out.weight)
    limit = H_ERROR[read_out.h_split]
    return differing(read_out.h[real], want[real], limit, "row that is no padding")


def wrong_y(y, read_out):
    """Return what differs of y, with many tokens."""
    if read_out.y is None:
        return None
    real = read_out.rows.real
    return differing(read_out.y[real], y[real], BF16_ERROR, "row that is no padding")


def wrong_partial(y, read_out):
    """Return what differs of each CTA's sums from those of its m_blocks, every `splits`-th."""
    if read_out.partial is None:
        return None
    rows = read_out.rows
    split = ((rows.first == rows.number).cumsum(0) - 1) % len(read_out.partial)
    want = torch.zeros_like(read_out.partial)
    places = (split[rows.real], rows.token[rows.real])
    want.index_put_(places, y[rows.real].float(), accumulate=True)
    return differing(read_out.partial, want, BF16_ERROR, "CTA, token")


def wrong_output(y, read_out, output):
    """Return the stage that writes the output, and what differs."""
    token_rows = read_out.rows.token_rows
    if read_out.partial is not None:
        return "combine", differing(output, read_out.partial.sum(0), BF16_ERROR, "token")
    if read_out.y is not None:
        return "combine", differing(output, combined(read_out.y, token_rows), BF16_ERROR, "token")
    return "gemm2 + combine", differing(output, combined(y, token_rows), BF16_ERROR, "token")


def first_fault(arrays, numbers, layer, arguments, output):
    """Return the first stage whose result is wrong, and where; None if all are right.

    output [T, H]: the layer's.
    """
    is_few = "mask" in arrays
    decode_route = few_route if is_few else many_route
    chosen, weight = decode_route(arrays, layer, len(output))
    fault = wrong_route(layer, arguments, chosen, weight)
    if fault:
        return f"route: {fault}"

    decode = few if is_few else many
    read_out = decode(arrays, numbers, layer, arguments, chosen, weight)
    fault = wrong_layout(read_out.layout)
    if fault:
        return f"permute: {fault}"
    fault = wrong_h(layer, arguments, read_out)
    if fault:
        return f"gemm1 + swiglu_quant: {fault}"

    y = reference_y(arguments, read_out)
    fault = wrong_y(y, read_out) or wrong_partial(y, read_out)
    if fault:
        return f"gemm2: {fault}"
    last_stage, fault = wrong_output(y, read_out, output)
    return f"{last_stage}: {fault}" if fault else None
