"""Where mma_fused's T = 1 differs from hopper_fused's by one clock and not by the other: what a launch costs, stage by stage.

mma_t1.py build           compile all variants (15 s each on two cores; TVM_FFI_CACHE_DIR says where), no GPU
mma_t1.py time [T ...]    default 1 15 54; a table for each T, us: medians of ROUNDS calls, variants in turn, a cold L2, three ways:
                          fib: inputs cloned after L2 is filled; last: L2 filled after the clones; busy: as last, the GPU busy when called
Variants that leave early give a wrong answer and are only timed.
"""
import sys

import torch
from harness.packing.pack import pack
from solutions.kernels.build_library import build_library, load_library

ROUNDS = 101
WAIT = "  pdl_wait();\n  pdl_launch_dependents();\n"
LAUNCH = "launch_with_pdl(fused_layer, ctas, kThreads, cooperative(), sizeof(Smem), stream, maps, args)"
MMA = {
    "mma": [],
    "mma, no PDL": [("one_launch/fused_layer.cu", "#if MMA_FUSED_TMA\n  return launch", "#if 0\n  return launch")],
    "mma, not cooperative": [("one_launch/fused_layer.cu", LAUNCH, LAUNCH.replace("cooperative()", "clusters_of(1)"))],
    "mma, empty": [("one_launch/fused_layer.cu", WAIT, WAIT + "  if (args.num_tokens > 0) return;\n")],
    "mma, routed": [("one_launch/fused_layer.cu", "  WeightStream weights(s", "  if (args.num_tokens > 0) return;\n  WeightStream weights(s")],
    "mma, gemm1": [("one_launch/fused_layer.cu", "  gemm2_combine(s, args, weights);\n", "  if (args.num_tokens > 0) return;\n  gemm2_combine(s, args, weights);\n")],
}
HOPPER = {"hopper": []}


def library(name, variant, changes, architecture):
    texts = {file.path: file.content for file in pack(name)["full"].sources if ".cu" in file.path}
    for path, old, new in changes:
        (found,) = [at for at in texts if at.endswith(path)]
        assert texts[found].count(old) == 1, (variant, path, texts[found].count(old))
        texts[found] = texts[found].replace(old, new)
    flags = () if name == "hopper_fused" else ("-DMMA_FUSED_SMEM_KIB=227", "-DMMA_FUSED_TMA=1", "-DMMA_FUSED_CVT=1")
    return build_library("t1_" + "".join(c if c.isalnum() else "_" for c in variant), texts, architecture=architecture, flags=flags)


def libraries():
    for variant, changes in MMA.items():
        yield variant, library("mma_fused", variant, changes, "9.0")
    for variant, changes in HOPPER.items():
        yield variant, library("hopper_fused", variant, changes, "9.0a")


def main(what, counts):
    paths = dict(libraries())
    if what == "build":
        return print(*paths.values(), sep="\n")
    from flashinfer_bench.bench.utils import load_safetensors
    from harness.core import paths as places
    from harness.evaluation import run as runs
    from harness.evaluation.calling import seeded_inputs
    from harness.operators.catalogue import definition

    full = definition("full")
    calls = {name: load_library(path).run_layer for name, path in paths.items()}
    fill = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    for label, workload in runs.load_workloads("full", counts):
        (inputs,) = seeded_inputs(full, workload, 1, "cuda:0", load_safetensors(full, workload, places.ROOT))
        out = torch.empty(workload.axes["seq_len"], 7168, dtype=torch.bfloat16, device="cuda")
        times = {name: {way: [] for way in ("fib", "last", "busy")} for name in calls}
        for turn in range(ROUNDS):
            for name in (list(calls) if turn % 2 else list(calls)[::-1]):
                extra = 0 if name.startswith("mma") else 1  # CTAs; terms of h
                for way, found in times[name].items():
                    if way == "fib":
                        fill.zero_()
                    cloned = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
                    if way != "fib":
                        fill.zero_()
                    torch.cuda.synchronize()
                    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    if way == "busy":
                        torch.cuda._sleep(100_000)
                    begin.record()
                    calls[name](*cloned, out, extra)
                    end.record()
                    torch.cuda.synchronize()
                    found.append(1e3 * begin.elapsed_time(end))
        print(label)
        for name, ways in times.items():
            print(f"  {name:24}" + "  ".join(f"{way} {sorted(found)[ROUNDS // 2]:7.1f}" for way, found in ways.items()), flush=True)


main(sys.argv[1], sys.argv[2:] or ["1", "15", "54"])
