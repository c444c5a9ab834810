"""Run triton_fused_v2's grouped GEMMs with one tile at a time: what they compute, and how long the device takes."""

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from statistics import median
from types import ModuleType

import torch
from candidates import Candidate
from harness.judging.calling import random_fp8

FLUSH_BYTES = 2**29  # ten times the L2 of an H200; writing it also hides the host's part of a launch
TOLERANCE = 0.05  # of a row's norm; a row has 256 values or more, of which a wrong tile spoils 64 or more

Call = Callable[[], list[torch.Tensor]]


def operands(sizes: tuple[int, int, int], num_tokens: int, device: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens [T, H], w13 [E, 2I, H] and w2 [E, H, I], each with its scales; normal values, the same in every run."""
    local, hidden, inter = sizes
    blocks, h_blocks, source = hidden // 128, inter // 128, torch.Generator(device).manual_seed(0)
    shapes = [
        ((num_tokens, hidden), (blocks, num_tokens)),
        ((local, 2 * inter, hidden), (local, 2 * h_blocks, blocks)),
        ((local, hidden, inter), (local, blocks, h_blocks)),
    ]
    scale = partial(torch.randn, generator=source, device=device)
    return [(random_fp8(shape, device, source), scale(scales)) for shape, scales in shapes]


def modules(main: ModuleType) -> list[ModuleType]:
    """The solution's layer, permute and tiles."""
    return [import_module(f"{main.__package__}.common.triton.{name}") for name in ("layer", "permute", "tiles")]


class Gemms:
    """The two GEMMs with one routing: expert [T, top-k] int32, local numbers, -1 for another rank's."""

    def __init__(self, main: ModuleType, operands: list, expert: torch.Tensor, multiprocessors: int):
        self.expert, self.multiprocessors = expert, multiprocessors
        self.layer, self.stage, self.tiles = modules(main)
        (x, x_scale), self.w13, self.w2 = operands
        self.x = x[: len(expert)], x_scale[:, : len(expert)].contiguous()
        self.permutation = cache(self.permutation)

    def permutation(self, block_m: int):
        """By the stage's plain statement: its kernels are not what is timed, and take seconds to compile."""
        found = self.stage.permute_ref(self.expert, len(self.w13[0]), block_m)
        return self.stage.Permutation(*(part if part is None else part.to(self.x[0].device) for part in found))

    def choice(self, gemm1: Candidate, gemm2: Candidate | None = None):
        made = [each and self.tiles.Tile(*each[2:], each.per_sm * self.multiprocessors) for each in (gemm1, gemm2)]
        return self.tiles.Choice(*made, gemm1.fused, True)

    def first(self, choice) -> Call:
        """What runs gemm1 once; it returns h and its scales."""
        permutation = self.permutation(choice.gemm1.block_m)
        return lambda: list(self.layer.gemm1_swiglu(*self.x, *self.w13, permutation, choice))

    def second(self, choice, h: list[torch.Tensor]) -> Call:
        """What runs gemm2 once on what gemm1 gave; it returns y in column slices."""
        permutation, hidden = self.permutation(choice.gemm1.block_m), self.w2[0].shape[1]
        rows = len(permutation.pair_of_row)
        width = hidden // self.layer.column_slices(rows, hidden)

        def run():
            slices = []
            for column in range(0, hidden, width):
                slices.append(torch.empty(rows, width, dtype=torch.bfloat16, device=h[0].device))
                self.layer.gemm2_columns(*h, *self.w2, permutation, column, slices[-1], choice)
            return slices

        return run

    def both(self, choice) -> Call:
        first = self.first(choice)
        return lambda: self.second(choice, first())()

    def values(self, stage: str, call: Call, choice) -> torch.Tensor:
        """h or y of the local pairs, [pairs, columns] fp32 in pair order.

        Fresh memory is NaN, so that a tile that writes nothing cannot pass with the previous one's result.
        """
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            found = call()
        finally:
            torch.use_deterministic_algorithms(False)
        place = self.permutation(choice.gemm1.block_m).row_of_pair.flatten().long()
        rows = place[place >= 0] if choice.tma or stage == "gemm2" else (place >= 0).nonzero().flatten()
        if stage == "gemm2":
            return torch.cat([y[rows] for y in found], 1).float()
        h, scale = found
        return h.view(torch.uint8)[rows].view(h.dtype).float() * scale[rows].repeat_interleave(128, 1)


def difference(got: torch.Tensor, wanted: torch.Tensor) -> str | None:
    """A line where rows [N, columns] differ by more than TOLERANCE of the wanted row's norm, or are not finite."""
    wrong = ~((got - wanted).norm(dim=1) <= TOLERANCE * wanted.norm(dim=1))
    return f"{int(wrong.sum())} of {len(wanted)} rows differ from the present tiles'" if wrong.any() else None


def times_us(calls: list[Call], repeats: int) -> list[float]:
    """Median microseconds of each call: device time alone, calls interleaved, L2 flushed before each."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    events = [[] for _ in calls]
    for _ in range(repeats):
        for call, found in zip(calls, events, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.zero_()
            start.record()
            call()
            end.record()
            found.append((start, end))
    torch.cuda.synchronize()
    return [median(1000 * start.elapsed_time(end) for start, end in found) for found in events]
