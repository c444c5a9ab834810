"""Check and time every compiled tile of cutlass_grouped: what solutions/cutlass_grouped/tiles.py is
chosen from.

Needs a Hopper GPU. For each token count, routed as the workloads are, every tile is used in gemm1
and then in gemm2, beside the chosen tile of the other GEMM: the layer's median device time, L2
flushed before each call, and the share of its values within each tolerance. Exit status: 0, 1 for a
wrong answer or without a GPU, 2 for bad arguments.
"""

import argparse
import sys
from functools import partial
from itertools import product

import torch
from flashinfer_bench.compile import BuilderRegistry
from moebench.core import paths
from moebench.core.arguments import count
from moebench.core.errors import CannotRun, exit_with
from moebench.judging.calling import seeded_inputs
from moebench.judging.fib import normalize_result
from moebench.judging.tolerances import TOLERANCES, matched_ratios
from moebench.operators.catalogue import definition
from moebench.operators.routing_kinds import tensors, workload
from moebench.packing.pack import pack
from triton.testing import do_bench

SOLUTION = "cutlass_grouped"


def main(argv: list[str]) -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("time_tiles.py", description=__doc__, formatter_class=form)
    parser.add_argument("tokens", nargs="+", type=count(), metavar="T")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        raise CannotRun("timing tiles needs a CUDA device; torch sees none")
    full, registry, wrong = definition("full"), BuilderRegistry.get_instance(), 0
    runnable, reference = (
        registry.build(full, pack(SOLUTION)["full"]),
        registry.build_reference(full),
    )
    module = sys.modules[runnable._callable.__module__]
    names = sorted(
        path.stem.removeprefix("sm90_")
        for path in (paths.SOLUTIONS / SOLUTION).glob("gemms/sm90_*_*.cu")
    )
    address = {name: module._gemms.find_tile(name) for name in names}
    for num_tokens in args.tokens:
        routing, (_, drawn) = (make("skewed", num_tokens, "full") for make in (tensors, workload))
        (inputs,) = seeded_inputs(full, drawn, 1, "cuda", routing)
        (expected,) = normalize_result(full, reference(*inputs), "cuda")
        chosen = module.choose_tiles(num_tokens)
        print(f"T={num_tokens}: chosen {chosen[0]}, {chosen[1]}")
        for at, name in product(range(2), address):
            pair = [address[tile] for tile in chosen]
            pair[at] = address[name]
            output = torch.full_like(expected, float("nan"))
            call = partial(module._layer.run_layer, *inputs, output, *pair)
            call()
            shares = matched_ratios(output, expected)
            right = shares["relaxed"] >= TOLERANCES["relaxed"].ratio
            wrong += not right
            text = f"{do_bench(call, rep=20, return_mode='median'):.4f} ms" if right else "WRONG"
            matched = "  ".join(f"{tolerance} {share:.4f}" for tolerance, share in shares.items())
            print(f"  gemm{at + 1} {name:24} {text:12} {matched}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    exit_with(main)
