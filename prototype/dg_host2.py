"""dg_host2.py: deepgemm's layer at T = 1, 64, 901, 14107: is it right; us of host time in all, until gemm1 is launched, and
of its parts; us between events eagerly (L2 flushed) and in a CUDA graph; host time of the first call of another T."""
import statistics
import sys
import time

import torch
from flashinfer_bench.compile import BuilderRegistry
from harness.evaluation import sweep
from harness.evaluation.calling import call as called
from harness.evaluation.tolerances import TOLERANCES
from harness.operators import routing_kinds
from harness.operators.catalogue import definition
from harness.packing import pack

key, dev, TOKENS = "full", "cuda:0", (1, 64, 901, 14107)
full = definition(key)
f = BuilderRegistry.get_instance().build(full, pack.pack("deepgemm")[key])
reference = BuilderRegistry.get_instance().build_reference(full)
main = sys.modules[f._callable.__module__]
package = main.__name__.rpartition(".")[0]
gg, plans = (sys.modules[f"{package}.{name}"] for name in ("grouped_gemm", "plan"))
base = sweep.random_inputs(full, TOKENS[-1], dev)
flush = torch.empty(256 << 20, dtype=torch.uint8, device=dev)
clock = time.perf_counter
spent, ends = {}, []  # of one call: seconds by part; when each deep_gemm call was over


def wrapped(name, g):
    def h(*a, **k):
        t = clock()
        r = g(*a, **k)
        u = clock()
        spent[name] = spent.get(name, 0) + u - t
        if name.startswith("deep_gemm."):
            ends.append(u)
        return r

    return h


def median(seconds):
    return 1e6 * statistics.median(seconds)


def host(call, runs, before=lambda: None, after=lambda t: None):
    totals = []
    for _ in range(runs):
        torch.cuda.synchronize()
        before()
        t = clock()
        call()
        totals.append(clock() - t)
        after(t)
    return median(totals)


def between_events(call, runs):
    found = []
    for _ in range(runs):
        flush.zero_()
        torch.cuda.synchronize()
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        call()
        b.record()
        torch.cuda.synchronize()
        found.append(a.elapsed_time(b) * 1e-3)
    return median(found)


def in_parts(call, plan, runs):
    """us until gemm1 is launched, and us by part, with the wrappers' own time (0.3 us each)."""
    kind = next(kind for kind, known in plans._plans.items() if known is plan)
    functions = [name for name, value in zip(plan._fields, plan) if callable(value)]
    plans._plans[kind] = plan._replace(**{name: wrapped(name, getattr(plan, name)) for name in functions})
    places = [(main, name) for name in ("plan_of", "counters")]
    names = ("fp8_m_grouped_gemm_nt_masked", "m_grouped_fp8_gemm_nt_contiguous")
    places += [(gg.deep_gemm, name) for name in names]
    kept = [getattr(module, name) for module, name in places]
    for module, name in places:
        setattr(module, name, wrapped(("deep_gemm." if module is gg.deep_gemm else "") + name, getattr(module, name)))
    until, parts = [], {}

    def before():
        spent.clear()
        ends.clear()

    def after(t):
        until.append(ends[0] - t)
        for name, seconds in spent.items():
            parts.setdefault(name, []).append(seconds)

    host(call, runs, before, after)
    for (module, name), value in zip(places, kept):
        setattr(module, name, value)
    plans._plans[kind] = plan
    return median(until), {name: median(seconds) for name, seconds in parts.items()}


for T in TOKENS:
    inputs = sweep.with_routing(full, base, routing_kinds.tensors("real", T, key), dev)
    out = torch.empty(T, inputs[2].shape[1], dtype=torch.bfloat16, device=dev)

    def call(inputs=inputs, out=out):
        f(*inputs, out)

    expected = called(full, reference, inputs, dev)
    print(f"T={T}", sweep.judge(full, f, inputs, expected, TOLERANCES["relaxed"], dev), flush=True)
    del expected
    runs = 100 if T < 1000 else 20
    for _ in range(10):
        call()
    print(f"  host {host(call, runs):.1f} us", end="; ")
    until, parts = in_parts(call, main.plan_of((*inputs[:8], out), *inputs[8:]), runs)
    print(f"until gemm1 is launched {until:.1f} us; " + ", ".join(f"{k} {v:.1f}" for k, v in parts.items()), flush=True)
    eager = between_events(call, runs)
    call()
    wanted = out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    out.fill_(float("nan"))
    graph.replay()
    graph.replay()
    same = torch.equal(out, wanted)
    captured = between_events(graph.replay, runs)
    print(f"  events: eager {eager:.1f} us, in a graph {captured:.1f} us; the graph's answer is eager's: {same}", flush=True)
    other = sweep.with_routing(full, base, routing_kinds.tensors("real", max(2, T - 1), key), dev)
    its = torch.empty(max(2, T - 1), out.shape[1], dtype=torch.bfloat16, device=dev)
    torch.cuda.synchronize()
    t = clock()
    f(*other, its)
    print(f"  first call of T={max(2, T - 1)}: {1e6 * (clock() - t):.0f} us (with what DeepGEMM compiles for it)", flush=True)
    torch.cuda.synchronize()
    del graph
