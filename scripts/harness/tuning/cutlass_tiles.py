"""Check and time every compiled tile of cutlass_grouped: what solutions/cutlass_grouped/tiles.py is chosen from.

    python -m harness.tuning.cutlass_tiles 1 7 57 901 14107

Needs a Hopper GPU. Routing is the workloads' ("real" of moebench sweep), inputs are FIB's. For each token count every
tile is used in gemm1 and then in gemm2, beside the chosen tile of the other GEMM: its answer against the reference, and
the median time of 20 calls by events, L2 flushed before each; then the time of each kernel with the chosen tiles. Exit
status: 0, 1 for a wrong answer or without a GPU, 2 for bad arguments.
"""

import argparse
import re
import sys
from functools import partial
from itertools import product

import torch
from flashinfer_bench.compile import BuilderRegistry
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from harness.core import paths
from harness.core.arguments import count
from harness.core.errors import CannotRun, UserError
from harness.evaluation.sweep import random_inputs, with_routing
from harness.evaluation.tolerances import TOLERANCES, matched_ratios
from harness.operators.catalogue import definition
from harness.operators.routing_kinds import KINDS
from harness.packing import pack

REPEATS = 20


def median_ms(call):
    """Median of REPEATS calls, each after an L2 flush."""
    flush = torch.empty(256 * 2**20, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(REPEATS + 3):
        flush.zero_()
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times[3:])[REPEATS // 2]


def kernel_name(name):
    """Without arguments; CUTLASS's kernels, whose names are types pages long, are all called device_kernel."""
    return "device_kernel" if "device_kernel" in name else re.sub(r"<.*|\(.*", "", name)


def kernel_times(call):
    """(kernel, mean microseconds) of each launch of a call, in order."""
    calls = 5
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    kernels = [e for e in found.events() if e.device_type == DeviceType.CUDA]
    kernels.sort(key=lambda e: e.time_range.start)
    launches = [kernels[at :: len(kernels) // calls] for at in range(len(kernels) // calls)]
    return [(kernel_name(same[0].name), sum(e.time_range.elapsed_us() for e in same) / len(same)) for same in launches]


def check(output, expected):
    """(whether the answer is right at the relaxed tolerance, "NAME share" of each tolerance)."""
    matched = matched_ratios(output, expected)
    right = bool(output.isfinite().all()) and matched["relaxed"] >= TOLERANCES["relaxed"].ratio
    return right, "  ".join(f"{name} {share:.4f}" for name, share in matched.items())


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m harness.tuning.cutlass_tiles",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
    number = {name: module._kernels.tile_number(name) for name in (path.stem[len("sm90_") :] for path in sources)}
    everything = random_inputs(full, max(args.tokens), "cuda")
    wrong = 0
    for tokens in args.tokens:
        inputs = with_routing(everything, *KINDS["real"](tokens), "cuda")
        expected = reference(*inputs)
        expected = expected[0] if isinstance(expected, (tuple, list)) else expected
        chosen = module.choose_tiles(tokens)
        print(f"T={tokens}: chosen {chosen[0]}, {chosen[1]}")
        for at, name in product(range(2), number):
            pair = [number[tile] for tile in chosen]
            pair[at] = number[name]
            output = torch.full_like(expected, float("nan"))
            call = partial(module._run_layer, *inputs, output, *pair)
            call()
            torch.cuda.synchronize()
            right, matched = check(output, expected)
            wrong += not right
            text = f"{median_ms(call):.4f} ms" if right else "WRONG"
            print(f"  gemm{at + 1} {name:24} {text:12} {matched}", flush=True)
        output = torch.empty_like(expected)
        for name, us in kernel_times(partial(runnable, *inputs, output)):
            print(f"  {us:9.1f} us  {name}")
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.status)
