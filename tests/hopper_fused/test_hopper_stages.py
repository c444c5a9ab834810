"""hopper_fused stage by stage: a test build hands out route's, permute's, gemm1's and gemm2's
results.
"""

import hopper_stages as stages
import pytest
import torch

DEVICE = "cuda"
H_SPLIT = 1  # FP8 parts of h above 1024 tokens
# Definition -> token counts: every CTA routes all tokens; a grid barrier; four kernels with h in
# two parts; in one; two column passes.
COUNTS = {
    "full": (3, 80, 300, 1100, 8200),
    "qwen3-next": (3, 60, 200, 1100),
    "kimi-k2-ep8": (3, 80, 200, 1100),
    "minimax-m2": (3, 80, 200, 1100),
    "small-one-group": (3, 30, 200, 8200),  # widths that are no whole pairs of tiles
    "step-3.5-flash-ep8": (3, 80, 300, 2100),  # clamped
    "deepseek-v3-ep8-routed": (3, 80, 300, 1100),
    "qwen3-next-routed": (3, 60, 200, 1100),  # all experts are local
}


# ---- on the device ----


@pytest.fixture(scope="session")
def libraries():
    """Definition -> compiled test build."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs sm_90")
    return stages.build_all(lambda layer_key: stages.build(stages.sources(layer_key)), COUNTS)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("layer_key", "num_tokens"), [(name, count) for name in COUNTS for count in COUNTS[name]]
)
def test_every_stage_is_right(libraries, layer_key, num_tokens):
    """A user would miss: which stage of a wrong layer to look at, at the real widths of several
    models.
    """
    of = stages.sizes(layer_key)
    arguments = stages.tokens(of, num_tokens, DEVICE) | stages.weights_once(layer_key)
    output, arrays, numbers = stages.call(libraries[layer_key], of, arguments, H_SPLIT)
    assert ("mask" in arrays) == (num_tokens <= numbers["few_tokens"])
    assert (fault := stages.first_fault(arrays, numbers, of, arguments, output)) is None, fault


# ---- a broken stage is named ----

NUMBERS = {"few_tokens": 24, "bypass_tokens": 4, "ctas_per_column_tile": 1}
ALL = {"hidden_size": 1024, "intermediate_size": 256, "renorm": False, "routed": False}
SMALL = {
    # groups, some experts of other ranks; renorm with experts no multiple of 32
    "ds": ALL
    | {"num_experts": 64, "num_local_experts": 16, "top_k": 8, "num_groups": 8, "kept_groups": 4},
    "renorm": ALL
    | {
        "num_experts": 40,
        "num_local_experts": 40,
        "top_k": 10,
        "num_groups": 1,
        "kept_groups": 1,
        "renorm": True,
    },
}
SMALL["routed"] = SMALL["ds"] | {"routed": True}


def flat(values):
    return values.contiguous().view(-1).view(torch.uint8)


def scattered(count, index, values):
    """Bytes of `count` values of one type, NaN or -1 except at these places."""
    array = torch.full((count * values.element_size(),), 0xFF, dtype=torch.uint8).view(values.dtype)
    return array.index_put_((index.flatten(),), values.flatten()).view(torch.uint8)


def quantised(h, h_split, columns):
    """h [rows, I] -> parts [h_split, rows, I] as bytes of FP8 and scales [rows, I / columns]."""
    blocks = h.unflatten(-1, (-1, columns))
    scale = (blocks.abs().amax(-1) / 448).clamp(min=2.0**-100)
    left, found = blocks / scale[..., None], []
    for _ in range(h_split):
        found.append(left.to(torch.float8_e4m3fn))
        left = left - found[-1].float()
    return torch.stack(found).flatten(-2).view(torch.uint8), scale


def right_answer(of, num_tokens, few, numbers):
    """Arguments, and the arrays and the output of a layer without a fault, from the plain
    statements.
    """
    arguments = stages.tokens(of, num_tokens, "cpu") | stages.weights(of, "cpu")
    chosen, weight = stages.reference_choice(of, arguments)
    if few:
        rows = stages.expected_rows(chosen, stages.ATOM, of["top_k"], stages.M_BLOCK_ROWS)
    else:
        rows = stages.expected_rows(chosen, stages.ROW_ALIGN, of["top_k"])
    count, hidden, inter = len(rows.token), of["hidden_size"], of["intermediate_size"]
    x, x_scale = arguments["hidden_states"], stages.token_scales(of, arguments)
    up, gate = stages.reference_halves(of, arguments, rows)
    columns = stages.N_BLOCK_COLUMNS if few else 128  # of h with one scale
    h, h_scale = quantised(torch.nn.functional.silu(gate) * up, numbers["h_split"], columns)
    row_weight = torch.where(rows.real, weight[rows.token, rows.expert], 0)
    per_block = 128 // columns
    scale_index = stages.scale_index(rows, inter // 128, per_block)
    arrays = {
        "weight": flat(weight),
        "x_scale": scattered(
            count * hidden // 128,
            stages.scale_index(rows, hidden // 128),
            stages.of_tokens(x_scale, rows),
        ),
        "h": scattered(
            count * inter * numbers["h_split"],
            stages.h_index(rows, inter, numbers["h_split"], few),
            h,
        ),
        "h_scale": scattered(
            count * inter // 128 * per_block, scale_index, h_scale * row_weight[:, None]
        ),
    }
    found = stages.ReadOut(
        chosen,
        weight,
        rows,
        {},
        stages.h_of(arrays, rows, of, numbers["h_split"], few),
        numbers["h_split"],
    )
    y = stages.reference_y(arguments, found)
    if few:
        arrays |= few_arrays(of, chosen, rows, x, hidden)
        if numbers["ctas_per_column_tile"] > 1:
            arrays["partial"] = flat(partial_sums(y, rows, numbers, num_tokens))
    else:
        arrays |= many_arrays(of, chosen, rows, row_weight, y, numbers["h_split"])
    return arguments, arrays, stages.combined(y, rows.token_rows)


def few_arrays(of, chosen, rows, x, hidden):
    words = -(-of["num_local_experts"] // 32)
    bits = torch.zeros((-(-len(chosen) // 32) * 32, words * 32), dtype=torch.long)
    bits[: len(chosen), : chosen.shape[1]] = chosen.long()
    mask = (bits.unflatten(1, (words, 32)) << torch.arange(32)).sum(-1).to(torch.int32)
    starts = (rows.first == torch.arange(len(rows.token))).nonzero().flatten()
    in_m_block = torch.zeros_like(rows.first).index_add_(0, rows.first, rows.real.long())[starts]
    gathered = stages.of_tokens(x.view(torch.uint8), rows)
    return {
        "mask": flat(mask.unflatten(0, (-1, 32)).transpose(1, 2)),
        "token": flat(rows.token.to(torch.int16)),
        "m_blocks": flat(
            torch.stack([rows.expert[starts], in_m_block, starts, 0 * starts], 1).to(torch.int16)
        ),
        "list_sizes": flat(torch.tensor([len(starts), len(rows.token)], dtype=torch.int32)),
        "x": scattered(len(rows.token) * hidden, stages.x_index(rows, hidden), gathered),
    }


def partial_sums(y, rows, numbers, num_tokens):
    splits = numbers["ctas_per_column_tile"]
    sums = torch.full((splits, numbers["few_tokens"], y.shape[1]), torch.nan)
    sums[:, :num_tokens] = 0
    m_block = (rows.first == torch.arange(len(rows.token))).cumsum(0) - 1
    for row in rows.real.nonzero().flatten().tolist():
        sums[m_block[row] % splits, rows.token[row]] += y[row].float()
    return sums


def stored_y(y, h_split, first):
    """As gemm2 stores it: bf16, or with h in two parts fp16 and a power of two for each row and 128
    columns.
    """
    if h_split == 1:
        return {f"y{first}": flat(y.bfloat16())}
    _, exponent = torch.frexp(y.float().unflatten(1, (-1, 128)).abs().amax(-1))
    scale = torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), exponent)
    return {
        f"y{first}": flat((y / scale.repeat_interleave(128, 1)).half()),
        f"y_scale{first}": flat(scale),
    }


def many_arrays(of, chosen, rows, row_weight, y, h_split):
    def tiles(columns):
        found = []
        for first in rows.first.unique().tolist():
            count = int(rows.span[first])
            for start in range(0, count, 128):
                n = min(128, count - start)
                found += [
                    [int(rows.expert[first]), c, start, n, first, count, n > 64]
                    for c in range(columns)
                ]
        return torch.tensor([*found, [-1] * 7, [-1] * 7], dtype=torch.int32)

    slots = -(-of["top_k"] // 4) * 4
    token_rows = torch.nn.functional.pad(rows.token_rows, (0, slots - of["top_k"]), value=-1)
    experts = int(chosen.any(0).sum())
    half = y.shape[1] // 2
    return {
        "row_token": flat(rows.token.clamp(min=0).to(torch.int32)),
        "row_weight": flat(row_weight),
        "token_rows": flat(token_rows.to(torch.int32)),
        "queues": flat(torch.tensor([0, 0, experts, len(rows.token)], dtype=torch.int32)),
        "tiles1": flat(tiles(2 * of["intermediate_size"] // 256)),
        "tiles2": flat(tiles(half // 256)),
        **stored_y(y[:, :half], h_split, 0),
        **stored_y(y[:, half:], h_split, half),
    }


# array -> the stage that writes it
FEW_STAGES = {
    **dict.fromkeys(("mask", "weight"), "route"),
    **dict.fromkeys(("list_sizes", "token", "m_blocks", "x", "x_scale"), "permute"),
    **dict.fromkeys(("h", "h_scale"), "gemm1 + swiglu_quant"),
}
MANY_STAGES = {
    "weight": "route",
    **dict.fromkeys(
        ("row_token", "row_weight", "token_rows", "queues", "x_scale", "tiles1", "tiles2"),
        "permute",
    ),
    **dict.fromkeys(("h", "h_scale"), "gemm1 + swiglu_quant"),
    **dict.fromkeys(("y0", "y512"), "gemm2"),
}
HI_LO_STAGES = MANY_STAGES | dict.fromkeys(("y_scale0", "y_scale512"), "gemm2")
CASES = [
    # routing, few tokens, tokens, h_split, CTAs that share output columns, array -> stage, the last
    # stage
    pytest.param("ds", True, 4, 2, 1, FEW_STAGES, "gemm2 + combine", id="few"),
    pytest.param(
        "renorm",
        True,
        12,
        2,
        2,
        FEW_STAGES | {"partial": "gemm2"},
        "combine",
        id="few, shared columns",
    ),
    pytest.param("ds", False, 24, 2, 1, HI_LO_STAGES, "combine", id="many, hi and lo"),
    pytest.param("renorm", False, 20, 1, 1, MANY_STAGES, "combine", id="many"),
    pytest.param("routed", True, 4, 2, 1, FEW_STAGES, "gemm2 + combine", id="few, routed"),
    pytest.param("routed", False, 20, 1, 1, MANY_STAGES, "combine", id="many, routed"),
]


@pytest.mark.parametrize(
    ("routing", "few", "num_tokens", "h_split", "splits", "stage_of", "last"), CASES
)
def test_a_broken_stage_is_named(routing, few, num_tokens, h_split, splits, stage_of, last):
    """A user would miss: a check that passes whatever a stage writes, or blames another stage."""
    of, numbers = SMALL[routing], NUMBERS | {"h_split": h_split, "ctas_per_column_tile": splits}
    arguments, arrays, output = right_answer(of, num_tokens, few, numbers)
    assert stages.first_fault(arrays, numbers, of, arguments, output) is None
    for name, stage in stage_of.items():
        for spoilt in spoil(arrays[name]):
            fault = stages.first_fault(arrays | {name: spoilt}, numbers, of, arguments, output)
            assert fault is not None and fault.startswith(f"{stage}: "), (name, fault)
    wrong = output.clone()
    wrong[1, 200:300] *= 1.5
    assert stages.first_fault(arrays, numbers, of, arguments, wrong).startswith(f"{last}: ")


def spoil(array):
    """The array with its bytes moved by 4, and with some of them of another value."""
    moved, other = array.roll(4), array.clone()
    written = (array != 0xFF).nonzero().flatten()
    other[written[: max(64, len(written) // 8)]] ^= 0x41
    return moved, other
