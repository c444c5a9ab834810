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
    permutation: Permutation  # a pair is token * E_local + expert; a tile is `align` rows
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


def expected_rows(chosen, align, top_k, m_block_rows=None):
    """Return `permute_ref`'s rows for chosen [T, E_local] bool, each expert's padded to `align`
    rows and cut in m_blocks.
    """
    local = chosen.shape[1]
    expert = torch.where(chosen, torch.arange(local, dtype=torch.int32, device=chosen.device), -1)
    permuted = permute_ref(expert, local, align)
    tiles = int(permuted.num_tiles)
    permuted = permuted._replace(pair_of_row=permuted.pair_of_row[: tiles * align])
    token = permuted.pair_of_row.long().div(local, rounding_mode="floor")  # -1 stays -1

    row_expert = permuted.tile_expert[:tiles].long().repeat_interleave(align)
    rows_of_expert = torch.bincount(row_expert, minlength=local)
    first = (rows_of_expert.cumsum(0) - rows_of_expert)[row_expert]
    span = rows_of_expert[row_expert]
    if m_block_rows:
        row = torch.arange(len(token), device=chosen.device)
        before = (row - first) // m_block_rows * m_block_rows
        first = first + before
        span = (span - before).clamp(max=m_block_rows)

    none = torch.iinfo(torch.int32).max
    ranked = torch.where(permuted.row_of_pair < 0, none, permuted.row_of_pair).long().sort(1)
    token_rows = ranked.values[:, :top_k]
    token_rows = torch.where(token_rows == none, -1, token_rows)
    token_rows = pad(token_rows, (0, top_k - token_rows.shape[1]), value=-1)
    return Rows(token, row_expert, first, span, token_rows, permuted, align)


def few_rows(layer, chosen):
    return expected_rows(chosen, ATOM, layer["top_k"], M_BLOCK_ROWS)


def many_rows(layer, chosen):
    return expected_rows(chosen, ROW_ALIGN, layer["top_k"])


def swizzled(row, column):
    """Return the byte of (row, column) in atoms of 8 rows by 128 bytes: 16-byte pieces of a row are
    permuted by its number.
    """
    in_atom = row % ATOM
    piece = column // 16 ^ in_atom
    return row // ATOM * (ATOM * BLOCK) + in_atom * BLOCK + piece * 16 + column % 16


def round_up(value, multiple):
    return -(-value // multiple) * multiple


def h_index(rows, inter, h_split, few):
    """Return [h_split, rows, inter] int64: where h's bytes lie."""
    column = torch.arange(inter, device=rows.token.device)[None]
    first = rows.first[:, None]
    span = rows.span[:, None]
    within = rows.within[:, None]
    block = column // BLOCK

    places = []
    for part in range(h_split):
        if few:  # the parts of an atom lie together
            place = block * span * BLOCK * h_split
            place = place + (within // ATOM * h_split + part) * ATOM * BLOCK
            place = place + swizzled(within % ATOM, column % BLOCK)
        else:
            place = (block * h_split + part) * span * BLOCK + swizzled(within, column % BLOCK)
        places.append(first * round_up(inter, 256) * h_split + place)
    return torch.stack(places)


def scale_index(rows, blocks, per_block=1, multiple=1):
    """Return [rows, blocks * per_block] int64: where the scales of rows lie, `per_block` for each
    block of a row.

    multiple: of so many blocks, for which there is room.
    """
    scale = torch.arange(blocks * per_block, device=rows.token.device)[None]
    place = rows.first[:, None] * round_up(blocks, multiple)
    place = place + scale // per_block * rows.span[:, None] + rows.within[:, None]
    return place * per_block + scale % per_block


def x_index(rows, hidden):
    """Return [rows, hidden] int64: where the bytes of gathered tokens lie (few tokens)."""
    column = torch.arange(hidden, device=rows.token.device)[None]
    place = rows.first[:, None] * round_up(hidden, 512)
    place = place + column // BLOCK * rows.span[:, None] * BLOCK
    return place + swizzled(rows.within[:, None], column % BLOCK)


def as_type(array, dtype, *shape):
    """Return the front of an array of bytes, as a tensor of this type and shape; all of it without
    a shape.
    """
    values = array.view(dtype)
    return values[: math.prod(shape)].view(shape) if shape else values


def of_tokens(values, rows):
    """Return [rows, ...]: the values [T, ...] of each row's token, zero in rows of padding."""
    real = rows.real.view(-1, *[1] * (values.dim() - 1))
    return torch.where(real, values[rows.token.clamp(min=0)], torch.zeros_like(values[:1]))
