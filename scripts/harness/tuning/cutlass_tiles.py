"""Check and time every compiled tile of cutlass_grouped: what solutions/cutlass_grouped/tiles.py is chosen from.

    python -m harness.tuning.cutlass_tiles 1 7 57 901 14107

Needs a Hopper GPU. Routing is the workloads' ("real" of moebench sweep), inputs are FIB's. For each token count every
tile is used in gemm1 and then in gemm2, beside the chosen tile of the other GEMM: its answer against the reference, and
the median device time of 20 calls, L2 flushed before each; then the time of each kernel with the chosen tiles. Exit
status: 0, 1 for a wrong answer or without a GPU, 2 for bad arguments.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from statistics import median

import torch
from flashinfer_bench.bench.evaluators.utils import normalize_result
from flashinfer_bench.compile import BuilderRegistry
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from harness.core import paths
from harness.core.arguments import count
from harness.core.errors import CannotRun, exit_with
from harness.judging.sweep import random_inputs, with_routing
from harness.judging.tolerances import TOLERANCES, matched_ratios
from harness.operators.catalogue import definition
from harness.operators.routing_kinds import tensors
from harness.packing import pack
from harness.packing.stages import plain_name
from harness.tuning.bench import event_times

REPEATS = 20


def kernel_times(call: Callable[[], None]) -> list[tuple[str, float]]:
    """(kernel, mean microseconds) of each launch of a call, in order; CUTLASS's are all called device_kernel."""
    calls = 5
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    kernels = [e for e in found.events() if e.device_type == DeviceType.CUDA]
    kernels.sort(key=lambda e: e.time_range.start)
    launches = [kernels[at :: len(kernels) // calls] for at in range(len(kernels) // calls)]
    return [(plain_name(same[0].name), sum(e.time_range.elapsed_us() for e in same) / len(same)) for same in launches]


def main(argv: list[str]) -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(f"python -m {__spec__.name}", description=__doc__, formatter_class=form)
    parser.add_argument("tokens", nargs="+", type=count())
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        raise CannotRun("timing tiles needs a CUDA device; torch sees none")
    full = definition("full")
    registry = BuilderRegistry.get_instance()
    runnable = registry.build(full, pack.pack("cutlass_grouped")["full"])
    reference = registry.build_reference(full)
    module = sys.modules[runnable._callable.__module__]
    sources = sorted((paths.SOLUTIONS / "cutlass_grouped").glob("sm90_*_*.cu"))
    address = {name: module._gemms.find_tile(name) for name in (path.stem[len("sm90_") :] for path in sources)}
    everything = random_inputs(full, max(args.tokens), "cuda")
    wrong = 0
    for tokens in args.tokens:
        inputs = with_routing(full, everything, tensors("real", tokens, "full"), "cuda")
        (expected,) = normalize_result(full, reference(*inputs), "cuda")
        chosen = module.choose_tiles(tokens)
        print(f"T={tokens}: chosen {chosen[0]}, {chosen[1]}")
        for at, name in product(range(2), address):
            pair = [address[tile] for tile in chosen]
            pair[at] = address[name]
            output = torch.full_like(expected, float("nan"))
            call = partial(module._layer.run_layer, *inputs, output, *pair)
            call()
            shares = matched_ratios(output, expected)
            right = shares["relaxed"] >= TOLERANCES["relaxed"].ratio
            wrong += not right
            text = f"{median(event_times([call], REPEATS)[0]) / 1000:.4f} ms" if right else "WRONG"
            matched = "  ".join(f"{tolerance} {share:.4f}" for tolerance, share in shares.items())
            print(f"  gemm{at + 1} {name:24} {text:12} {matched}", flush=True)
        output = torch.empty_like(expected)
        for name, us in kernel_times(partial(runnable, *inputs, output)):
            print(f"  {us:9.1f} us  {name}")
    return 1 if wrong else 0


if __name__ == "__main__":
    exit_with(main)
