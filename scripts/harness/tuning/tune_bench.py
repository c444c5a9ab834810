"""Run the grouped products of triton_fused_v2 one variant at a time: what they compute, and how long it takes."""

import statistics
from collections.abc import Callable
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

import torch
from flashinfer_bench import Definition, Workload
from flashinfer_bench.bench.utils import gen_inputs
from flashinfer_bench.compile import BuilderRegistry

from definitions.moe_fp8_block_scale import GEOMETRIES, NUM_LOCAL_EXPERTS, definition
from harness.packing import pack
from harness.tuning.tune_record import Head
from harness.tuning.tune_routing import TOP_K, Layer
from harness.tuning.tune_space import TileSize, Variant

SOLUTION = "triton_fused_v2"
FLUSH_BYTES = 2**29  # ten times the L2 of an H200; writing it also hides the host's part of a launch
TOLERANCE = 0.05  # of a row's length; a row holds 2048 values and more, of which a wrong tile spoils 64 or more

Pair = tuple[Variant, Variant]  # of gemm1 and of gemm2
Call = Callable[[], list[torch.Tensor]]
Timer = Callable[[list[Call], int], list[list[float]]]


def built(geometry: str) -> ModuleType:
    """The solution's entry module, from FIB's builder."""
    runnable = BuilderRegistry.get_instance().build(definition(geometry), pack.pack(SOLUTION)[geometry])
    return import_module(runnable.metadata.misc["module_name"])


def sizes_of(geometry: str) -> dict[str, int]:
    sizes = GEOMETRIES[geometry]
    return {
        "local_experts": NUM_LOCAL_EXPERTS,
        "hidden": sizes["hidden_size"],
        "intermediate": sizes["intermediate_size"],
    }


def table_name(main: ModuleType, head: Head) -> str:
    """Name, without .py, of the solution's table for a GPU and geometry."""
    tiles = import_module(f"{main.__package__}.tiles")
    return tiles.table_name(head.gpu, head.local_experts, head.hidden, head.intermediate)


def present(main: ModuleType, head: Head, num_tokens: int) -> Pair:
    """What the solution runs at a token count as it stands. Raises ValueError where it has no tiles."""
    tiles = import_module(f"{main.__package__}.tiles")
    geometry = head.local_experts, head.hidden, head.intermediate
    choice = tiles.choose(head.architecture, head.gpu, 1, geometry, num_tokens)
    padded_to = choice.gemm1.block_m
    return (
        Variant("gemm1", TileSize(*choice.gemm1[:6]), padded_to, choice.tma, choice.fused),
        Variant("gemm2", TileSize(*choice.gemm2[:6]), padded_to, choice.tma),
    )


def random_operands(full: Definition, num_tokens: int, device: str) -> dict[str, torch.Tensor]:
    """FIB's random inputs by name, and h with its scales in pair order, for up to num_tokens tokens."""
    torch.manual_seed(0)
    inputs = {name: {"type": "random"} for name in full.inputs}
    inputs |= {name: {"type": "scalar", "value": 0} for name in ("local_expert_offset", "routed_scaling_factor")}
    workload = Workload(axes={"seq_len": num_tokens}, inputs=inputs, uuid="tune")
    operands = dict(zip(full.inputs, gen_inputs(full, workload, device), strict=True))
    inter = operands["gemm2_weights"].shape[2]
    pairs = num_tokens * TOP_K
    operands["h"] = torch.randn(pairs, inter, device=device, dtype=torch.bfloat16).to(torch.float8_e4m3fn)
    operands["h_scale"] = torch.rand(pairs, inter // 128, device=device) + 0.5
    return operands


@contextmanager
def poisoned_memory():
    """Fresh memory holds NaN, so that a variant that writes nothing is not saved by the one before it."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


class Bench:
    """The products at one token count: operands cut to it, and each layer's permutations, made when first needed."""

    def __init__(self, main: ModuleType, operands: dict[str, torch.Tensor], layers: list[Layer], present: Pair):
        self.main = main
        self.tiles = import_module(f"{main.__package__}.tiles")
        self.layers = layers
        self.present = present
        self.num_tokens = len(layers[0].expert)
        self.operands = operands | {
            "hidden_states": operands["hidden_states"][: self.num_tokens],
            "hidden_states_scale": operands["hidden_states_scale"][:, : self.num_tokens].contiguous(),
        }
        self.device = operands["h"].device
        self.multiprocessors = main.gpu_of(self.device)[2]
        self._permutations = {}
        self._h = {}

    def tile(self, size: TileSize):
        return self.tiles.Tile(*size, size.per_sm * self.multiprocessors)

    def permutation(self, layer: Layer, padded_to: int):
        key = layer.name, padded_to
        if key not in self._permutations:
            expert = layer.expert.to(self.device)
            self._permutations[key] = self.main.permute(expert, self.operands["gemm1_weights"].shape[0], padded_to)
        return self._permutations[key]

    def h(self, layer: Layer, variant: Variant) -> tuple[torch.Tensor, torch.Tensor]:
        """h and its scales in the order that the variant reads."""
        h, h_scale = (self.operands[name][: self.num_tokens * TOP_K] for name in ("h", "h_scale"))
        if not variant.tma:
            return h, h_scale
        key = layer.name, variant.padded_to
        if key not in self._h:
            permutation = self.permutation(layer, variant.padded_to)
            place = permutation.row_of_pair.flatten().long()
            local = place >= 0
            rows = len(permutation.token_of_row)
            in_order = torch.zeros(rows, h.shape[1], dtype=torch.uint8, device=self.device)
            in_order[place[local]] = h.view(torch.uint8)[local]
            scales = torch.ones(rows, h_scale.shape[1], device=self.device)
            scales[place[local]] = h_scale[local]
            self._h[key] = in_order.view(torch.float8_e4m3fn), scales
        return self._h[key]

    def call(self, variant: Variant, layer: Layer) -> Call:
        """What runs the variant once; it returns h and its scales (gemm1) or y in column slices (gemm2)."""
        main, o = self.main, self.operands
        permutation = self.permutation(layer, variant.padded_to)
        tile = self.tile(variant.tile)
        if variant.stage == "gemm1":
            choice = self.tiles.Choice(tile, None, variant.fused, variant.tma)
            names = ("hidden_states", "hidden_states_scale", "gemm1_weights", "gemm1_weights_scale")
            return lambda: list(main.first_product(*(o[name] for name in names), permutation, choice))
        h, h_scale = self.h(layer, variant)
        rows, hidden = len(permutation.token_of_row), o["gemm2_weights"].shape[1]
        width = hidden // main.column_slices(rows, hidden)

        def second_product():
            slices = []
            for first in range(0, hidden, width):
                slices.append(torch.empty(rows, width, dtype=torch.bfloat16, device=self.device))
                weights = o["gemm2_weights"], o["gemm2_weights_scale"]
                main.gemm2(h, h_scale, *weights, permutation, first, slices[-1], tile, variant.tma)
            return slices

        return second_product

    def by_pair(self, variant: Variant, layer: Layer, outputs: list[torch.Tensor]) -> torch.Tensor:
        """The values of the layer's local pairs, fp32, in the order of the pairs: the same for all variants."""
        place = self.permutation(layer, variant.padded_to).row_of_pair.flatten().long()
        local = place >= 0
        if variant.stage == "gemm2":
            return torch.cat([y[place[local]] for y in outputs], 1).float()
        rows = place[local] if variant.tma else local.nonzero().flatten()
        h, scale = outputs
        return h.view(torch.uint8)[rows].view(h.dtype).float() * scale[rows].repeat_interleave(128, 1)

    def outputs(self, variant: Variant, layer: Layer) -> torch.Tensor:
        """by_pair of a call into poisoned memory; raises whatever the call raises."""
        call = self.call(variant, layer)
        with poisoned_memory():
            return self.by_pair(variant, layer, call())


def difference(got: torch.Tensor, wanted: torch.Tensor) -> str | None:
    """A line where rows [N, columns] differ by more than TOLERANCE of the wanted row's length, or are not finite."""
    apart = (got - wanted).norm(dim=1)
    wrong = ~(apart <= TOLERANCE * wanted.norm(dim=1))
    if not wrong.any():
        return None
    return f"differs from the first candidate in {int(wrong.sum())} of {len(wanted)} rows"


def event_times(calls: list[Call], repeats: int) -> list[list[float]]:
    """Microseconds of `repeats` runs of each call, turn about, L2 flushed before each; device time alone."""
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


def medians(times: list[list[float]]) -> list[float]:
    return [statistics.median(found) for found in times]
