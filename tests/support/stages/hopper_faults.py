"""Find the first stage of hopper_fused that goes wrong.

Each stage is held against its reference on what the kernels' stages before it have really written,
so that an error counts where it arises. A `wrong_*` returns a sentence on what is wrong, or None.
"""

import torch
from hopper_read_out import Scratch, few_choice, many_choice, read_few, read_many
from stage_inputs import BLOCK
from stage_references import combined, reference_choice, reference_h, reference_y

# Largest error of 128 columns of a row, relative to their norm: h in one or two FP8 parts, y and
# output as bf16. One wrong value among 128 of like size is an error of 0.09.
H_ERROR = {1: 0.05, 2: 0.01}
BF16_ERROR = 5e-3


def wrong_blocks(output, expected, limit, index_name):
    """Compare [..., columns] in blocks of 128 columns; a block is wrong if it differs by more than
    `limit` times its norm.

    index_name: what the dimensions before the columns are, for the sentence.
    """
    output = output.float().unflatten(-1, (-1, BLOCK))
    expected = expected.float().unflatten(-1, (-1, BLOCK))
    norm = expected.norm(dim=-1)
    difference = (output - expected).norm(dim=-1)
    error = difference / norm.clamp(min=1e-30)
    wrong = ~(error <= limit)  # NaN is wrong
    if not wrong.any():
        return None

    places = wrong.nonzero()
    largest = error[wrong].nan_to_num(torch.inf).max().item()
    return (
        f"{len(places)} blocks of 128 columns off by up to {largest:.3g}, want {limit}; "
        f"[{index_name}, block]: {places[:6].tolist()}"
    )


def wrong_route(layer, arguments, choice):
    """Compare chosen experts and their weights with the reference's."""
    expected, expected_weight = reference_choice(layer, arguments)
    other_experts = (choice.chosen != expected).any(1)
    if other_experts.any():
        return f"other experts of tokens {first_tokens(other_experts)}"

    error = (choice.weight - expected_weight).abs()
    is_close = error <= 1e-5 * expected_weight.abs()
    other_weights = (expected & ~is_close).any(1)
    if other_weights.any():
        return f"other weights of tokens {first_tokens(other_weights)}"
    return None


def first_tokens(is_wrong):
    """Return the first tokens of which something is wrong, for a sentence."""
    tokens = is_wrong.nonzero().flatten()
    return tokens[:6].tolist()


def wrong_layout(layout):
    """Compare arrays of `permute`, a list of Compared, with what the chosen experts ask for."""
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
    """Compare h with the reference's, in rows that are no padding."""
    real = read_out.rows.real
    expected = reference_h(layer, arguments, read_out.rows, read_out.choice.weight)
    limit = H_ERROR[read_out.h_split]
    return wrong_blocks(
        read_out.h[real], expected[real], limit, "row that is no padding"
    )


def wrong_y(y, read_out):
    """Compare y with the expected one; few tokens leave none in the scratch."""
    if read_out.y is None:
        return None
    real = read_out.rows.real
    return wrong_blocks(read_out.y[real], y[real], BF16_ERROR, "row that is no padding")


def wrong_partial(y, read_out):
    """Compare each CTA's partial sums with the sums over the rows of its m_blocks.

    Of n CTAs that share output columns each has every n-th m_block.
    """
    if read_out.partial is None:
        return None
    rows = read_out.rows
    m_block = (rows.first == rows.number).cumsum(0) - 1
    cta = m_block % len(read_out.partial)
    places = (cta[rows.real], rows.token[rows.real])
    expected = torch.zeros_like(read_out.partial)
    expected.index_put_(places, y[rows.real].float(), accumulate=True)
    return wrong_blocks(read_out.partial, expected, BF16_ERROR, "CTA, token")


def wrong_output(y, read_out, output):
    """Return the name of the stage that writes the output, and what is wrong with it or None."""
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
    return stage, wrong_blocks(output, expected, BF16_ERROR, "token")


def first_fault(arrays, numbers, layer, arguments, output):
    """Return the first stage whose result is wrong, and where; None if all are right.

    arrays, numbers: what a test build hands out, by name: bytes of its scratch, and integers.
    layer: its sizes and forms. output [T, H]: what the layer returned.
    """
    scratch = Scratch(arrays, numbers, layer, arguments)
    # the one launch for few tokens, not the four kernels for many
    is_few = "mask" in arrays
    choice_of = few_choice if is_few else many_choice
    choice = choice_of(scratch, len(output))
    fault = wrong_route(layer, arguments, choice)
    if fault:
        return f"route: {fault}"

    read_out = read_few(scratch, choice) if is_few else read_many(scratch, choice)
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
