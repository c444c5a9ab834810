"""deepgemm on a GPU: answers against the reference, and latency beside other solutions.

    pip install --no-deps /tmp/sg/sgl_deep_gemm-0.1.4-py3-none-manylinux2014_x86_64.whl   # 4.7 MB, 30 MB unpacked
    PYTHONPATH=scripts:. python deepgemm-gpu.py [--definitions full qwen3-30b kimi-k2-ep1] [--tokens 1 7 ...]
        [--solutions deepgemm hopper_fused sglang_triton] [--rounds 31] [--no-graph] [--no-profile]

sgl-deep-gemm links against one release of torch: 0.1.4 was loaded with torch 2.11 + CUDA 13.0 in November (history);
0.2.2 and later want c10::cuda::CUDAErrorLogCapture, which torch 2.11 does not have. It needs nvcc (CUDA_HOME or PATH)
at first use, and torch's libnvrtc, libcublas (loaded by torch), apache-tvm-ffi (any 0.1.11+; 0.2.3+ needs none).

A child process serves one definition, so that a fault of the GPU costs only one (definition, T): the parent starts
another child for those that are left. Columns: matched ratios (default / relaxed / contest) and relative error, whether
two runs give the same bits, time of the first call (deepgemm: its JIT), median us with cold L2 (events around a call,
host time included), and the same of a CUDA graph's replay.
"""
import argparse, os, subprocess, sys, time, traceback
os.environ.setdefault("DG_JIT_CACHE_DIR", "/tmp/deep_gemm_cache")
TOKENS = [1, 7, 64, 256, 901, 1024, 4096, 14107]
p = argparse.ArgumentParser()
p.add_argument("--definitions", nargs="*", default=["full", "qwen3-30b", "kimi-k2-ep1"])
p.add_argument("--tokens", nargs="*", type=int, default=TOKENS)
p.add_argument("--solutions", nargs="*", default=["deepgemm", "hopper_fused", "sglang_triton"])
p.add_argument("--rounds", type=int, default=31)
p.add_argument("--no-graph", action="store_true")
p.add_argument("--no-profile", action="store_true")
p.add_argument("--child", help="internal")
a = p.parse_args()
if not a.child:
    for key in a.definitions:
        left = list(a.tokens)
        while left:
            mark = f"/tmp/deepgemm-gpu-{os.getpid()}"
            open(mark, "w").close()
            flags = ["--no-graph"] * a.no_graph + ["--no-profile"] * a.no_profile
            command = [sys.executable, __file__, "--child", f"{key}:{mark}", "--tokens", *map(str, left), "--rounds", str(a.rounds), *flags, "--solutions", *a.solutions]
            code = subprocess.run(command).returncode
            done = open(mark).read().split()
            if code and "began" not in done:
                print(f"{key}: child ended with {code} before any T", flush=True)
                break
            done = [int(x) for x in done if x != "began"]
            rest = [t for t in left if t not in done]
            if code == 0:
                break
            print(f"{key}: child ended with {code}; " + (f"T={rest[0]} given up" if rest else "all done"), flush=True)
            left = rest[1:]
    sys.exit()

import torch
from flashinfer_bench.compile import BuilderRegistry
from harness.evaluation import sweep
from harness.evaluation.calling import call
from harness.evaluation.tolerances import matched_ratios
from harness.operators import routing_kinds
from harness.operators.workloads import bound_of
from harness.operators.catalogue import definition, operator
from harness.packing import pack

key, mark = a.child.split(":", 1)
dev, full = "cuda:0", definition(key)
print(f"\n== {key}: {torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
built = {}
for name in a.solutions:
    begin = time.time()
    try:
        built[name] = BuilderRegistry.get_instance().build(full, pack.pack(name)[key])
        print(f"{name}: built in {time.time() - begin:.0f} s", flush=True)
    except Exception:
        print(f"{name}: NOT BUILT", flush=True); traceback.print_exc()
if "deepgemm" in built:
    import deep_gemm
    print("deep_gemm", deep_gemm.__version__, deep_gemm.__file__, "pdl", deep_gemm.get_pdl(), "alignment", deep_gemm.get_mk_alignment_for_contiguous_layout(), flush=True)
reference = BuilderRegistry.get_instance().build_reference(full)
FL = torch.empty(256 << 20, dtype=torch.uint8, device=dev)

def timed(f):
    b, e = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    FL.zero_(); torch.cuda.synchronize(); b.record(); f(); e.record(); e.synchronize()
    return b.elapsed_time(e) * 1e3

everything = sweep.random_inputs(full, max(a.tokens), dev)
open(mark, "a").write("began ")
for t in a.tokens:
    routing = routing_kinds.tensors("real", t, key)
    bound = bound_of(sweep.random_workload(full, t), routing, key)
    inputs = sweep.with_routing(full, everything, routing, dev)
    want = call(full, reference, inputs, dev)
    size = want.float().norm().clamp(min=1e-9)
    print(f"\n-- {key} T={t}: {bound.rows} rows, {bound.active} active, bound {bound.ms * 1e3:.1f} us", flush=True)
    runs, outs, graphs = {}, {}, {}
    for name, runnable in built.items():
        try:
            out = torch.full_like(want, float("nan"))
            f = lambda r=runnable, o=out: r(*inputs, o)
            torch.cuda.synchronize(); free = torch.cuda.memory_allocated(); torch.cuda.reset_peak_memory_stats()
            begin = time.time(); f(); torch.cuda.synchronize(); first = time.time() - begin
            peak = torch.cuda.max_memory_allocated() - free
            one = out.clone(); out.fill_(float("nan")); f(); torch.cuda.synchronize()
            m = matched_ratios(out, want) if bool(out.isfinite().all()) else {"NOT FINITE": float((~out.isfinite()).float().mean())}
            print(f"{name:14s} " + " ".join(f"{k} {v:.4f}" for k, v in m.items()) + f" error {float((out.float() - want.float()).norm() / size):.2e} same {bool(torch.equal(one.view(torch.int16), out.view(torch.int16)))} first {first:.1f} s scratch {peak / 1e6:.0f} MB", flush=True)
            runs[name], outs[name] = f, out
        except Exception:
            print(f"{name}: FAILED at T={t}", flush=True); traceback.print_exc(); sys.stderr.flush()
            torch.cuda.synchronize()  # raises if the context is broken: the parent goes on with the next T
    try:
        if not a.no_graph:
            for name, f in runs.items():
                side = torch.cuda.Stream()
                with torch.cuda.stream(side):
                    f(); f()
                side.synchronize()
                try:
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph, stream=side):
                        f()
                    outs[name].fill_(float("nan")); graph.replay(); torch.cuda.synchronize()
                    error = float((outs[name].float() - want.float()).norm() / size)
                    graphs[name] = graph.replay
                    if not error < 0.1:
                        print(f"{name}: graph's answer is off by {error:.2e}", flush=True)
                except Exception:
                    print(f"{name}: NOT CAPTURED", flush=True); traceback.print_exc(); torch.cuda.synchronize()
        times = {n: [] for n in runs}; graph_times = {n: [] for n in graphs}
        for f in runs.values():
            f(), f(), f()
        for i in range(a.rounds):
            order = list(runs) if i % 2 else list(runs)[::-1]
            for n in order: times[n].append(timed(runs[n]))
            for n in order:
                if n in graphs: graph_times[n].append(timed(graphs[n]))
        med = lambda x: sorted(x)[len(x) // 2] if x else float("nan")
        for n in runs:
            print(f"{n:14s} {med(times[n]):8.1f} us, graph {med(graph_times.get(n)):8.1f} us, x bound {med(times[n]) / bound.ms / 1e3:.2f}", flush=True)
        if "deepgemm" in runs and not a.no_profile:
            from torch.profiler import ProfilerActivity, profile
            with profile(activities=[ProfilerActivity.CUDA]) as prof:
                for _ in range(5):
                    FL.zero_(); torch.cuda.synchronize(); runs["deepgemm"](); torch.cuda.synchronize()
            seen = {}
            for e in sorted(prof.events(), key=lambda e: e.time_range.start):
                if str(e.device_type).endswith("CUDA"):
                    seen.setdefault(e.name.split("<")[0].split("(")[0].replace("void ", "")[-60:], []).append(e.time_range.end - e.time_range.start)
            print("   kernels, us a launch: " + "; ".join(f"{k} {len(v) / 5:g}x {sum(v) / len(v):.1f}" for k, v in seen.items() if "ill" not in k and "emset" not in k), flush=True)
    except Exception:
        print(f"timing FAILED at T={t}", flush=True); traceback.print_exc(); torch.cuda.synchronize()
    graphs.clear(); runs.clear(); outs.clear(); torch.cuda.empty_cache()
    with open(mark, "a") as file:
        file.write(f"{t} ")
