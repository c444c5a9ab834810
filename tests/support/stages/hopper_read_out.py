"""What a test build of hopper_fused hands out, as tensors in order of rows.

`read_few` and `read_many` decode the bytes of the one launch and of the four kernels.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

import torch
from hopper_layouts import (
    N_BLOCK_COLUMNS,
    ROW_ALIGN,
    Rows,
    as_type,
    few_rows,
    h_index,
    many_rows,
    round_up,
    scale_index,
    values_by_row,
    x_index,
)
from stage_inputs import BLOCK, token_scales
from torch.nn.functional import pad

BLOCK_N = 256  # many tokens: weight rows of a tile
WRONG_TILE = -1000
Y_ARRAY = re.compile(r"y\d+")  # of the column pass that begins there


@dataclass
class Scratch:
    """What a test build hands out, arrays as bytes, and the call that filled it."""

    arrays: dict[str, torch.Tensor]
    numbers: dict[str, int]
    layer: dict
    arguments: dict

    def int16(self, name, *shape):
        return as_type(self.arrays[name], torch.int16, *shape).long()

    def int32(self, name, *shape):
        return as_type(self.arrays[name], torch.int32, *shape)

    def fp32(self, name, *shape):
        return as_type(self.arrays[name], torch.float32, *shape)

    @property
    def x_scale(self):
        """[T, H / 128], as the caller has them."""
        return token_scales(self.layer, self.arguments)


@dataclass
class Choice:
    """Experts of tokens, as the kernels have chosen them."""

    chosen: torch.Tensor  # [T, E_local] bool
    weight: torch.Tensor  # [T, E_local]

    def row_weights(self, rows):
        """Return the routing weight [rows] of each row, zero in rows of padding."""
        token = rows.token.clamp(min=0)
        weight = self.weight[token, rows.expert]
        return torch.where(rows.real, weight, 0)


@dataclass
class Compared:
    """An array that was read out, and what the rows ask for."""

    name: str
    output: torch.Tensor
    expected: torch.Tensor


class Tile(NamedTuple):
    """A tile of a grouped GEMM, as the tile scheduler gives it out."""

    expert: int
    n_block: int
    m_first: int  # row of the expert
    m_rows: int
    expert_first: int  # row
    expert_rows: int
    normal: int


@dataclass
class ReadOut:
    """Results of the stages, decoded. rows follow from `choice`, not from what was read out."""

    choice: Choice
    rows: Rows
    layout: list[Compared]
    # [rows, I] fp32, times its scale, which includes the routing weight
    h: torch.Tensor
    h_split: int
    y: torch.Tensor | None = None  # [rows, H]: many tokens
    # [splits, T, H] fp32: few tokens, where several CTAs share output columns
    partial: torch.Tensor | None = None


def h_of(arrays, rows, layer, h_split, is_few):
    """Return h [rows, I] fp32 of its bytes and scales."""
    inter = layer["intermediate_size"]
    columns = N_BLOCK_COLUMNS if is_few else BLOCK  # with one scale
    h_places = h_index(rows, inter, h_split, is_few)
    h_bytes = arrays["h"][h_places]
    parts = h_bytes.view(torch.float8_e4m3fn).float()

    blocks = inter // BLOCK
    scales_of_block = BLOCK // columns
    multiple = 1 if is_few else 2  # many tokens: K blocks in pairs
    scale_places = scale_index(rows, blocks, scales_of_block, multiple)
    scale = as_type(arrays["h_scale"], torch.float32)[scale_places]
    return parts.sum(0) * scale.repeat_interleave(columns, 1)


# ---- the one launch ----


def few_choice(scratch, num_tokens):
    """Return the Choice of the one launch, which keeps a bit for each token and expert."""
    local = scratch.layer["num_local_experts"]
    words = round_up(local, 32) // 32
    batches = round_up(num_tokens, 32) // 32
    mask = scratch.int32("mask", batches, words, 32)
    word = mask.transpose(1, 2).reshape(batches * 32, words, 1)

    bit = torch.arange(32, device=word.device, dtype=torch.int32)
    bits = (word >> bit & 1).flatten(1)
    chosen = bits[:num_tokens, :local].bool()
    weight = scratch.fp32("weight", num_tokens, local)
    return Choice(chosen, weight)


def read_few(scratch, choice):
    """Return the ReadOut of the one launch."""
    layer = scratch.layer
    h_split = scratch.numbers["h_split"]
    splits = scratch.numbers["ctas_per_column_tile"]
    rows = few_rows(layer, choice.chosen)

    partial = None
    if splits > 1:
        shape = (splits, scratch.numbers["few_tokens"], layer["hidden_size"])
        partial = scratch.fp32("partial", *shape)
        partial = partial[:, : len(choice.chosen)]
    h = h_of(scratch.arrays, rows, layer, h_split, True)
    layout = few_lists(scratch, rows) + gathered(scratch, rows)
    return ReadOut(choice, rows, layout, h, h_split, partial=partial)


def rows_from(rows):
    """Return [rows]: how many rows with a token are in the m_block that begins there."""
    count = torch.zeros_like(rows.first)
    return count.index_add_(0, rows.first, rows.real.long())


def few_lists(scratch, rows):
    """Compare the lists of rows and of m_blocks."""
    num_rows = len(rows.token)
    starts = rows.starts
    num_m_blocks = len(starts)

    sizes = scratch.int32("list_sizes", 2)
    expected_sizes = sizes.new_tensor([num_m_blocks, num_rows])
    row_token = scratch.int16("token", num_rows)
    m_blocks = scratch.int16("m_blocks", num_m_blocks, 4) & 0xFFFF
    expected_m_blocks = [
        rows.expert[starts],
        rows_from(rows)[starts],
        starts & 0xFFFF,  # the first row in two words
        starts >> 16,
    ]
    return [
        Compared("numbers of m_blocks and rows", sizes, expected_sizes),
        Compared("tokens of the rows", row_token, rows.token),
        Compared("m_blocks", m_blocks, torch.stack(expected_m_blocks, 1)),
    ]


def gathered(scratch, rows):
    """Compare the gathered tokens and their scales."""
    x_bytes = scratch.arguments["hidden_states"].view(torch.uint8)
    x = values_by_row(x_bytes, rows)
    x_places = x_index(rows, x.shape[1])
    stored_x = scratch.arrays["x"][x_places]

    x_scale = values_by_row(scratch.x_scale, rows)
    scale_places = scale_index(rows, x_scale.shape[1], multiple=4)
    stored_scale = scratch.fp32("x_scale")[scale_places]

    # an m_block of one row may bypass the gather, and is not in the scratch then
    kept = rows_from(rows)[rows.first] > 1
    if len(scratch.x_scale) > scratch.numbers["bypass_tokens"]:
        kept[:] = True
    return [
        Compared("gathered x", stored_x[kept], x[kept]),
        Compared("gathered scales of x", stored_scale[kept], x_scale[kept]),
    ]


# ---- the four kernels ----


def many_choice(scratch, num_tokens):
    """Return the Choice of the four kernels, which write a weight where a token is chosen."""
    local = scratch.layer["num_local_experts"]
    weight = scratch.fp32("weight", num_tokens, local)
    return Choice(~weight.isnan(), weight)


@dataclass
class ColumnPasses:
    """Passes over the columns of y."""

    firsts: list[int]  # columns
    width: int  # of each, in whole pairs of tiles


def column_passes(scratch):
    firsts = []
    for name in scratch.arrays:
        if Y_ARRAY.fullmatch(name):
            firsts.append(int(name.removeprefix("y")))
    count = len(firsts)
    columns = round_up(scratch.layer["hidden_size"], count * 2 * BLOCK_N)
    return ColumnPasses(sorted(firsts), columns // count)


def read_many(scratch, choice):
    """Return the ReadOut of the four kernels."""
    hidden = scratch.layer["hidden_size"]
    inter = scratch.layer["intermediate_size"]
    h_split = scratch.numbers["h_split"]
    rows = many_rows(scratch.layer, choice.chosen)
    passes = column_passes(scratch)

    tiles1 = tiles_of(scratch.int32("tiles1"))
    tiles2 = tiles_of(scratch.int32("tiles2"))
    columns = 2 * round_up(inter, BLOCK_N)
    if leaves_out_padding(scratch.layer):
        columns = 2 * inter
        drop_one_tile(tiles1, columns // BLOCK_N)

    layout = many_lists(scratch, rows, choice)
    layout.append(compared_tiles("tiles1", tiles1, rows, columns))
    layout.append(compared_tiles("tiles2", tiles2, rows, passes.width))
    h = h_of(scratch.arrays, rows, scratch.layer, h_split, False)
    y = [y_of(scratch, first, len(rows.token), passes.width) for first in passes.firsts]
    y = torch.cat(y, 1)[:, :hidden]
    return ReadOut(choice, rows, layout, h, h_split, y=y)


def many_lists(scratch, rows, choice):
    """Compare the lists of rows, and the gathered scales."""
    num_rows = len(rows.token)
    num_active = int(choice.chosen.any(0).sum())
    sizes = scratch.int32("queues", 4)[2:]
    expected_sizes = sizes.new_tensor([num_active, num_rows])

    row_token = scratch.int32("row_token", num_rows).long()
    row_token = torch.where(rows.real, row_token, -1)
    row_weight = scratch.fp32("row_weight", num_rows)
    expected_weight = choice.row_weights(rows)
    top_k = scratch.layer["top_k"]
    padding = round_up(top_k, 4) - top_k  # to a multiple of four slots
    token_rows = pad(rows.token_rows, (0, padding), value=-1)
    stored_rows = scratch.int32("token_rows", *token_rows.shape).long()

    x_scale = values_by_row(scratch.x_scale, rows)
    scale_places = scale_index(rows, x_scale.shape[1])
    stored_scale = scratch.fp32("x_scale")[scale_places]
    return [
        Compared("active experts and rows", sizes, expected_sizes),
        Compared("tokens of the rows", row_token, rows.token),
        Compared("weights of the rows", row_weight, expected_weight),
        Compared("rows of the tokens", stored_rows, token_rows),
        Compared("gathered scales of x", stored_scale, x_scale),
    ]


def leaves_out_padding(layer):
    """Whether gemm1 computes no n_block that only pads I, as `kOddNBlocks` says."""
    if layer.get("mxfp4"):
        return False
    inter = layer["intermediate_size"]
    is_narrow = layer["hidden_size"] >= 8 * inter
    return is_narrow and inter % BLOCK_N != 0


def tiles_of(array):
    """Return the tiles of an array of int32, in which an entry of none is -1."""
    entries = array.view(-1, len(Tile._fields)).tolist()
    tiles = [Tile(*fields) for fields in entries]
    return [tile for tile in tiles if tile.expert >= 0]


def drop_one_tile(tiles, n_block):
    """Remove the first tile of an n_block, if there is one: an odd number of tiles needs it to go
    with the last.
    """
    for tile in tiles:
        if tile.n_block == n_block:
            tiles.remove(tile)
            return


def compared_tiles(name, tiles, rows, columns):
    """Compare the tiles of a GEMM: each 16 rows meet each n_block of the columns once."""
    met = coverage(tiles, rows, columns // BLOCK_N)
    return Compared(name, met, torch.ones_like(met))


def coverage(tiles, rows, n_blocks):
    """Return [rows / 16, n_blocks]: how often 16 rows meet an n_block.

    Negative where a tile names another expert, and everywhere if a tile lies beyond the rows or the
    n_blocks.
    """
    tile_expert = rows.expert[:: rows.align].tolist()
    met = torch.zeros((len(tile_expert), n_blocks), dtype=torch.long)
    for tile in tiles:
        first = (tile.expert_first + tile.m_first) // ROW_ALIGN
        end = first + tile.m_rows // ROW_ALIGN
        if end > len(tile_expert) or tile.n_block >= n_blocks:
            met += WRONG_TILE
        elif set(tile_expert[first:end]) <= {tile.expert}:
            met[first:end, tile.n_block] += 1
        else:
            met[first:end, tile.n_block] += WRONG_TILE
    return met


def y_of(scratch, first, count, columns):
    """Return y [count, columns] of the column pass that begins at `first`: bf16, or with h in two
    parts scaled fp16 as fp32.
    """
    y_bytes = scratch.arrays[f"y{first}"]
    if scratch.numbers["h_split"] == 1:
        return as_type(y_bytes, torch.bfloat16, count, columns)
    scale = scratch.fp32(f"y_scale{first}", count, columns // BLOCK)
    y = as_type(y_bytes, torch.float16, count, columns).float()
    return y * scale.repeat_interleave(BLOCK, 1)
