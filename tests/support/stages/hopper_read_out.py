"""What a test build of hopper_fused hands out, as tensors in order of rows.

`few` and `many` decode the bytes of the one launch and of the four kernels.
"""

from dataclasses import dataclass

import torch
from hopper_layouts import (
    N_BLOCK_COLUMNS,
    ROW_ALIGN,
    Rows,
    as_type,
    few_rows,
    h_index,
    many_rows,
    of_tokens,
    round_up,
    scale_index,
    x_index,
)
from stage_inputs import BLOCK, token_scales
from torch.nn.functional import pad

BLOCK_N = 256  # many tokens: weight rows of a tile


@dataclass
class ReadOut:
    """Results of the stages, decoded.

    layout: name -> (what was read out, what `rows` asks for). rows follow from `chosen`, not from
    what was read out.
    """

    chosen: torch.Tensor  # [T, E_local] bool
    weight: torch.Tensor  # [T, E_local]
    rows: Rows
    layout: dict
    h: torch.Tensor  # [rows, I] fp32, times its scale, which includes the routing weight
    h_split: int
    y: torch.Tensor | None = None  # [rows, H]: many tokens
    # [splits, T, H] fp32: few tokens, where several CTAs share output columns
    partial: torch.Tensor | None = None


def h_of(arrays, rows, layer, h_split, few):
    """Return h [rows, I] fp32 of its bytes and scales."""
    inter = layer["intermediate_size"]
    columns = N_BLOCK_COLUMNS if few else BLOCK
    parts = arrays["h"][h_index(rows, inter, h_split, few)].view(torch.float8_e4m3fn)
    scale_places = scale_index(rows, inter // BLOCK, BLOCK // columns, 2)
    scale = as_type(arrays["h_scale"], torch.float32)[scale_places]
    return parts.float().sum(0) * scale.repeat_interleave(columns, 1)


def few_route(arrays, layer, num_tokens):
    """Return chosen [T, E_local] bool and weight [T, E_local] of the one launch."""
    local = layer["num_local_experts"]
    words = round_up(local, 32) // 32
    batches = round_up(num_tokens, 32) // 32
    mask = as_type(arrays["mask"], torch.int32, batches, words, 32).transpose(1, 2)
    bits = mask.reshape(batches * 32, words, 1) >> torch.arange(
        32, device=mask.device, dtype=torch.int32
    )
    chosen = (bits & 1).flatten(1)[:num_tokens, :local].bool()
    return chosen, as_type(arrays["weight"], torch.float32, num_tokens, local)


def many_route(arrays, layer, num_tokens):
    """Return chosen [T, E_local] bool and weight [T, E_local] of the four kernels, which write it
    where a token is chosen.
    """
    shape = (num_tokens, layer["num_local_experts"])
    weight = as_type(arrays["weight"], torch.float32, *shape)
    return ~weight.isnan(), weight


def few(arrays, numbers, layer, arguments, chosen, weight):
    """Return the ReadOut of the one launch. arrays: name -> bytes, which the test build hands out,
    as numbers.
    """
    x = arguments["hidden_states"].view(torch.uint8)
    num_tokens, hidden = x.shape
    rows = few_rows(layer, chosen)
    count = len(rows.token)

    # of the m_block that begins there
    rows_from = torch.zeros_like(rows.first).index_add_(0, rows.first, rows.real.long())
    starts = (rows.first == rows.number).nonzero().flatten()
    first_row = [starts & 0xFFFF, starts >> 16]  # two words
    m_blocks = torch.stack([rows.expert[starts], rows_from[starts], *first_row], 1)
    got_m_blocks = as_type(arrays["m_blocks"], torch.int16, len(starts), 4).long() & 0xFFFF
    got_sizes = as_type(arrays["list_sizes"], torch.int32, 2).long()
    got_token = as_type(arrays["token"], torch.int16, count).long()

    # an m_block of one row may bypass the gather, and is not in the scratch then
    gathered = (rows_from[rows.first] > 1) | (num_tokens > numbers["bypass_tokens"])
    got_x = arrays["x"][x_index(rows, hidden)]
    scale_places = scale_index(rows, hidden // BLOCK, multiple=4)
    got_scale = as_type(arrays["x_scale"], torch.float32)[scale_places]
    x_scale = of_tokens(token_scales(layer, arguments), rows)
    layout = {
        "numbers of m_blocks and rows": (got_sizes, got_sizes.new_tensor([len(starts), count])),
        "tokens of the rows": (got_token, rows.token),
        "m_blocks": (got_m_blocks, m_blocks),
        "gathered x": (got_x[gathered], of_tokens(x, rows)[gathered]),
        "gathered scales of x": (got_scale[gathered], x_scale[gathered]),
    }

    partial = None
    if numbers["ctas_per_column_tile"] > 1:
        shape = (numbers["ctas_per_column_tile"], numbers["few_tokens"], hidden)
        partial = as_type(arrays["partial"], torch.float32, *shape)[:, :num_tokens]
    h = h_of(arrays, rows, layer, numbers["h_split"], True)
    return ReadOut(chosen, weight, rows, layout, h, numbers["h_split"], partial=partial)


def coverage(tiles, rows, n_blocks):
    """Return [rows / 16, n_blocks]: how often 16 rows meet an n_block.

    Negative where a tile names another expert, and everywhere if a tile lies beyond the rows or the
    n_blocks.

    tiles [entries, 2, 7] int32: expert, n_block, m_first, m_rows, expert_first, expert_rows,
    normal; -1: none.
    """
    tiles = tiles[tiles[..., 0] >= 0].long()
    expert, n_block, m_first, m_rows, expert_first, _, _ = tiles.unbind(-1)
    tile_expert = rows.expert[:: rows.align]

    within = torch.arange(BLOCK // ROW_ALIGN, device=tiles.device)
    exists = within < m_rows[:, None] // ROW_ALIGN
    sixteen = (((expert_first + m_first) // ROW_ALIGN)[:, None] + within)[exists]
    expert = expert[:, None].expand_as(exists)[exists]
    n_block = n_block[:, None].expand_as(exists)[exists]

    inside = (sixteen < len(tile_expert)) & (n_block < n_blocks)
    sixteen = sixteen[inside]
    times = torch.where(tile_expert[sixteen] == expert[inside], 1, -1000)
    met = torch.zeros((len(tile_expert), n_blocks), dtype=torch.long, device=tiles.device)
    met.index_put_((sixteen, n_block[inside]), times, accumulate=True)
    return met - 1000 * (~inside).sum()


def many(arrays, numbers, layer, arguments, chosen, weight):
    """Return the ReadOut of the four kernels. arrays: name -> bytes, which the test build hands
    out, as numbers.
    """
    hidden = layer["hidden_size"]
    x_scale = token_scales(layer, arguments)
    rows = many_rows(layer, chosen)
    count = len(rows.token)
    slots = round_up(layer["top_k"], 4)
    passes = sorted(int(name[1:]) for name in arrays if name[0] == "y" and name[1:].isdigit())
    y_columns = round_up(hidden, len(passes) * 2 * BLOCK_N) // len(passes)  # whole pairs of tiles
    n_blocks = {
        "1": 2 * round_up(layer["intermediate_size"], BLOCK_N) // BLOCK_N,
        "2": y_columns // BLOCK_N,
    }

    queues = as_type(arrays["queues"], torch.int32, 4)
    totals = queues.new_tensor([int(chosen.any(0).sum()), count])
    row_token = as_type(arrays["row_token"], torch.int32, count).long()
    row_weight = as_type(arrays["row_weight"], torch.float32, count)
    weight_of_row = torch.where(rows.real, weight[rows.token.clamp(min=0), rows.expert], 0)
    token_rows = as_type(arrays["token_rows"], torch.int32, len(x_scale), slots).long()
    gathered_scale = as_type(arrays["x_scale"], torch.float32)[scale_index(rows, hidden // BLOCK)]
    layout = {
        "active experts and rows": (queues[2:], totals),
        "tokens of the rows": (torch.where(rows.real, row_token, -1), rows.token),
        "weights of the rows": (row_weight, weight_of_row),
        "rows of the tokens": (
            token_rows,
            pad(rows.token_rows, (0, slots - layer["top_k"]), value=-1),
        ),
        "gathered scales of x": (gathered_scale, of_tokens(x_scale, rows)),
    }
    for gemm, width in n_blocks.items():
        tiles = as_type(arrays[f"tiles{gemm}"], torch.int32).view(-1, 2, 7)
        met = coverage(tiles, rows, width)
        layout[f"tiles of gemm{gemm}"] = (met, torch.ones_like(met))

    h_split = numbers["h_split"]
    h = h_of(arrays, rows, layer, h_split, False)
    y = torch.cat([y_of(arrays, h_split, first, count, y_columns) for first in passes], 1)
    return ReadOut(chosen, weight, rows, layout, h, h_split, y=y[:, :hidden])


def y_of(arrays, h_split, first, rows, columns):
    """Return y [rows, columns] of the column pass that begins at `first`: bf16, or with h in two
    parts scaled fp16 as fp32.
    """
    if h_split == 1:
        return as_type(arrays[f"y{first}"], torch.bfloat16, rows, columns)
    y = as_type(arrays[f"y{first}"], torch.float16, rows, columns)
    scale = as_type(arrays[f"y_scale{first}"], torch.float32, rows, columns // BLOCK)
    return y.float() * scale.repeat_interleave(BLOCK, 1)
