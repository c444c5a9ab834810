"""Check and time every compiled tile of cutlass_grouped, for the table in its tiles.py.

    python tools/cutlass_tiles/time_tiles.py T ...

For each number of tokens T, routed as in the workloads, each tile is tried in gemm1 and then in
gemm2, while the other GEMM has the tile that tiles.py chooses. The layer's median device time is
printed, with L2 flushed before each call, and the share of the output's values within each
tolerance.

Needs a Hopper GPU. Exit status: 0, 1 for a wrong answer or without a GPU, 2 for bad arguments.
"""

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import torch
from flashinfer_bench import Definition
from flashinfer_bench.compile import BuilderRegistry
from moebench.core import paths
from moebench.core.arguments import count
from moebench.core.errors import CannotRun, exit_with
from moebench.judging import calling
from moebench.judging.tolerances import TOLERANCES, matched_ratios
from moebench.operators.catalogue import definition
from moebench.operators.routing.kinds import tensors, workload
from moebench.packing.pack import pack
from triton.testing import do_bench

SOLUTION = "cutlass_grouped"
LAYER_KEY = "full"  # DeepSeek-V3's layer on one of eight ranks
GEMMS = ("gemm1", "gemm2")


@dataclass(frozen=True)
class Tiles:
    """The built solution, and its compiled tiles."""

    module: ModuleType  # the solution's main.py
    addresses: dict[str, int]  # name of a tile -> address of its GEMM


@dataclass(frozen=True)
class Batch:
    """The arguments of a call, and the reference's output for them."""

    inputs: list
    expected: torch.Tensor


def build_tiles(layer: Definition) -> Tiles:
    """Build the solution for a definition; return it with every tile that it has a source for."""
    packed = pack(SOLUTION)[LAYER_KEY]
    runnable = BuilderRegistry.get_instance().build(layer, packed)
    module = sys.modules[runnable._callable.__module__]

    folder = paths.SOLUTIONS / SOLUTION / "gemms"
    addresses = {}
    for source in sorted(folder.glob("sm90_*_*.cu")):
        name = source.stem.removeprefix("sm90_")
        addresses[name] = module._gemms.find_tile(name)
    return Tiles(module, addresses)


def draw_batch(layer: Definition, num_tokens: int) -> Batch:
    """Return the arguments of a call with num_tokens tokens, routed as in the workloads."""
    routing = tensors("skewed", num_tokens, LAYER_KEY)
    _, drawn = workload("skewed", num_tokens, LAYER_KEY)
    (inputs,) = calling.seeded_inputs(layer, drawn, 1, "cuda", routing)
    reference = BuilderRegistry.get_instance().build_reference(layer)
    (expected,) = calling.call(layer, reference, inputs, "cuda")
    return Batch(inputs, expected)


def time_tile(tiles: Tiles, batch: Batch, pair: list[int]) -> tuple[str, bool]:
    """Return a line to print for a pair of tiles, and whether the layer's output is right.

    pair: addresses of gemm1's and gemm2's tile.
    """
    output = torch.full_like(batch.expected, float("nan"))
    run_layer = tiles.module._layer.run_layer
    call = partial(run_layer, *batch.inputs, output, *pair)
    call()

    shares = matched_ratios(output, batch.expected)
    is_right = shares["relaxed"] >= TOLERANCES["relaxed"].ratio
    result = "WRONG"
    if is_right:
        ms = do_bench(call, rep=20, return_mode="median")
        result = f"{ms:.4f} ms"

    line = f"{result:12}"
    for tolerance, share in shares.items():
        line += f"  {tolerance} {share:.4f}"
    return line, is_right


def time_all(tiles: Tiles, batch: Batch, num_tokens: int) -> int:
    """Print a line for each tile in each GEMM, and return how many gave a wrong output."""
    chosen = tiles.module.choose_tiles(num_tokens)
    print(f"T={num_tokens}: chosen {', '.join(chosen)}")
    chosen_pair = [tiles.addresses[name] for name in chosen]

    wrong = 0
    for number, gemm in enumerate(GEMMS):
        for name, address in tiles.addresses.items():
            pair = list(chosen_pair)
            pair[number] = address
            line, is_right = time_tile(tiles, batch, pair)
            print(f"  {gemm} {name:24} {line}", flush=True)
            wrong += not is_right
    return wrong


def main(argv: list[str]) -> int:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "time_tiles.py", description=__doc__, formatter_class=layout
    )
    parser.add_argument("tokens", nargs="+", type=count(), metavar="T")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        raise CannotRun("timing tiles needs a CUDA device; torch sees none")

    layer = definition(LAYER_KEY)
    tiles = build_tiles(layer)
    wrong = 0
    for num_tokens in args.tokens:
        batch = draw_batch(layer, num_tokens)
        wrong += time_all(tiles, batch, num_tokens)
    return 1 if wrong else 0


if __name__ == "__main__":
    exit_with(main)
