"""Run the grouped GEMMs of triton_fused_v2 one variant at a time: what they compute, and how long it takes."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from flashinfer_bench.compile import BuilderRegistry

from harness.judging.calling import random_fp8
from harness.operators import catalogue
from harness.packing.pack import pack
from harness.tuning.record import Head
from harness.tuning.routing import Layer
from harness.tuning.space import Pair, TileSize, Variant

SOLUTION = "triton_fused_v2"
FLUSH_BYTES = 2**29  # ten times the L2 of an H200; writing it also hides the host's part of a launch
TOLERANCE = 0.05  # of a row's norm; a row holds 2048 values and more, of which a wrong tile spoils 64 or more

Call = Callable[[], list[torch.Tensor]]

packed = cache(pack)


def built(geometry: str) -> ModuleType:
    """The solution's entry module, from FIB's builder."""
    runnable = BuilderRegistry.get_instance().build(catalogue.definition(geometry), packed(SOLUTION)[geometry])
    return import_module(runnable.metadata.misc["module_name"])


def tiles_of(main: ModuleType) -> ModuleType:
    """The solution's module tiles, beside its entry module."""
    return import_module(f"{main.__package__}.tiles")


def table_name(main: ModuleType, head: Head) -> str:
    """Name, without .py, of the solution's table for a GPU and geometry."""
    return tiles_of(main).table_name(head.provenance.hardware, *head.sizes)


def present(main: ModuleType, head: Head, multiprocessors: int, share: float, num_tokens: int) -> Pair:
    """What the solution runs at a token count now; arguments as its `choose` has them."""
    gpu = head.provenance.hardware
    choice = tiles_of(main).choose(head.architecture, gpu, multiprocessors, head.sizes, share, num_tokens)
    padded_to = choice.gemm1.block_m
    return (
        Variant("gemm1", TileSize(*choice.gemm1[:6]), padded_to, choice.tma, choice.fused),
        Variant("gemm2", TileSize(*choice.gemm2[:6]), padded_to, choice.tma),
    )


def random_operands(sizes: tuple[int, int, int], top_k: int, num_tokens: int, device: str) -> dict[str, torch.Tensor]:
    """Operands by name for up to num_tokens tokens, normal with normal scales, as FIB draws them; h in pair order."""
    local, hidden, inter = sizes
    generator = torch.Generator(device).manual_seed(0)

    def fp8(*shape: int) -> torch.Tensor:
        return random_fp8(shape, device, generator)

    def fp32(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device)

    pairs, x_blocks, h_blocks = num_tokens * top_k, hidden // 128, inter // 128
    return {
        "hidden_states": fp8(num_tokens, hidden),
        "hidden_states_scale": fp32(x_blocks, num_tokens),
        "gemm1_weights": fp8(local, 2 * inter, hidden),
        "gemm1_weights_scale": fp32(local, 2 * h_blocks, x_blocks),
        "gemm2_weights": fp8(local, hidden, inter),
        "gemm2_weights_scale": fp32(local, x_blocks, h_blocks),
        "h": fp8(pairs, inter),
        "h_scale": fp32(pairs, h_blocks).abs() + 0.5,
    }


class Bench:
    """The GEMMs at one token count: operands cut to it; permutations and ordered h, made at first use."""

    def __init__(self, main: ModuleType, operands: dict[str, torch.Tensor], layers: list[Layer], present: Pair):
        self.main, self.tiles = main, tiles_of(main)
        self.layers, self.present = layers, present
        self.num_tokens, top_k = layers[0].expert.shape
        self.x = operands["hidden_states"][: self.num_tokens]
        self.x_scale = operands["hidden_states_scale"][:, : self.num_tokens].contiguous()
        self.h, self.h_scale = (operands[name][: self.num_tokens * top_k] for name in ("h", "h_scale"))
        self.w13 = operands["gemm1_weights"], operands["gemm1_weights_scale"]
        self.w2 = operands["gemm2_weights"], operands["gemm2_weights_scale"]
        self.device = self.h.device
        self.multiprocessors = main.gpu_of(self.device)[2]
        self.permutation, self.ordered_h = cache(self.permutation), cache(self.ordered_h)

    def permutation(self, layer: Layer, padded_to: int):
        """By the stage's plain statement: its kernels are not what is timed, and take seconds to compile for each T."""
        stage = import_module(self.main.permute.__module__)
        found = stage.permute_ref(layer.expert, len(self.w13[0]), padded_to)
        return stage.Permutation(*(part if part is None else part.to(self.device) for part in found))

    def ordered_h(self, layer: Layer, padded_to: int) -> tuple[torch.Tensor, torch.Tensor]:
        """h and its scales in expert order; rows of padding are zero."""
        permutation = self.permutation(layer, padded_to)
        place = permutation.row_of_pair.flatten().long()
        local, rows = place >= 0, len(permutation.pair_of_row)
        h = torch.zeros(rows, self.h.shape[1], dtype=torch.uint8, device=self.device)
        h[place[local]] = self.h.view(torch.uint8)[local]
        scale = torch.ones(rows, self.h_scale.shape[1], device=self.device)
        scale[place[local]] = self.h_scale[local]
        return h.view(torch.float8_e4m3fn), scale

    def call(self, variant: Variant, layer: Layer) -> Call:
        """What runs the variant once; it returns h and its scales (gemm1) or y in column slices (gemm2)."""
        main, size = self.main, variant.tile
        permutation = self.permutation(layer, variant.padded_to)
        tile = self.tiles.Tile(*size, size.per_sm * self.multiprocessors)
        if variant.stage == "gemm1":
            choice = self.tiles.Choice(tile, None, variant.fused, variant.tma)
            return lambda: list(main.first_product(self.x, self.x_scale, *self.w13, permutation, choice))
        h = self.ordered_h(layer, variant.padded_to) if variant.tma else (self.h, self.h_scale)
        rows, hidden = len(permutation.pair_of_row), self.w2[0].shape[1]
        width = hidden // main.column_slices(rows, hidden)

        def gemm2():
            slices = []
            for first in range(0, hidden, width):
                slices.append(torch.empty(rows, width, dtype=torch.bfloat16, device=self.device))
                main.gemm2(*h, *self.w2, permutation, first, slices[-1], tile, variant.tma)
            return slices

        return gemm2

    def outputs(self, variant: Variant, layer: Layer) -> torch.Tensor:
        """Values of the layer's local pairs in pair order, fp32, the same for all variants.

        Fresh memory is NaN, so that a variant that writes nothing cannot pass with the previous one's result.
        """
        call = self.call(variant, layer)
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            found = call()
        finally:
            torch.use_deterministic_algorithms(False)
        place = self.permutation(layer, variant.padded_to).row_of_pair.flatten().long()
        local = place >= 0
        if variant.stage == "gemm2":
            return torch.cat([y[place[local]] for y in found], 1).float()
        rows = place[local] if variant.tma else local.nonzero().flatten()
        h, scale = found
        return h.view(torch.uint8)[rows].view(h.dtype).float() * scale[rows].repeat_interleave(128, 1)


def difference(got: torch.Tensor, wanted: torch.Tensor) -> str | None:
    """A line where rows [N, columns] differ by more than TOLERANCE of the wanted row's norm, or are not finite."""
    apart = (got - wanted).norm(dim=1)
    wrong = ~(apart <= TOLERANCE * wanted.norm(dim=1))
    return f"differs from the present tiles in {int(wrong.sum())} of {len(wanted)} rows" if wrong.any() else None


def event_times(calls: list[Call], repeats: int) -> list[list[float]]:
    """Microseconds of `repeats` runs of each call, interleaved, L2 flushed before each; device time alone."""
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
    return [[1000 * start.elapsed_time(end) for start, end in found] for found in events]
