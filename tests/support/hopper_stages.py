"""What a test build of hopper_fused reads out of its scratch, held against the plain statement of
each stage.

`build` compiles tests/samples/hopper_stages.cu with a definition's sources, and `call` runs it.
`few` and `many` turn the bytes that it hands out into tensors in order of rows. `first_fault` names
the first stage whose result is not what the results of the stages before it ask for.
"""

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from unittest import mock

import torch
from moebench.operators import catalogue, swiglu
from moebench.packing.pack import pack
from moebench.packing.problem import NAMES

from solutions.common.host.build_library import build_library, find_toolkit, load_library
from solutions.common.triton import gemm1 as gemm1_module
from solutions.common.triton import route as route_module
from solutions.common.triton.combine import combine_ref
from solutions.common.triton.gemm2 import gemm2_ref
from solutions.common.triton.permute import Permutation, permute_ref

SAMPLE = Path(__file__).parents[1] / "samples" / "hopper_stages.cu"
ARCHITECTURE = "9.0a"
RIGHT = "every stage is right"  # what a script says of a layer, for sanitizer.py
SILU = {"activation": "silu", "swiglu_limit": 0}  # of sizes that name no activation
BLOCK = 128
ATOM = 8  # rows of a swizzle atom: what an expert's rows are padded to with few tokens
ROW_ALIGN = 16  # with many tokens
M_BLOCK_ROWS = 64  # few tokens: rows of an m_block at most
N_BLOCK_COLUMNS = 32  # few tokens: columns of h with one scale
BLOCK_N = 256  # many tokens: weight rows of a tile
# Largest error of 128 columns of a row, relative to their norm: h in one or two FP8 parts, y and
# output as bf16. One wrong value among 128 of like size is an error of 0.09.
H_ERROR, BF16_ERROR = {1: 0.05, 2: 0.01}, 5e-3


def sources(layer_key):
    """Path -> text of the test build for a definition."""
    packed = {file.path: file.content for file in pack("hopper_fused")[layer_key].sources}
    texts = {path: text for path, text in packed.items() if path.endswith((".cu", ".cuh"))}
    texts["launch_layer_cu.cuh"] = texts.pop("launch_layer.cu")  # stages.cu includes it
    return texts | {"stages.cu": SAMPLE.read_text()}


def problem_header(of):
    """problem.cuh for sizes that no definition has, without the activation."""
    sizes = [f"constexpr int {symbol} = {of[key]};" for key, symbol in NAMES.items()]
    return "\n".join(
        ["#pragma once", *sizes, f"constexpr bool kRenorm = {str(of['renorm']).lower()};", ""]
    )


def build(texts, flags=()):
    """Compile a test build, once for each content; return the library's path. Raises as
    `build_library` does.
    """
    return build_library("hopper_stages", texts, architecture=ARCHITECTURE, flags=flags)


def build_all(build, keys, architecture=ARCHITECTURE):
    """Key -> loaded library; all are compiled at once."""
    # each build sets these variables and puts them back
    same = {"TVM_FFI_CUDA_ARCH_LIST": architecture, "CUDA_HOME": str(find_toolkit())}
    with mock.patch.dict(os.environ, same), ThreadPoolExecutor() as pool:
        return dict(zip(keys, map(load_library, list(pool.map(build, keys))), strict=True))


@lru_cache(maxsize=1)
def weights_once(layer_key):
    """A definition's weights on the device; those of one at a time, as they are gigabytes."""
    return weights(sizes(layer_key), "cuda")


def call(library, of, arguments, h_split):
    """The layer through a test build's module; returns its output, and the arrays and numbers that
    it hands out.

    h_split: FP8 parts of h with many tokens.
    """
    x = arguments["hidden_states"]
    output = torch.full(x.shape, torch.nan, dtype=torch.bfloat16, device=x.device)
    run = library["run_routed" if of["routed"] else "run_renorm" if of["renorm"] else "run_layer"]
    run(*(arguments[name] for name in names(of)), output, h_split)
    arrays = {
        str(name): torch.from_dlpack(array) for name, array in library["read_arrays"]().items()
    }
    return (
        output,
        arrays,
        {str(name): int(value) for name, value in library["read_numbers"]().items()},
    )


# ---- the layer's arguments ----


def sizes(layer_key):
    """The definition's sizes, whether its routing is renorm, and whether top-k is given."""
    forms = {"renorm": layer_key in catalogue.renorm(), "routed": layer_key in catalogue.routed()}
    return catalogue.layer_sizes()[layer_key] | forms


def names(of):
    """Of the inputs, in the definition's order."""
    tokens = ["hidden_states", "hidden_states_scale"]
    experts = [f"gemm{gemm}_weights{scale}" for gemm in (1, 2) for scale in ("", "_scale")]
    if of["routed"]:
        return [*tokens, "topk_ids", "topk_weights", *experts, "local_expert_offset"]
    if of["renorm"]:
        return ["routing_logits", *tokens, *experts]
    return [
        "routing_logits",
        "routing_bias",
        *tokens,
        *experts,
        "local_expert_offset",
        "routed_scaling_factor",
    ]


def reference_choice(of, arguments):
    """What the layer's arguments ask for: chosen [T, E_local] bool and weight [T, E_local], NaN
    elsewhere.
    """
    if not of["routed"]:
        given = ("routing_logits", "routing_bias", "local_expert_offset", "routed_scaling_factor")
        return reference_route(of, *(arguments[name] for name in given))
    expert = arguments["topk_ids"].long() - arguments["local_expert_offset"]
    local = of["num_local_experts"]
    expert = torch.where(
        (expert < 0) | (expert >= local), local, expert
    )  # the last column: not local
    chosen = torch.zeros((len(expert), local + 1), dtype=torch.bool, device=expert.device).scatter_(
        1, expert, True
    )
    weight = torch.zeros(chosen.shape, device=expert.device).scatter_add_(
        1, expert, arguments["topk_weights"]
    )
    return chosen[:, :-1], torch.where(chosen, weight, torch.nan)[:, :-1]


def token_scales(of, arguments):
    """The scales of x, [T, H / 128]."""
    scales = arguments["hidden_states_scale"]
    return scales if of["routed"] else scales.t()


def reference_halves(of, arguments, rows):
    """up and gate [rows, I] fp32 of rows."""
    forms = {"GATE_FIRST": of["routed"], "SCALES_ROW_MAJOR": of["routed"]}
    given = ("hidden_states", "hidden_states_scale", "gemm1_weights", "gemm1_weights_scale")
    with mock.patch.multiple(gemm1_module, **forms):
        g = gemm1_module.gemm1_ref(
            *(arguments[name] for name in given), rows.permutation, rows.align
        )
    return g.chunk(2, dim=-1)


def reference_route(of, logits, bias, offset, factor):
    """`route_ref` with the routing of a definition: chosen [T, E_local] bool and weight [T,
    E_local], NaN elsewhere.
    """
    routing = {name: of[name.lower()] for name in ("TOP_K", "NUM_GROUPS", "KEPT_GROUPS")}
    local_experts = of["num_local_experts"]
    with mock.patch.multiple(route_module.problem, RENORM=of["renorm"], **routing):
        expert, weight = route_module.route_ref(logits, bias, offset, factor, local_experts)
    dense = torch.full(
        (len(logits), local_experts + 1), torch.nan, device=logits.device
    )  # the last: not local
    dense.scatter_(1, torch.where(expert < 0, local_experts, expert).long(), weight.float())
    return ~dense[:, :-1].isnan(), dense[:, :-1]


def is_clear(of, logits, bias):
    """[T] bool: no two experts or groups are so close where the choice ends that rounding
    decides.
    """
    if of["renorm"]:
        choice, groups = logits.double(), 1
    else:
        choice, groups = logits.double().sigmoid() + bias.double(), of["num_groups"]
    gap = torch.full((len(logits),), torch.inf, dtype=torch.float64, device=logits.device)
    if groups > 1:
        grouped = choice.unflatten(1, (groups, -1))
        score = grouped.topk(2, dim=-1).values.sum(-1).sort(descending=True)
        gap = score.values[:, of["kept_groups"] - 1] - score.values[:, of["kept_groups"]]
        closed = torch.ones_like(score.values, dtype=torch.bool)
        closed.scatter_(1, score.indices[:, : of["kept_groups"]], False)
        choice = grouped.masked_fill(closed[..., None], -torch.inf).flatten(1)
    first = choice.topk(of["top_k"] + 1, dim=-1).values
    return torch.minimum(gap, first[:, -2] - first[:, -1]) > 1e-5


def weights(of, device, seed=0):
    """Random weights, as the layer's arguments by name. Bytes of FP8 with magnitudes up to 1.875,
    so never NaN.
    """
    hidden, inter, local = of["hidden_size"], of["intermediate_size"], of["num_local_experts"]
    generator = torch.Generator(device).manual_seed(seed)

    def fp8(*shape):
        whole = torch.randint(0, 256, shape, generator=generator, device=device, dtype=torch.uint8)
        return whole.bitwise_and_(0xBF).view(torch.float8_e4m3fn)

    def scale(k, *shape):
        return 2 * k**-0.5 * torch.randn(shape, generator=generator, device=device)

    return {
        "gemm1_weights": fp8(local, 2 * inter, hidden),
        "gemm1_weights_scale": scale(hidden, local, 2 * inter // BLOCK, hidden // BLOCK),
        "gemm2_weights": fp8(local, hidden, inter),
        "gemm2_weights_scale": scale(inter, local, hidden // BLOCK, inter // BLOCK),
    }


def tokens(of, num_tokens, device, seed=0):
    """Random tokens and logits whose choice of experts is clear, about half of the pairs local;
    arguments by name.

    With top-k given: their choice as ids of all experts, some slots and tokens without one, some
    experts twice.
    """
    hidden, experts, local = of["hidden_size"], of["num_experts"], of["num_local_experts"]
    generator = torch.Generator(device).manual_seed(seed)
    offset = 0 if local == experts else local
    bias = (0.05 * torch.randn(experts, generator=generator, device=device)).bfloat16()

    def draw(count):
        logits = torch.randn((count, experts), generator=generator, device=device)
        logits[:, offset : offset + local] += 1.5
        return logits.bfloat16() if of["renorm"] else logits

    logits = draw(num_tokens)
    while not (clear := is_clear(of, logits, bias)).all():
        logits[~clear] = draw(int((~clear).sum()))
    whole = torch.randint(
        0, 256, (num_tokens, hidden), generator=generator, device=device, dtype=torch.uint8
    )
    scales = torch.randn((hidden // BLOCK, num_tokens), generator=generator, device=device)
    found = {
        "hidden_states": whole.bitwise_and_(0xBF).view(torch.float8_e4m3fn),
        "local_expert_offset": offset,
    }
    if of["routed"]:
        ids = logits.topk(of["top_k"]).indices.to(torch.int32)
        ids[::3, 1], ids[1::4, 2], ids[4::5] = -1, ids[1::4, 0], -1
        weight = torch.rand(ids.shape, generator=generator, device=device).where(
            ids >= 0, torch.nan
        )
        return found | {
            "hidden_states_scale": scales.t().contiguous(),
            "topk_ids": ids,
            "topk_weights": weight,
        }
    return found | {
        "routing_logits": logits,
        "routing_bias": bias,
        "hidden_states_scale": scales,
        "routed_scaling_factor": 1.0 if of["renorm"] else 2.5,
    }


# ---- layouts ----


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


def expected_rows(chosen, align, top_k, m_block_rows=None):
    """`permute_ref`'s rows for chosen [T, E_local] bool, each expert's padded to `align` rows and
    cut in m_blocks.
    """
    local = chosen.shape[1]
    expert = torch.where(chosen, torch.arange(local, dtype=torch.int32, device=chosen.device), -1)
    permuted = permute_ref(expert, local, align)
    tiles = int(permuted.num_tiles)
    permuted = permuted._replace(pair_of_row=permuted.pair_of_row[: tiles * align])
    token = permuted.pair_of_row.long().div(local, rounding_mode="floor")  # -1 stays -1
    row_expert = permuted.tile_expert[:tiles].long().repeat_interleave(align)
    row = torch.arange(len(token), device=chosen.device)
    rows_of_expert = torch.bincount(row_expert, minlength=local)
    first_of_expert = rows_of_expert.cumsum(0) - rows_of_expert
    first, span = first_of_expert[row_expert], rows_of_expert[row_expert]
    if m_block_rows:
        before = (row - first) // m_block_rows * m_block_rows
        first, span = first + before, (span - before).clamp(max=m_block_rows)
    none = torch.iinfo(torch.int32).max
    ranked = (
        torch.where(permuted.row_of_pair < 0, none, permuted.row_of_pair)
        .long()
        .sort(1)
        .values[:, :top_k]
    )
    token_rows = torch.nn.functional.pad(
        torch.where(ranked == none, -1, ranked), (0, top_k - ranked.shape[1]), value=-1
    )
    return Rows(token, row_expert, first, span, token_rows, permuted, align)


def swizzled(row, column):
    """Byte of (row, column) in atoms of 8 rows by 128 bytes: 16-byte pieces of a row are permuted
    by its number.
    """
    return (
        row // ATOM * (ATOM * BLOCK)
        + row % ATOM * BLOCK
        + (column // 16 ^ row % ATOM) * 16
        + column % 16
    )


def round_up(value, multiple):
    return -(-value // multiple) * multiple


def h_index(rows, inter, h_split, few):
    """[h_split, rows, inter] int64: where h's bytes lie."""
    column = torch.arange(inter, device=rows.token.device)
    within = torch.arange(len(rows.token), device=rows.token.device) - rows.first
    block, span = column[None] // BLOCK, rows.span[:, None]
    at = []
    for part in range(h_split):
        if few:  # the parts of an atom lie together
            atom = within[:, None] // ATOM
            place = block * span * BLOCK * h_split + (atom * h_split + part) * ATOM * BLOCK
            place = place + swizzled(within[:, None] % ATOM, column[None] % BLOCK)
        else:
            place = (block * h_split + part) * span * BLOCK + swizzled(
                within[:, None], column[None] % BLOCK
            )
        at.append(rows.first[:, None] * round_up(inter, 256) * h_split + place)
    return torch.stack(at)


def scale_index(rows, blocks, per_block=1, multiple=1):
    """[rows, blocks * per_block] int64: where the scales of rows lie, `per_block` for each block of
    a row.

    multiple: of so many blocks, for which there is room.
    """
    scale = torch.arange(blocks * per_block, device=rows.token.device)[None]
    within = (torch.arange(len(rows.token), device=rows.token.device) - rows.first)[:, None]
    first, span = rows.first[:, None], rows.span[:, None]
    return (
        first * round_up(blocks, multiple) + scale // per_block * span + within
    ) * per_block + scale % per_block


def x_index(rows, hidden):
    """[rows, hidden] int64: where the bytes of gathered tokens lie (few tokens)."""
    column = torch.arange(hidden, device=rows.token.device)[None]
    within = (torch.arange(len(rows.token), device=rows.token.device) - rows.first)[:, None]
    block = column // BLOCK
    return (
        rows.first[:, None] * round_up(hidden, 512)
        + block * rows.span[:, None] * BLOCK
        + swizzled(within, column % BLOCK)
    )


def as_type(array, dtype, *shape):
    """The front of an array of bytes, as a tensor of this type and shape; all of it without a
    shape.
    """
    values = array.view(dtype)
    return values[: math.prod(shape)].view(shape) if shape else values


# ---- what was read out ----


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
    partial: torch.Tensor | None = (
        None  # [splits, T, H] fp32: few tokens, where several CTAs share output columns
    )


def h_of(arrays, rows, of, h_split, few):
    """h [rows, I] fp32 of its bytes and scales."""
    inter, columns = of["intermediate_size"], N_BLOCK_COLUMNS if few else BLOCK
    scale = as_type(arrays["h_scale"], torch.float32)[
        scale_index(rows, inter // BLOCK, BLOCK // columns, 2)
    ]
    h = arrays["h"][h_index(rows, inter, h_split, few)].view(torch.float8_e4m3fn).float().sum(0)
    return h * scale.repeat_interleave(columns, 1)


def of_tokens(values, rows):
    """[rows, ...]: the values [T, ...] of each row's token, zero in rows of padding."""
    real = rows.real.view(-1, *[1] * (values.dim() - 1))
    return torch.where(real, values[rows.token.clamp(min=0)], torch.zeros_like(values[:1]))


def few_route(arrays, of, num_tokens):
    """chosen [T, E_local] bool and weight [T, E_local] of the one launch."""
    local, words, batches = (
        of["num_local_experts"],
        -(-of["num_local_experts"] // 32),
        -(-num_tokens // 32),
    )
    mask = (
        as_type(arrays["mask"], torch.int32, batches, words, 32)
        .transpose(1, 2)
        .reshape(batches * 32, words, 1)
    )
    bits = mask >> torch.arange(32, device=mask.device, dtype=torch.int32) & 1
    return bits.flatten(1)[:num_tokens, :local].bool(), as_type(
        arrays["weight"], torch.float32, num_tokens, local
    )


def many_route(arrays, of, num_tokens):
    """chosen [T, E_local] bool and weight [T, E_local] of the four kernels, which write it where a
    token is chosen.
    """
    weight = as_type(arrays["weight"], torch.float32, num_tokens, of["num_local_experts"])
    return ~weight.isnan(), weight


def few(arrays, numbers, of, arguments, chosen, weight):
    """ReadOut of the one launch. arrays: name -> bytes, which the test build hands out, as
    numbers.
    """
    x, x_scale = arguments["hidden_states"].view(torch.uint8), token_scales(of, arguments)
    num_tokens, hidden = x.shape
    rows = expected_rows(chosen, ATOM, of["top_k"], M_BLOCK_ROWS)
    number = torch.arange(len(rows.token), device=x.device)
    rows_from = torch.zeros_like(number).index_add_(
        0, rows.first, rows.real.long()
    )  # of the m_block that begins there
    starts = (rows.first == number).nonzero().flatten()
    list_sizes = as_type(arrays["list_sizes"], torch.int32, 2).long()
    m_blocks = (
        as_type(arrays["m_blocks"], torch.int16, len(starts), 4).long() & 0xFFFF
    )  # the first row is two of these
    # an m_block of one row may bypass the gather, and is not in the scratch then
    gathered = (rows_from[rows.first] > 1) | (num_tokens > numbers["bypass_tokens"])
    got_scale = as_type(arrays["x_scale"], torch.float32)[
        scale_index(rows, hidden // BLOCK, multiple=4)
    ]
    layout = {
        "numbers of m_blocks and rows": (
            list_sizes,
            list_sizes.new_tensor([len(starts), len(number)]),
        ),
        "tokens of the rows": (
            as_type(arrays["token"], torch.int16, len(number)).long(),
            rows.token,
        ),
        "m_blocks": (
            m_blocks,
            torch.stack([rows.expert[starts], rows_from[starts], starts & 0xFFFF, starts >> 16], 1),
        ),
        "gathered x": (arrays["x"][x_index(rows, hidden)][gathered], of_tokens(x, rows)[gathered]),
        "gathered scales of x": (got_scale[gathered], of_tokens(x_scale, rows)[gathered]),
    }
    partial = None
    if numbers["ctas_per_column_tile"] > 1:
        shape = numbers["ctas_per_column_tile"], numbers["few_tokens"], hidden
        partial = as_type(arrays["partial"], torch.float32, *shape)[:, :num_tokens]
    h = h_of(arrays, rows, of, numbers["h_split"], True)
    return ReadOut(chosen, weight, rows, layout, h, numbers["h_split"], partial=partial)


def coverage(tiles, rows, n_blocks):
    """[rows / 16, n_blocks]: how often 16 rows meet an n_block.

    Negative where a tile names another expert, and everywhere if a tile lies beyond the rows or the
    n_blocks.

    tiles [entries, 2, 7] int32: expert, n_block, m_first, m_rows, expert_first, expert_rows,
    normal; -1: none.
    """
    expert, n_block, m_first, m_rows, expert_first, _, _ = (
        tiles[tiles[..., 0] >= 0].long().unbind(-1)
    )
    within = torch.arange(BLOCK // ROW_ALIGN, device=tiles.device)
    exists = within < m_rows[:, None] // ROW_ALIGN
    sixteen = (((expert_first + m_first) // ROW_ALIGN)[:, None] + within)[exists]
    expert, n_block = (value[:, None].expand_as(exists)[exists] for value in (expert, n_block))
    tile_expert = rows.expert[:: rows.align]
    inside = (sixteen < len(tile_expert)) & (n_block < n_blocks)
    sixteen, n_block, expert = sixteen[inside], n_block[inside], expert[inside]
    found = torch.zeros((len(tile_expert), n_blocks), dtype=torch.long, device=tiles.device)
    found.index_put_(
        (sixteen, n_block), torch.where(tile_expert[sixteen] == expert, 1, -1000), accumulate=True
    )
    return found - 1000 * (~inside).sum()


def many(arrays, numbers, of, arguments, chosen, weight):
    """ReadOut of the four kernels. arrays: name -> bytes, which the test build hands out, as
    numbers.
    """
    x_scale, hidden = token_scales(of, arguments), of["hidden_size"]
    num_tokens = len(x_scale)
    rows = expected_rows(chosen, ROW_ALIGN, of["top_k"])
    count = len(rows.token)
    row_weight = as_type(arrays["row_weight"], torch.float32, count)
    weight_of_row = weight[rows.token.clamp(min=0), rows.expert]
    slots = -(-of["top_k"] // 4) * 4
    token_rows = as_type(arrays["token_rows"], torch.int32, num_tokens, slots).long()
    row_token = as_type(arrays["row_token"], torch.int32, count).long()
    passes = sorted(int(name[1:]) for name in arrays if name[0] == "y" and name[1:].isdigit())
    y_columns = round_up(hidden, len(passes) * 2 * BLOCK_N) // len(
        passes
    )  # whole pairs of n_blocks
    widths = {
        "1": 2 * round_up(of["intermediate_size"], BLOCK_N) // BLOCK_N,
        "2": y_columns // BLOCK_N,
    }
    tiles = {gemm: as_type(arrays[f"tiles{gemm}"], torch.int32).view(-1, 2, 7) for gemm in widths}
    covered = {gemm: coverage(tiles[gemm], rows, n_blocks) for gemm, n_blocks in widths.items()}
    queues = as_type(arrays["queues"], torch.int32, 4)
    layout = {
        "active experts and rows": (
            queues[2:].long(),
            queues.new_tensor([int(chosen.any(0).sum()), count]).long(),
        ),
        "tokens of the rows": (torch.where(rows.real, row_token, -1), rows.token),
        "weights of the rows": (row_weight, torch.where(rows.real, weight_of_row, 0)),
        "rows of the tokens": (
            token_rows,
            torch.nn.functional.pad(rows.token_rows, (0, slots - of["top_k"]), value=-1),
        ),
        "gathered scales of x": (
            as_type(arrays["x_scale"], torch.float32)[scale_index(rows, hidden // BLOCK)],
            of_tokens(x_scale, rows),
        ),
        **{
            f"tiles of gemm{gemm}": (found, torch.ones_like(found))
            for gemm, found in covered.items()
        },
    }
    h = h_of(arrays, rows, of, numbers["h_split"], False)
    y = torch.cat(
        [y_of(arrays, numbers["h_split"], first, count, y_columns) for first in passes], 1
    )[:, :hidden]
    return ReadOut(chosen, weight, rows, layout, h, numbers["h_split"], y=y)


def y_of(arrays, h_split, first, rows, columns):
    """y [rows, columns] of the column pass that begins at `first`: bf16, or with h in two parts
    scaled fp16 as fp32.
    """
    y = as_type(
        arrays[f"y{first}"], torch.float16 if h_split == 2 else torch.bfloat16, rows, columns
    )
    if h_split == 1:
        return y
    scale = as_type(arrays[f"y_scale{first}"], torch.float32, rows, columns // BLOCK)
    return y.float() * scale.repeat_interleave(BLOCK, 1)


# ---- the stages ----


def differing(got, want, limit, what):
    """What differs by more than `limit` of its norm, in blocks of 128 columns of [..., columns];
    None if nothing.
    """
    got, want = (value.float().unflatten(-1, (-1, BLOCK)) for value in (got, want))
    error = (got - want).norm(dim=-1) / want.norm(dim=-1).clamp(min=1e-30)
    wrong = ~(error <= limit)  # NaN is wrong
    if not wrong.any():
        return None
    at = wrong.nonzero()
    most = error.nan_to_num(torch.inf)[wrong].max().item()
    return f"{len(at)} blocks of 128 columns off by up to {most:.3g}, want {limit}; [{what}, block]: {at[:6].tolist()}"


def wrong_route(of, arguments, chosen, weight):
    want, want_weight = reference_choice(of, arguments)
    if (wrong := (chosen != want).any(1)).any():
        return (
            f"other experts in {int(wrong.sum())} tokens: {wrong.nonzero().flatten()[:6].tolist()}"
        )
    wrong = (want & ~((weight - want_weight).abs() <= 1e-5 * want_weight.abs())).any(1)
    return (
        f"other weights of tokens {wrong.nonzero().flatten()[:6].tolist()}" if wrong.any() else None
    )


def wrong_layout(found):
    for name, (got, want) in found.layout.items():
        if got.shape != want.shape:
            return f"{name}: got {list(got.shape)} values, want {list(want.shape)}"
        if not torch.equal(got, want):
            at = (got != want).nonzero()
            return f"{name}: {len(at)} values differ, the first at {at[:6].tolist()}"
    return None


def wrong_h(of, arguments, found):
    rows = found.rows
    up, gate = reference_halves(of, arguments, rows)
    weight = found.weight[rows.token, rows.expert][:, None]
    with mock.patch.object(swiglu, "LIMIT", of.get("swiglu_limit")):
        want = swiglu.function_of(SILU | of)(gate, up) * weight
    return differing(
        found.h[rows.real], want[rows.real], H_ERROR[found.h_split], "row that is no padding"
    )


def reference_y(arguments, found):
    """y [rows, H] bf16 of the h that was read out."""
    rows = found.rows
    w, w_scale = arguments["gemm2_weights"], arguments["gemm2_weights_scale"]
    h = torch.where(rows.real[:, None], found.h, 0)
    ones = torch.ones((len(h), h.shape[1] // BLOCK), device=h.device)
    return gemm2_ref(h, ones, w, w_scale, rows.permutation, rows.align, 0, w.shape[1])


def combined(y, token_rows):
    """[T, H] bf16: sums of the tokens' rows of y."""
    output = torch.empty((len(token_rows), y.shape[1]), dtype=torch.bfloat16, device=y.device)
    if not len(y):
        return output.zero_()
    combine_ref(y, token_rows, torch.ones_like(token_rows, dtype=torch.float32), output, 0)
    return output


def wrong_partial(y, found):
    """Each CTA's sums against those of its m_blocks, every `splits`-th."""
    rows, splits = found.rows, len(found.partial)
    number = torch.arange(len(rows.token), device=y.device)
    split = ((rows.first == number).cumsum(0) - 1) % splits
    want = torch.zeros_like(found.partial)
    want.index_put_(
        (split[rows.real], rows.token[rows.real]), y[rows.real].float(), accumulate=True
    )
    return differing(found.partial, want, BF16_ERROR, "CTA, token")


def first_fault(arrays, numbers, of, arguments, output):
    """The first stage whose result is wrong, and where; None if all are right. output [T, H]: the
    layer's.
    """
    decode_route, decode = (few_route, few) if "mask" in arrays else (many_route, many)
    chosen, weight = decode_route(arrays, of, len(output))
    if fault := wrong_route(of, arguments, chosen, weight):
        return f"route: {fault}"
    found = decode(arrays, numbers, of, arguments, chosen, weight)
    if fault := wrong_layout(found):
        return f"permute: {fault}"
    if fault := wrong_h(of, arguments, found):
        return f"gemm1 + swiglu_quant: {fault}"
    y, last = reference_y(arguments, found), "gemm2 + combine"
    if found.y is not None:
        real = found.rows.real
        if fault := differing(found.y[real], y[real], BF16_ERROR, "row that is no padding"):
            return f"gemm2: {fault}"
        y, last = found.y, "combine"
    want = combined(y, found.rows.token_rows)
    if found.partial is not None:
        if fault := wrong_partial(y, found):
            return f"gemm2: {fault}"
        want, last = found.partial.sum(0), "combine"
    fault = differing(output, want, BF16_ERROR, "token")
    return f"{last}: {fault}" if fault else None
