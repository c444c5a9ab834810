"""Run triton_fused_v2's two grouped GEMMs with a given tile: their results, and the device's time.

tune.py and prune.py call it. In all functions `choice` is the solution's Choice (tiles.py), or an
object of `choice_of` with its fields.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from statistics import median
from types import ModuleType

import torch
from candidates import BLOCK_MS
from moebench.judging.calling import random_fp8

# Ten times the L2 of an H200; writing it also hides the host's part of a launch.
FLUSH_BYTES = 2**29
# Largest error of a row, relative to its norm. A row has 256 values or more, of which a wrong tile
# spoils 64 or more.
TOLERANCE = 0.05


@dataclass(frozen=True)
class PreparedLayer:
    """A layer with one routing, whose GEMMs can be run with any tile."""

    code: ModuleType  # the solution's layer.py
    expert: torch.Tensor  # [T, top-k] int32, local numbers
    x: tuple[torch.Tensor, torch.Tensor]  # with its scales, as the next two
    w13: tuple[torch.Tensor, torch.Tensor]
    w2: tuple[torch.Tensor, torch.Tensor]
    permutations: dict[int, object]  # by BLOCK_M
    # "gemm1" or "gemm2" -> what `values` returns with the tiles that the solution has now
    expected: dict[str, torch.Tensor] = field(default_factory=dict)


def operands(
    sizes: tuple[int, int, int], num_tokens: int, device: str
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return tokens [T, H], w13 [E, 2I, H] and w2 [E, H, I] in FP8, each with its scales.

    sizes: (E, H, I). Values are drawn from a normal distribution, the same in every run.
    """
    experts, hidden, intermediate = sizes
    fp8 = partial(random_fp8, device=device, source=None)
    fp32 = partial(torch.randn, device=device)
    torch.manual_seed(0)

    gate_and_up = 2 * intermediate
    hidden_blocks = hidden // 128
    x = fp8((num_tokens, hidden))
    x_scale = fp32(hidden_blocks, num_tokens)
    w13 = fp8((experts, gate_and_up, hidden))
    w13_scale = fp32(experts, gate_and_up // 128, hidden_blocks)
    w2 = fp8((experts, hidden, intermediate))
    w2_scale = fp32(experts, hidden_blocks, intermediate // 128)
    return [(x, x_scale), (w13, w13_scale), (w2, w2_scale)]


def prepare(package: str, tensors: list, expert: torch.Tensor) -> PreparedLayer:
    """Return a layer with one routing, and `expected` empty.

    package: name of the Python package of the solution that FIB has built. tensors: what `operands`
    returned, for T tokens or more. expert: [T, top-k] int32 on the CPU, local numbers, -1 for an
    expert of another rank.
    """
    code = import_module(f"{package}.common.triton.layer")
    permute = import_module(f"{package}.common.triton.rows.permute")
    (x, x_scale), w13, w2 = tensors
    num_tokens = len(expert)

    local_experts = len(w13[0])
    permutations = {}
    for block_m in BLOCK_MS:
        # In plain torch: permute's kernels are not what is timed, and take seconds to compile.
        *parts, _ = permute.permute_ref(expert, local_experts, block_m)
        on_device = [part.to(x.device) for part in parts]
        permutations[block_m] = permute.Permutation(*on_device, None)
    return PreparedLayer(
        code=code,
        expert=expert,
        x=(x[:num_tokens], x_scale[:, :num_tokens].contiguous()),
        w13=w13,
        w2=w2,
        permutations=permutations,
    )


def gemm1(layer: PreparedLayer, choice) -> tuple[torch.Tensor, torch.Tensor]:
    """Return h [rows, I] fp8 and its scales [rows, I/128] fp32."""
    permutation = layer.permutations[choice.gemm1.block_m]
    return layer.code.gemm1_swiglu(*layer.x, *layer.w13, permutation, choice)


def gemm2(layer: PreparedLayer, choice, h: tuple | None = None) -> torch.Tensor:
    """Return y [slices, rows, H/slices] bf16.

    h: what gemm1 returned; without it gemm1 is run first.
    """
    if h is None:
        h = gemm1(layer, choice)
    permutation = layer.permutations[choice.gemm1.block_m]
    rows = len(permutation.pair_of_row)
    hidden = layer.w2[0].shape[1]
    slices = layer.code.column_slices(rows, hidden)

    shape = (slices, rows, hidden // slices)
    y = torch.empty(shape, dtype=torch.bfloat16, device=h[0].device)
    for number, part in enumerate(y):
        first_column = number * hidden // slices
        layer.code.gemm2_columns(*h, *layer.w2, permutation, first_column, part, choice)
    return y


def values(stage: str, layer: PreparedLayer, choice) -> torch.Tensor:
    """Return h (stage "gemm1") or y (stage "gemm2") of the local pairs, in the pairs' order.

    The result is fp32 [local pairs, columns]. choice.tma has to be true, so that h is in expert
    order. From this call until `times_us` torch fills new memory with NaN, so that a tile that
    writes nothing does not pass with the result of the previous one.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)
    if stage == "gemm1":
        h, scale = gemm1(layer, choice)
        slices = [h.float() * scale.repeat_interleave(128, 1)]
    else:
        slices = list(gemm2(layer, choice))

    permutation = layer.permutations[choice.gemm1.block_m]
    row_of_pair = permutation.row_of_pair.flatten().long()
    local_rows = row_of_pair[row_of_pair >= 0]
    values_of_pairs = [part[local_rows] for part in slices]
    return torch.cat(values_of_pairs, dim=1).float()


def check(output: torch.Tensor, expected: torch.Tensor) -> None:
    """Raise ValueError where rows [N, columns] differ by more than TOLERANCE, or are not finite."""
    difference = (output - expected).norm(dim=1)
    is_wrong = ~(difference <= TOLERANCE * expected.norm(dim=1))
    if is_wrong.any():
        count = int(is_wrong.sum())
        raise ValueError(
            f"{count} of {len(expected)} rows differ from the present tiles'"
        )


def times_us(calls: list[Callable], repeats: int) -> list[float]:
    """Return the median device time of each call, in microseconds, over `repeats` runs.

    The calls take turns, and L2 is flushed before each.
    """
    torch.use_deterministic_algorithms(False)
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    events = []
    for call in calls * repeats:
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        flush.zero_()
        start.record()
        call()
        end.record()
        events.append((start, end))
    torch.cuda.synchronize()

    us = [1000 * start.elapsed_time(end) for start, end in events]
    medians = []
    for number in range(len(calls)):
        us_of_call = us[number :: len(calls)]
        medians.append(median(us_of_call))
    return medians
