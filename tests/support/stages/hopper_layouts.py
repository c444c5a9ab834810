"""Where hopper_fused keeps rows, their values and their scales in its scratch."""

import math
from dataclasses import dataclass

import torch
from stage_inputs import BLOCK
from torch.nn.functional import pad

from solutions.common.triton.rows.permute import Permutation, permute_ref

ATOM = 8  # rows of a swizzle atom: what an expert's rows are padded to with few tokens
ROW_ALIGN = 16  # with many tokens
M_BLOCK_ROWS = 64  # few tokens: rows of an m_block at most
N_BLOCK_COLUMNS = 32  # few tokens: columns of h with one scale


@dataclass
class Rows:
    """The rows that `chosen` asks for, in order of expert and then of token, and the spans that
    they lie in.

    A span's rows lie together in the scratch, K block by K block: an expert's with many tokens, an
    m_block's with few.
    """

    token: torch.Tensor  # [rows] int64; -1 in a row of padding
    expert: torch.Tensor  # [rows] int64
    first: torch.Tensor  # [rows] int64: the first row of the row's span
    span: torch.Tensor  # [rows] int64: the span's rows, padding included
    token_rows: torch.Tensor  # [T, top_k] int64: rows of each token, in order, then -1
    # a pair is token * E_local + expert; a tile is `align` rows
    permutation: Permutation
    align: int

    @property
    def real(self):
        return self.token >= 0

    @property
    def number(self):
        return torch.arange(len(self.token), device=self.token.device)

    @property
    def within(self):
        """Each row's number in its span."""
        return self.number - self.first

    @property
    def starts(self):
        """The first row of each span."""
        return (self.first == self.number).nonzero().flatten()

    def columns(self, count):
        """Return the numbers [1, count] of so many columns."""
        return torch.arange(count, device=self.token.device)[None]


def expected_rows(chosen, align, top_k, m_block_rows=None):
    """Return `permute_ref`'s rows for chosen [T, E_local] bool, each expert's padded to `align`
    rows and cut in m_blocks.
    """
    local = chosen.shape[1]
    number = torch.arange(local, dtype=torch.int32, device=chosen.device)
    local_expert = torch.where(chosen, number, -1)
    permuted = permute_ref(local_expert, local, align)

    num_tiles = int(permuted.num_tiles)
    num_rows = num_tiles * align
    pair = permuted.pair_of_row[:num_rows]
    permuted = permuted._replace(pair_of_row=pair)

    token = pair.long().div(local, rounding_mode="floor")  # -1 stays -1
    tile_expert = permuted.tile_expert[:num_tiles].long()
    expert = tile_expert.repeat_interleave(align)
    first, span = spans_of(expert, m_block_rows)
    token_rows = rows_of_tokens(permuted.row_of_pair, top_k)
    return Rows(token, expert, first, span, token_rows, permuted, align)


def spans_of(expert, m_block_rows):
    """Return for each row, of this expert, the first row of its span and the rows of the span."""
    rows_of_expert = torch.bincount(expert)
    end_of_expert = rows_of_expert.cumsum(0)
    span = rows_of_expert[expert]
    first = end_of_expert[expert] - span
    if m_block_rows is None:
        return first, span

    row = torch.arange(len(expert), device=expert.device)
    m_block = (row - first) // m_block_rows
    rows_before = m_block * m_block_rows  # in the expert's m_blocks before
    rows_left = span - rows_before
    return first + rows_before, rows_left.clamp(max=m_block_rows)


def rows_of_tokens(row_of_pair, top_k):
    """Return [T, top_k] int64: each token's rows in order, then -1."""
    last = torch.iinfo(torch.int32).max  # sorts behind every row
    rows = row_of_pair.long()
    rows = rows.masked_fill(rows < 0, last)
    rows = pad(rows, (0, top_k), value=last)
    rows = rows.sort(1).values[:, :top_k]
    return rows.masked_fill(rows == last, -1)


def few_rows(layer, chosen):
    return expected_rows(chosen, ATOM, layer["top_k"], M_BLOCK_ROWS)


def many_rows(layer, chosen):
    return expected_rows(chosen, ROW_ALIGN, layer["top_k"])


def swizzled(row, column):
    """Return the byte of (row, column) in atoms of 8 rows by 128 bytes: 16-byte pieces of a row are
    permuted by its number.
    """
    piece = column // 16 ^ row % ATOM
    return row * BLOCK + piece * 16 + column % 16


def round_up(value, multiple):
    return -(-value // multiple) * multiple


def h_index(rows, inter, h_split, is_few):
    """Return [h_split, rows, inter] int64: where h's bytes lie."""
    column = rows.columns(inter)
    block = column // BLOCK
    byte = column % BLOCK
    span = rows.span[:, None]
    within = rows.within[:, None]
    columns = inter if is_few else round_up(inter, 256)  # for which there is room
    begin = rows.first[:, None] * columns * h_split

    places = []
    for part in range(h_split):
        if is_few:  # the parts of an atom lie together
            atom = within // ATOM * h_split + part
            begin_of_block = block * h_split * span * BLOCK
            begin_of_atom = begin_of_block + atom * ATOM * BLOCK
            place = begin_of_atom + swizzled(within % ATOM, byte)
        else:
            begin_of_block = (block * h_split + part) * span * BLOCK
            place = begin_of_block + swizzled(within, byte)
        places.append(begin + place)
    return torch.stack(places)


def scale_index(rows, blocks, per_block=1, multiple=1):
    """Return [rows, blocks * per_block] int64: where the scales of rows lie, `per_block` for each
    block of a row.

    multiple: of so many blocks, for which there is room.
    """
    scale = rows.columns(blocks * per_block)
    block = scale // per_block
    scale_of_block = scale % per_block
    span = rows.span[:, None]
    within = rows.within[:, None]

    begin = rows.first[:, None] * round_up(blocks, multiple)
    place = begin + block * span + within
    return place * per_block + scale_of_block


def x_index(rows, hidden):
    """Return [rows, hidden] int64: where the bytes of gathered tokens lie (few tokens)."""
    column = rows.columns(hidden)
    block = column // BLOCK
    byte = column % BLOCK
    span = rows.span[:, None]
    within = rows.within[:, None]

    begin = rows.first[:, None] * round_up(hidden, 512)
    begin_of_block = begin + block * span * BLOCK
    return begin_of_block + swizzled(within, byte)


def as_type(array, dtype, *shape):
    """Return the front of an array of bytes, as a tensor of this type and shape; all of it without
    a shape.
    """
    values = array.view(dtype)
    if not shape:
        return values
    count = math.prod(shape)
    return values[:count].view(shape)


def values_by_row(values, rows):
    """Return [rows, ...]: the values [T, ...] of each row's token, zero in rows of padding."""
    padding = (~rows.real).nonzero().flatten()
    token = rows.token.clamp(min=0)
    return values[token].index_fill(0, padding, 0)
