"""The first stage of hopper_fused whose result is not what the results before it ask for."""

import torch
from hopper_read_out import Scratch, few, few_choice, many, many_choice
from stage_inputs import BLOCK
from stage_references import combined, reference_choice, reference_h, reference_y

# Largest error of 128 columns of a row, relative to their norm: h in one or two FP8 parts, y and
# output as bf16. One wrong value among 128 of like size is an error of 0.09.
H_ERROR = {1: 0.05, 2: 0.01}
BF16_ERROR = 5e-3


def differing(output, expected, limit, what):
    """Return what differs by more than `limit` of its norm, in blocks of 128 columns of [...,
    columns]; None if nothing does.
    """
    output = output.float().unflatten(-1, (-1, BLOCK))
    expected = expected.float().unflatten(-1, (-1, BLOCK))
    norm = expected.norm(dim=-1).clamp(min=1e-30)
    error = (output - expected).norm(dim=-1) / norm
    wrong = ~(error <= limit)  # NaN is wrong
    if not wrong.any():
        return None

    places = wrong.nonzero()
    largest = error[wrong].nan_to_num(torch.inf).max().item()
    return (
        f"{len(places)} blocks of 128 columns off by up to {largest:.3g}, want {limit}; "
        f"[{what}, block]: {places[:6].tolist()}"
    )


def wrong_route(layer, arguments, choice):
    expected, expected_weight = reference_choice(layer, arguments)
    other_experts = (choice.chosen != expected).any(1)
    if other_experts.any():
        return f"other experts of tokens {other_experts.nonzero().flatten()[:6].tolist()}"

    error = (choice.weight - expected_weight).abs()
    is_close = error <= 1e-5 * expected_weight.abs()
    other_weights = (expected & ~is_close).any(1)
    if other_weights.any():
        return f"other weights of tokens {other_weights.nonzero().flatten()[:6].tolist()}"
    return None


def wrong_layout(layout):
    for compared in layout:
        output = compared.output
        expected = compared.expected
        if output.shape != expected.shape:
            shapes = f"got {list(output.shape)} values, want {list(expected.shape)}"
            return f"{compared.name}: {shapes}"
        if not torch.equal(output, expected):
            places = (output != expected).nonzero()
            first = places[:6].tolist()
            return f"{compared.name}: {len(places)} values differ, the first at {first}"
    return None


def wrong_h(layer, arguments, read_out):
    real = read_out.rows.real
    expected = reference_h(layer, arguments, read_out.rows, read_out.choice.weight)
    limit = H_ERROR[read_out.h_split]
    return differing(read_out.h[real], expected[real], limit, "row that is no padding")


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
    m_block = (rows.first == rows.number).cumsum(0) - 1
    split = m_block % len(read_out.partial)
    places = (split[rows.real], rows.token[rows.real])
    expected = torch.zeros_like(read_out.partial)
    expected.index_put_(places, y[rows.real].float(), accumulate=True)
    return differing(read_out.partial, expected, BF16_ERROR, "CTA, token")


def wrong_output(y, read_out, output):
    """Return the stage that writes the output, and what differs."""
    token_rows = read_out.rows.token_rows
    if read_out.partial is not None:
        stage = "combine"
        expected = read_out.partial.sum(0)
    elif read_out.y is not None:
        stage = "combine"
        expected = combined(read_out.y, token_rows)
    else:
        stage = "gemm2 + combine"
        expected = combined(y, token_rows)
    return stage, differing(output, expected, BF16_ERROR, "token")


def first_fault(arrays, numbers, layer, arguments, output):
    """Return the first stage whose result is wrong, and where; None if all are right.

    arrays: name -> bytes that a test build hands out, as numbers. output [T, H]: the layer's.
    """
    scratch = Scratch(arrays, numbers, layer, arguments)
    is_few = "mask" in arrays
    choice = few_choice(scratch, len(output)) if is_few else many_choice(scratch, len(output))
    fault = wrong_route(layer, arguments, choice)
    if fault:
        return f"route: {fault}"

    read_out = few(scratch, choice) if is_few else many(scratch, choice)
    fault = wrong_layout(read_out.layout)
    if fault:
        return f"permute: {fault}"
    fault = wrong_h(layer, arguments, read_out)
    if fault:
        return f"gemm1 + swiglu_quant: {fault}"

    y = reference_y(arguments, read_out.rows, read_out.h)
    fault = wrong_y(y, read_out) or wrong_partial(y, read_out)
    if fault:
        return f"gemm2: {fault}"
    last_stage, fault = wrong_output(y, read_out, output)
    return f"{last_stage}: {fault}" if fault else None
