"""hopper_fused stage by stage: a test build hands out route's, permute's, gemm1's and gemm2's
results.
"""

from dataclasses import dataclass

import hopper_faults
import hopper_layouts
import hopper_read_out
import pytest
import stage_build
import stage_inputs
import stage_references
import torch
from every_solution import slow

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
    "qwen3-235b-tp4": (3, 60, 200),  # narrow experts, of three K blocks
}


# ---- on the device ----


def build(layer_key):
    return stage_build.build(stage_build.sources(layer_key))


@pytest.fixture(scope="session")
def libraries():
    """Definition -> compiled test build."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs sm_90")
    return stage_build.build_all(build, COUNTS)


@pytest.mark.gpu
@pytest.mark.parametrize(("layer_key", "num_tokens"), stage_build.cases(COUNTS))
def test_every_stage_is_right(libraries, layer_key, num_tokens):
    layer = stage_inputs.sizes(layer_key)
    tokens = stage_inputs.tokens(layer, num_tokens, DEVICE)
    arguments = tokens | stage_inputs.weights_once(layer_key)

    output, arrays, numbers = stage_build.call(
        libraries[layer_key], layer, arguments, H_SPLIT
    )

    assert ("mask" in arrays) == (num_tokens <= numbers["few_tokens"])
    fault = hopper_faults.first_fault(arrays, numbers, layer, arguments, output)
    assert fault is None, fault


# ---- a broken stage is named ----

NUMBERS = {"few_tokens": 24, "bypass_tokens": 4, "ctas_per_column_tile": 1}
# Groups, and some experts of other ranks.
DS = {
    "hidden_size": 1024,
    "intermediate_size": 256,
    "num_experts": 64,
    "num_local_experts": 16,
    "top_k": 8,
    "num_groups": 8,
    "kept_groups": 4,
    "renorm": False,
    "routed": False,
}
# Experts that are no multiple of 32.
RENORM = {
    "hidden_size": 1024,
    "intermediate_size": 256,
    "num_experts": 40,
    "num_local_experts": 40,
    "top_k": 10,
    "num_groups": 1,
    "kept_groups": 1,
    "renorm": True,
    "routed": False,
}
ROUTED = DS | {"routed": True}


def as_bytes(values, dtype=None):
    """Return a tensor's or a list's values, of this type, as bytes."""
    flat = torch.as_tensor(values, dtype=dtype).flatten()
    return flat.view(torch.uint8)


def int32(values):
    return as_bytes(values, torch.int32)


def int16(values):
    return as_bytes(values, torch.int16)


def scattered(count, index, values):
    """Return bytes of `count` values of one type, NaN or -1 except at these places."""
    num_bytes = count * values.element_size()
    array = torch.full((num_bytes,), 0xFF, dtype=torch.uint8)
    elements = array.view(values.dtype)
    elements[index.flatten()] = values.flatten()
    return array


def quantised(h, h_split, columns):
    """Return parts [h_split, rows, I] as bytes of FP8, and scales [rows, I / columns], of h."""
    blocks = h.unflatten(-1, (-1, columns))
    largest = blocks.abs().amax(-1)
    scale = (largest / 448).clamp(min=2.0**-100)
    left = blocks / scale[..., None]

    parts = []
    for _ in range(h_split):
        part = left.to(torch.float8_e4m3fn)
        parts.append(part)
        left = left - part.float()
    parts = torch.stack(parts).flatten(-2)
    return parts.view(torch.uint8), scale


class RightLayer:
    """Arguments, and the arrays and the output of a layer without a fault, from the plain
    statements.
    """

    def __init__(self, layer, num_tokens, is_few, numbers):
        self.layer = layer
        self.is_few = is_few
        self.numbers = numbers
        self.h_split = numbers["h_split"]
        self.hidden = layer["hidden_size"]
        self.inter = layer["intermediate_size"]
        self.arguments = stage_inputs.tokens(layer, num_tokens, "cpu")
        self.arguments |= stage_inputs.weights(layer, "cpu")

        chosen, weight = stage_references.reference_choice(layer, self.arguments)
        self.choice = hopper_read_out.Choice(chosen, weight)
        if is_few:
            self.rows = hopper_layouts.few_rows(layer, chosen)
        else:
            self.rows = hopper_layouts.many_rows(layer, chosen)
        self.num_rows = len(self.rows.token)
        self.row_weight = self.choice.row_weights(self.rows)

        self.arrays = self.shared_arrays()
        h = hopper_read_out.h_of(self.arrays, self.rows, layer, self.h_split, is_few)
        self.y = stage_references.reference_y(self.arguments, self.rows, h)
        self.output = stage_references.combined(self.y, self.rows.token_rows)
        if is_few:
            self.arrays |= self.few_arrays()
        else:
            self.arrays |= self.many_arrays()

    def shared_arrays(self):
        return {
            "weight": as_bytes(self.choice.weight),
            "x_scale": self.x_scales(),
            **self.h(),
        }

    def x_scales(self):
        blocks = self.hidden // 128
        scales = stage_inputs.token_scales(self.layer, self.arguments)
        scale_by_row = hopper_layouts.values_by_row(scales, self.rows)
        index = hopper_layouts.scale_index(self.rows, blocks)
        return scattered(self.num_rows * blocks, index, scale_by_row)

    def h(self):
        rows = self.rows
        # with one scale
        columns = hopper_layouts.N_BLOCK_COLUMNS if self.is_few else 128
        up, gate = stage_references.reference_halves(self.layer, self.arguments, rows)
        h = torch.nn.functional.silu(gate) * up
        parts, scale = quantised(h, self.h_split, columns)
        scale = scale * self.row_weight[:, None]

        index = hopper_layouts.h_index(rows, self.inter, self.h_split, self.is_few)
        blocks = self.inter // 128
        scale_index = hopper_layouts.scale_index(rows, blocks, 128 // columns)
        return {
            "h": scattered(parts.numel(), index, parts),
            "h_scale": scattered(scale.numel(), scale_index, scale),
        }

    def few_arrays(self):
        rows = self.rows
        x_bytes = self.arguments["hidden_states"].view(torch.uint8)
        x = hopper_layouts.values_by_row(x_bytes, rows)
        x_index = hopper_layouts.x_index(rows, self.hidden)
        arrays = {
            "mask": as_bytes(self.mask()),
            "token": int16(rows.token),
            "m_blocks": int16(self.m_blocks()),
            "list_sizes": int32([len(rows.starts), self.num_rows]),
            "x": scattered(x.numel(), x_index, x),
        }
        if self.numbers["ctas_per_column_tile"] > 1:
            arrays["partial"] = as_bytes(self.partial_sums())
        return arrays

    def m_blocks(self):
        """Return [m_blocks, 4]: expert, rows with a token, and the first row in two words."""
        rows = self.rows
        starts = rows.starts
        rows_from = hopper_read_out.rows_from(rows)
        high_word = torch.zeros_like(starts)
        fields = [rows.expert[starts], rows_from[starts], starts, high_word]
        return torch.stack(fields, 1)

    def mask(self):
        """Return words of 32 experts, each for 32 tokens in turn."""
        num_tokens, experts = self.choice.chosen.shape
        padded_tokens = hopper_layouts.round_up(num_tokens, 32)
        padded_experts = hopper_layouts.round_up(experts, 32)
        bits = torch.zeros(padded_tokens, padded_experts, dtype=torch.long)
        bits[:num_tokens, :experts] = self.choice.chosen

        bits = bits.unflatten(1, (-1, 32))
        word = (bits << torch.arange(32)).sum(-1)
        word = word.to(torch.int32).unflatten(0, (-1, 32))
        return word.transpose(1, 2)

    def partial_sums(self):
        rows = self.rows
        num_tokens = len(self.choice.chosen)
        splits = self.numbers["ctas_per_column_tile"]
        shape = (splits, self.numbers["few_tokens"], self.hidden)
        sums = torch.full(shape, torch.nan)
        sums[:, :num_tokens] = 0

        m_block = (rows.first == rows.number).cumsum(0) - 1
        cta = m_block % splits
        for row in rows.real.nonzero().flatten().tolist():
            sums_of_cta = sums[cta[row]]
            token = rows.token[row]
            sums_of_cta[token] += self.y[row].float()
        return sums

    def many_arrays(self):
        rows = self.rows
        token_rows = hopper_read_out.padded_token_rows(self.layer, rows)
        num_active = int(self.choice.chosen.any(0).sum())
        half = self.hidden // 2
        first_half, second_half = self.y.chunk(2, dim=1)
        return {
            "row_token": int32(rows.token.clamp(min=0)),
            "row_weight": as_bytes(self.row_weight),
            "token_rows": int32(token_rows),
            "queues": int32([0, 0, num_active, self.num_rows]),
            "tiles1": int32(self.tiles(2 * self.inter // 256)),
            "tiles2": int32(self.tiles(half // 256)),
            **self.stored_y(first_half, 0),
            **self.stored_y(second_half, half),
        }

    def tiles(self, columns):
        """Return the fields of every tile, and two entries of none."""
        tiles = []
        for first in self.rows.starts.tolist():
            expert = int(self.rows.expert[first])
            count = int(self.rows.span[first])
            for start in range(0, count, 128):
                n = min(128, count - start)
                for column in range(columns):
                    tiles.append([expert, column, start, n, first, count, n > 64])
        return [*tiles, [-1] * 7, [-1] * 7]

    def stored_y(self, y, first):
        """Return y as gemm2 stores it: bf16, or with h in two parts fp16 and a power of two for
        each row and 128 columns.
        """
        if self.h_split == 1:
            return {f"y{first}": as_bytes(y, torch.bfloat16)}
        blocks = y.float().unflatten(1, (-1, 128))
        largest = blocks.abs().amax(-1)
        scale = largest.frexp().exponent.float().exp2()
        scaled = y / scale.repeat_interleave(128, 1)
        return {
            f"y{first}": as_bytes(scaled, torch.float16),
            f"y_scale{first}": as_bytes(scale),
        }


# array -> the stage that writes it
PERMUTED_FEW = ["list_sizes", "token", "m_blocks", "x", "x_scale"]
PERMUTED_MANY = [
    "row_token",
    "row_weight",
    "token_rows",
    "queues",
    "x_scale",
    "tiles1",
    "tiles2",
]
WRITTEN_BY_GEMM2 = ["y0", "y512", "y_scale0", "y_scale512", "partial"]
STAGES = {
    "mask": "route",
    "weight": "route",
    **dict.fromkeys(PERMUTED_FEW, "permute"),
    **dict.fromkeys(PERMUTED_MANY, "permute"),
    "h": "gemm1 + swiglu_quant",
    "h_scale": "gemm1 + swiglu_quant",
    **dict.fromkeys(WRITTEN_BY_GEMM2, "gemm2"),
}


@dataclass
class BrokenCase:
    """A layer of which one array after the other is spoilt."""

    layer: dict
    is_few: bool  # the one launch for few tokens, not the four kernels for many
    num_tokens: int
    last_stage: str  # which writes the output
    h_split: int = 2
    sharing_ctas: int = 1  # that share output columns


CASES = {
    "few, shared columns": BrokenCase(
        RENORM,
        is_few=True,
        num_tokens=12,
        last_stage="combine",
        sharing_ctas=2,
    ),
    "few, routed": BrokenCase(
        ROUTED,
        is_few=True,
        num_tokens=4,
        last_stage="gemm2 + combine",
    ),
    "many, hi and lo": BrokenCase(
        DS,
        is_few=False,
        num_tokens=24,
        last_stage="combine",
    ),
    "many, routed": BrokenCase(
        ROUTED,
        is_few=False,
        num_tokens=20,
        last_stage="combine",
        h_split=1,
    ),
}
QUICK = ["few, routed", "many, hi and lo"]
SLOW = ["few, shared columns", "many, routed"]


@pytest.mark.parametrize("name", [*QUICK, *map(slow, SLOW)])
def test_a_broken_stage_is_named(name):
    case = CASES[name]
    numbers = NUMBERS | {
        "h_split": case.h_split,
        "ctas_per_column_tile": case.sharing_ctas,
    }
    right = RightLayer(case.layer, case.num_tokens, case.is_few, numbers)

    def fault_of(arrays, output):
        return hopper_faults.first_fault(
            arrays, numbers, case.layer, right.arguments, output
        )

    assert fault_of(right.arrays, right.output) is None
    for array_name, array in right.arrays.items():
        for spoilt in (moved(array), with_other_values(array)):
            fault = fault_of(right.arrays | {array_name: spoilt}, right.output)
            assert fault is not None, array_name
            assert fault.startswith(f"{STAGES[array_name]}: "), (array_name, fault)

    wrong = right.output.clone()
    wrong[1, 200:300] *= 1.5
    assert fault_of(right.arrays, wrong).startswith(f"{case.last_stage}: ")


def moved(array):
    return array.roll(4)


def with_other_values(array):
    """Return the array with an eighth of its bytes, or 64, of another value."""
    other = array.clone()
    written = (array != 0xFF).nonzero().flatten()
    count = max(64, len(written) // 8)
    other[written[:count]] ^= 0x41
    return other
