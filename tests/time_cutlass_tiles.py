"""Check and time every compiled tile of cutlass_grouped: what solutions/cutlass_grouped/tiles.py is chosen from.

    python tests/time_cutlass_tiles.py 1 7 57 901 14107

Needs a Hopper GPU. Routing is the workloads' ("real" of moebench sweep), inputs are FIB's. For each token count: the
answer of every tile, first as gemm1 and then as gemm2 beside the chosen tile of the other, against the reference; the
median time of 20 calls by events, L2 flushed before each; and what each kernel of the chosen tiles takes.
"""

import argparse
import re
import sys
from functools import partial

import torch
from flashinfer_bench.bench.utils import compute_error_stats
from flashinfer_bench.compile import BuilderRegistry
from harness.core import paths
from harness.evaluation import cpu_judge
from harness.evaluation.sweep import random_inputs, with_routing
from harness.evaluation.tolerances import TOLERANCES
from harness.operators.routing_kinds import KINDS
from harness.packing import pack
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from definitions.moe_fp8_block_scale import definition

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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", nargs="+", type=int)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this takes times and needs a CUDA device; torch sees none")
    full = definition("full")
    registry = BuilderRegistry.get_instance()
    runnable = registry.build(full, pack.pack("cutlass_grouped")["full"])
    reference = registry.build_reference(full)
    module = sys.modules[runnable._callable.__module__]
    tiles = [
        path.stem.removeprefix("sm90_") for path in sorted((paths.SOLUTIONS / "cutlass_grouped").glob("sm90_*_*.cu"))
    ]
    number = {name: module._kernels.tile_number(name) for name in tiles}
    everything = random_inputs(full, max(args.tokens), "cuda")
    wrong = 0
    for tokens in args.tokens:
        inputs = with_routing(everything, *KINDS["real"](tokens), "cuda")
        expected = reference(*inputs)
        expected = expected[0] if isinstance(expected, (tuple, list)) else expected
        chosen = module.choose_tiles(tokens)
        print(f"T={tokens}: chosen {chosen[0]}, {chosen[1]}")
        for at in range(2):
            for name in tiles:
                pair = [number[chosen[0]], number[chosen[1]]]
                pair[at] = number[name]
                output = torch.full_like(expected, float("nan"))
                call = partial(module._run_layer, *inputs, output, *pair)
                call()
                torch.cuda.synchronize()
                stats = {
                    t: compute_error_stats(output, expected, cpu_judge.config_for(x))[3] for t, x in TOLERANCES.items()
                }
                fine = bool(output.isfinite().all()) and stats["relaxed"] >= TOLERANCES["relaxed"].ratio
                wrong += not fine
                matched = "  ".join(f"{t} {ratio:.4f}" for t, ratio in stats.items())
                text = f"{median_ms(call):.4f} ms" if fine else "WRONG"
                print(f"  gemm{at + 1} {name:24} {text:12} {matched}", flush=True)
        output = torch.empty_like(expected)
        for name, us in kernel_times(partial(runnable, *inputs, output)):
            print(f"  {us:9.1f} us  {name}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
