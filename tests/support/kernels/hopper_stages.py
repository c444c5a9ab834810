"""What a test build of hopper_fused reads out of its scratch, held against the plain statement of
each stage.

`build` compiles tests/samples/hopper_stages.cu with a definition's sources, and `call` runs it.
`few` and `many` turn the bytes that it hands out into tensors in order of rows. `first_fault` names
the first stage whose result is not what the results of the stages before it ask for.

A layer is a definition's sizes by name, with `renorm` and `routed`: see `sizes`.
"""

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from unittest import mock

import torch
from moebench.operators import catalogue
from moebench.operators.fp8 import swiglu
from moebench.packing.problem import NAMES
from packed_sources import CUDA, packed_texts
from torch.nn.functional import pad

from solutions.common.host.build_library import build_library, find_toolkit, load_library
from solutions.common.triton.gemms import gemm1 as gemm1_module
from solutions.common.triton.gemms.gemm2 import gemm2_ref
from solutions.common.triton.rows import route as route_module
from solutions.common.triton.rows.combine import combine_ref
from solutions.common.triton.rows.permute import Permutation, permute_ref

SAMPLE = Path(__file__).parents[2] / "samples" / "hopper_stages.cu"
ARCHITECTURE = "9.0a"
RIGHT = "every stage is right"  # what a script says of a layer, for sanitizer.py
SILU = {"activation": "silu", "swiglu_limit": 0}  # of layers that name no activation

BLOCK = 128
ATOM = 8  # rows of a swizzle atom: what an expert's rows are padded to with few tokens
ROW_ALIGN = 16  # with many tokens
M_BLOCK_ROWS = 64  # few tokens: rows of an m_block at most
N_BLOCK_COLUMNS = 32  # few tokens: columns of h with one scale
BLOCK_N = 256  # many tokens: weight rows of a tile

# Largest error of 128 columns of a row, relative to their norm: h in one or two FP8 parts, y and
# output as bf16. One wrong value among 128 of like size is an error of 0.09.
H_ERROR = {1: 0.05, 2: 0.01}
BF16_ERROR = 5e-3

# Arguments of the layer, in a definition's order.
TOKENS = ["hidden_states", "hidden_states_scale"]
GEMM1 = ["gemm1_weights", "gemm1_weights_scale"]
GEMM2 = ["gemm2_weights", "gemm2_weights_scale"]
ROUTING = ["routing_logits", "routing_bias", "local_expert_offset", "routed_scaling_factor"]


# ---- the test build ----


def sources(layer_key):
    """Return path -> text of the test build for a definition."""
    texts = packed_texts("hopper_fused", layer_key, CUDA)
    texts["launch_layer_cu.cuh"] = texts.pop("launch_layer.cu")  # stages.cu includes it
    texts["stages.cu"] = SAMPLE.read_text()
    return texts


def problem_header(layer):
    """Return problem.cuh for sizes that no definition has, without the activation."""
    lines = ["#pragma once"]
    lines += [f"constexpr int {symbol} = {layer[key]};" for key, symbol in NAMES.items()]
    lines.append(f"constexpr bool kRenorm = {str(layer['renorm']).lower()};\n")
    return "\n".join(lines)


def build(texts, flags=()):
    """Compile a test build, once for each content; return the library's path. Raises as
    `build_library` does.
    """
    return build_library("hopper_stages", texts, architecture=ARCHITECTURE, flags=flags)


def build_all(build, keys, architecture=ARCHITECTURE):
    """Return key -> loaded library; all are compiled at once."""
    # each build sets these variables and puts them back
    same = {"TVM_FFI_CUDA_ARCH_LIST": architecture, "CUDA_HOME": str(find_toolkit())}
    with mock.patch.dict(os.environ, same), ThreadPoolExecutor() as pool:
        libraries = list(pool.map(build, keys))
        return {key: load_library(library) for key, library in zip(keys, libraries, strict=True)}


def call(library, layer, arguments, h_split):
    """Run the layer through a test build's module. Return its output, and the arrays and numbers
    that it hands out.

    h_split: FP8 parts of h with many tokens.
    """
    x = arguments["hidden_states"]
    output = torch.full(x.shape, torch.nan, dtype=torch.bfloat16, device=x.device)
    if layer["routed"]:
        run = library["run_mxfp4" if layer.get("mxfp4") else "run_routed"]
    else:
        run = library["run_renorm" if layer["renorm"] else "run_layer"]
    run(*(arguments[name] for name in names(layer)), output, h_split)

    arrays = {}
    for name, array in library["read_arrays"]().items():
        arrays[str(name)] = torch.from_dlpack(array)
    numbers = {str(name): int(value) for name, value in library["read_numbers"]().items()}
    return output, arrays, numbers


# ---- the layer's arguments ----


def sizes(layer_key):
    """Return a definition's layer: sizes, whether its routing is renorm, whether top-k is given."""
    forms = {"renorm": layer_key in catalogue.renorm(), "routed": layer_key in catalogue.routed()}
    return catalogue.layer_sizes()[layer_key] | forms


def names(layer):
    """Return the names of the layer's inputs, in the definition's order."""
    if layer["routed"]:
        return [*TOKENS, "topk_ids", "topk_weights", *GEMM1, *GEMM2, "local_expert_offset"]
    if layer["renorm"]:
        return ["routing_logits", *TOKENS, *GEMM1, *GEMM2]
    return [*ROUTING[:2], *TOKENS, *GEMM1, *GEMM2, *ROUTING[2:]]


@lru_cache(maxsize=1)
def weights_once(layer_key):
    """Return a definition's weights on the device; those of one are kept, as they are gigabytes."""
    return weights(sizes(layer_key), "cuda")


class Draw:
    """Random tensors on a device."""

    def __init__(self, device, seed):
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)

    def normal(self, *shape):
        return torch.randn(shape, generator=self.generator, device=self.device)

    def uniform(self, *shape):
        return torch.rand(shape, generator=self.generator, device=self.device)

    def fp8(self, *shape):
        """Return bytes of FP8 with magnitudes up to 1.875, so never NaN."""
        options = {"generator": self.generator, "device": self.device, "dtype": torch.uint8}
        whole = torch.randint(0, 256, shape, **options)
        return whole.bitwise_and_(0xBF).view(torch.float8_e4m3fn)


def weights(layer, device, seed=0):
    """Return random weights, as the layer's arguments by name."""
    hidden = layer["hidden_size"]
    inter = layer["intermediate_size"]
    local = layer["num_local_experts"]
    draw = Draw(device, seed)
    w13 = draw.fp8(local, 2 * inter, hidden)
    w13_scale = 2 * hidden**-0.5 * draw.normal(local, 2 * inter // BLOCK, hidden // BLOCK)
    w2 = draw.fp8(local, hidden, inter)
    w2_scale = 2 * inter**-0.5 * draw.normal(local, hidden // BLOCK, inter // BLOCK)
    return dict(zip([*GEMM1, *GEMM2], [w13, w13_scale, w2, w2_scale], strict=True))


def clear_logits(layer, num_tokens, draw, offset):
    """Return logits and bias whose choice of experts is clear, about half of the pairs local."""

    def logits_of(count):
        logits = draw.normal(count, layer["num_experts"])
        logits[:, offset : offset + layer["num_local_experts"]] += 1.5
        return logits.bfloat16() if layer["renorm"] else logits

    bias = (0.05 * draw.normal(layer["num_experts"])).bfloat16()
    logits = logits_of(num_tokens)
    while True:
        unclear = ~is_clear(layer, logits, bias)
        if not unclear.any():
            return logits, bias
        logits[unclear] = logits_of(int(unclear.sum()))


def tokens(layer, num_tokens, device, seed=0):
    """Return random tokens and clear logits as the layer's arguments by name.

    With top-k given: their choice as ids of all experts, some slots and tokens without one, some
    experts twice.
    """
    draw = Draw(device, seed)
    local = layer["num_local_experts"] - layer.get("num_shared_experts", 0)
    offset = 0 if local == layer["num_experts"] else local
    logits, bias = clear_logits(layer, num_tokens, draw, offset)
    x = draw.fp8(num_tokens, layer["hidden_size"])
    scales = draw.normal(layer["hidden_size"] // BLOCK, num_tokens)

    if layer["routed"]:
        ids = logits.topk(layer["top_k"]).indices.to(torch.int32)
        ids[::3, 1] = -1
        ids[1::4, 2] = ids[1::4, 0]
        ids[4::5] = -1
        weight = draw.uniform(*ids.shape).where(ids >= 0, torch.nan)
        routing = {"topk_ids": ids, "topk_weights": weight}
        scales = scales.t().contiguous()
    else:
        factor = 1.0 if layer["renorm"] else 2.5
        routing = {"routing_logits": logits, "routing_bias": bias, "routed_scaling_factor": factor}
    shared = {"hidden_states": x, "hidden_states_scale": scales, "local_expert_offset": offset}
    return shared | routing


def is_clear(layer, logits, bias):
    """Return [T] bool: no two experts or groups are so close where the choice ends that rounding
    decides.
    """
    if layer["renorm"]:
        groups = 1
        choice = logits.double()
    else:
        groups = layer["num_groups"]
        choice = logits.double().sigmoid() + bias.double()

    gap = torch.full((len(logits),), torch.inf, dtype=torch.float64, device=logits.device)
    if groups > 1:
        kept = layer["kept_groups"]
        grouped = choice.unflatten(1, (groups, -1))
        score = grouped.topk(2, dim=-1).values.sum(-1).sort(descending=True)
        gap = score.values[:, kept - 1] - score.values[:, kept]
        closed = torch.ones_like(score.values, dtype=torch.bool)
        closed.scatter_(1, score.indices[:, :kept], False)
        choice = grouped.masked_fill(closed[..., None], -torch.inf).flatten(1)

    first = choice.topk(layer["top_k"] + 1, dim=-1).values
    return torch.minimum(gap, first[:, -2] - first[:, -1]) > 1e-5


# ---- plain statements of the stages ----


def reference_choice(layer, arguments):
    """Return what the layer's arguments ask for: chosen [T, E_local] bool and weight [T, E_local],
    NaN elsewhere.
    """
    local = layer["num_local_experts"]
    if layer["routed"]:
        expert = arguments["topk_ids"].long() - arguments["local_expert_offset"]
        weight = arguments["topk_weights"]
    else:
        names = ("NUM_EXPERTS", "TOP_K", "NUM_GROUPS", "KEPT_GROUPS")
        routing = {name: layer[name.lower()] for name in names}
        routing["NUM_SHARED_EXPERTS"] = layer.get("num_shared_experts", 0)
        with mock.patch.multiple(route_module.problem, RENORM=layer["renorm"], **routing):
            expert, weight = route_module.route_ref(*(arguments[name] for name in ROUTING), local)

    expert = torch.where((expert < 0) | (expert >= local), local, expert).long()
    shape = (len(expert), local + 1)  # the last column: not local
    chosen = torch.zeros(shape, dtype=torch.bool, device=expert.device).scatter_(1, expert, True)
    total = torch.zeros(shape, device=expert.device).scatter_add_(1, expert, weight.float())
    return chosen[:, :-1], torch.where(chosen, total, torch.nan)[:, :-1]


def token_scales(layer, arguments):
    """Return the scales of x, [T, H / 128]."""
    scales = arguments["hidden_states_scale"]
    return scales if layer["routed"] else scales.t()


def reference_halves(layer, arguments, rows):
    """Return up and gate [rows, I] fp32 of rows."""
    forms = {"GATE_FIRST": layer["routed"], "SCALES_ROW_MAJOR": layer["routed"]}
    operands = [arguments[name] for name in [*TOKENS, *GEMM1]]
    with mock.patch.multiple(gemm1_module, **forms):
        g = gemm1_module.gemm1_ref(*operands, rows.permutation, rows.align)
    return g.chunk(2, dim=-1)


def reference_h(layer, arguments, rows, weight):
    """Return h [rows, I] fp32, times the routing weight [T, E_local] of each row."""
    up, gate = reference_halves(layer, arguments, rows)
    with mock.patch.object(swiglu, "LIMIT", layer.get("swiglu_limit")):
        h = swiglu.function_of(SILU | layer)(gate, up)
    return h * weight[rows.token, rows.expert][:, None]


def reference_y(arguments, read_out):
    """Return y [rows, H] bf16 of the h that was read out."""
    rows = read_out.rows
    w2 = arguments["gemm2_weights"]
    h = torch.where(rows.real[:, None], read_out.h, 0)
    ones = torch.ones((len(h), h.shape[1] // BLOCK), device=h.device)
    scale = arguments["gemm2_weights_scale"]
    return gemm2_ref(h, ones, w2, scale, rows.permutation, rows.align, 0, w2.shape[1])


def combined(y, token_rows):
    """Return [T, H] bf16: sums of the tokens' rows of y."""
    output = torch.empty((len(token_rows), y.shape[1]), dtype=torch.bfloat16, device=y.device)
    if not len(y):
        return output.zero_()
    combine_ref(y, token_rows, torch.ones_like(token_rows, dtype=torch.float32), output, 0)
    return output


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
    columns = inter if few else round_up(inter, 256)  # for which there is room
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
        places.append(first * columns * h_split + place)
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
    # [splits, T, H] fp32: few tokens, where several CTAs share output columns
    partial: torch.Tensor | None = None


def h_of(arrays, rows, layer, h_split, few):
    """Return h [rows, I] fp32 of its bytes and scales."""
    inter = layer["intermediate_size"]
    columns = N_BLOCK_COLUMNS if few else BLOCK
    parts = arrays["h"][h_index(rows, inter, h_split, few)].view(torch.float8_e4m3fn)
    scale_places = scale_index(rows, inter // BLOCK, BLOCK // columns, 1 if few else 2)
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


# ---- what is wrong ----


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
