"""Versions 17 and 18 of hopper_fused through their Python entry points, interleaved, on the 19 workloads."""
import sys, os, json, torch
sys.path.insert(0, "prototype")
from flashinfer_bench.compile import BuilderRegistry
from harness.core import paths
from harness.evaluation import run, calling
from harness.operators.catalogue import definition
from harness.packing import pack
from flashinfer_bench.bench.utils import load_safetensors
import importlib
old = importlib.import_module("v17.main")
full = definition("full"); new = BuilderRegistry.get_instance().build(full, pack.pack("hopper_fused")["full"])
FL = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
def timed(call):
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    FL.zero_(); torch.cuda.synchronize(); a.record(); call(); b.record(); b.synchronize(); return a.elapsed_time(b) * 1e3
worst = 0
for label, w in run.load_workloads("full", []):
    stored = load_safetensors(full, w, paths.ROOT)
    (inp,) = calling.seeded_inputs(full, w, 1, "cuda:0", stored)
    outs = [torch.full((w.axes["seq_len"], 7168), float("nan"), dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    calls = [lambda: old.run(*inp, outs[0]), lambda: new(*inp, outs[1])]
    for c in calls: c(), c()
    t = [[], []]
    for i in range(61):
        for k in ((0, 1) if i % 2 else (1, 0)): t[k].append(timed(calls[k]))
    m = [sorted(x)[30] for x in t]
    print(f"{label} v17 {m[0]:.1f} v18 {m[1]:.1f} {100 * (m[1] / m[0] - 1):+.1f}% same {bool(torch.equal(*outs))}", flush=True)
