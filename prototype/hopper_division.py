"""hopper_division.py: hopper_fused's one launch with another division of slices (CTAs without columns take more), against
the one in use and mma_fused. From the root, PYTHONPATH as gA.sh has it: hopper_division.py build | compare T,T,.."""
import importlib.util, os, sys
from pathlib import Path
import torch
from harness.packing.pack import pack
from solutions.kernels.build_library import build_library, load_library

OLD = """const int slices = s.num_chunks * kSlices, full = slices / ctas, pairs = full / 2;
"""
NEW = """const int slices = s.num_chunks * kSlices;
    const int early = max(1, (s.num_chunks / kChunkSplits - 2) * (kColumnTile * kInter) / (2 * kSliceColumns * kHidden));
    const int full = min(slices / ctas, (max(slices - without_columns * early, 0) + ctas - 1) / ctas), pairs = full / 2;
"""


def texts(variant):
    found = {f.path: f.content for f in pack("hopper_fused")["full"].sources if ".cu" in f.path}
    if variant == "division":
        (path,) = [p for p in found if p.endswith("slice_scheduler.cuh")]
        assert found[path].count(OLD) == 1 and found[path].count("slices % ctas - ") == 1
        found[path] = found[path].replace(OLD, NEW).replace("slices % ctas - ", "slices - full * ctas - ")
    return found


def build(variant): return build_library(f"hopper_{variant}", texts(variant), architecture="9.0a")


def compare(counts, rounds=41):
    spec = importlib.util.spec_from_file_location("gpu1", Path(__file__).with_name("mma-gpu.py"))
    gpu1 = importlib.util.module_from_spec(spec); spec.loader.exec_module(gpu1)
    everything, libraries = gpu1.layer(max(counts)), {v: load_library(build(v)) for v in ("base", "division")}
    mma = gpu1.packed("mma_fused")
    for count in counts:
        values = list(gpu1.first(everything, count).values())
        outs = {v: torch.full((count, 7168), torch.nan, dtype=torch.bfloat16, device="cuda") for v in (*libraries, "mma")}
        calls = {v: (lambda l=l, v=v: l.run_layer(*values, outs[v], 1)) for v, l in libraries.items()} | {"mma": lambda: mma(*values, outs["mma"])}
        for call in calls.values(): call()
        torch.cuda.synchronize()
        same = torch.equal(outs["base"], outs["division"])
        times = {v: [] for v in calls}
        for turn in range(rounds):
            for v in (list(calls) if turn % 2 else list(calls)[::-1]): times[v].append(gpu1.timed(calls[v]))
        med = {v: sorted(t)[rounds // 2] for v, t in times.items()}
        print(f"hopper T={count}: same bits {same}; " + ", ".join(f"{v} {m:.1f} ({m / med['base']:.3f})" for v, m in med.items()), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "build": [build(v) for v in ("base", "division")]
    else: compare(tuple(map(int, sys.argv[2].split(","))))
