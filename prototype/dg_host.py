"""dg_host.py: us of host time of each part of deepgemm's layer, T = 1, 64, 901, 14107; then deep_gemm's call alone, with cProfile."""
import sys, time, torch, importlib
from flashinfer_bench.compile import BuilderRegistry
from harness.evaluation import sweep
from harness.operators import routing_kinds
from harness.operators.catalogue import definition
from harness.packing import pack
key, dev = "full", "cuda:0"; full = definition(key)
f = BuilderRegistry.get_instance().build(full, pack.pack("deepgemm")[key])
main = sys.modules[f._callable.__module__]
base = sweep.random_inputs(full, 14107, dev)
spent = {}
def wrapped(name, g):
    def h(*a, **k):
        t = time.perf_counter(); r = g(*a, **k); spent[name] = spent.get(name, 0) + time.perf_counter() - t; return r
    return h
for name in ("check_inputs", "counters", "route_and_gather", "grouped_gemm", "swiglu_quant_rows", "combine_reset", "programs_of", "arrange"):
    setattr(main, name, wrapped(name, getattr(main, name)))
gg = sys.modules[main.__name__.rpartition(".")[0] + ".grouped_gemm"]
for name in ("fp8_m_grouped_gemm_nt_masked", "m_grouped_fp8_gemm_nt_contiguous"):
    setattr(gg.deep_gemm, name, wrapped("  " + name, getattr(gg.deep_gemm, name)))
for T in (1, 64, 901, 14107):
    inputs = sweep.with_routing(full, base, routing_kinds.tensors("real", T, key), dev)
    out = torch.empty(T, 7168, dtype=torch.bfloat16, device=dev)
    for _ in range(5): f(*inputs, out)
    torch.cuda.synchronize(); spent.clear(); N = 50 if T < 1000 else 20; total = 0
    for _ in range(N):
        torch.cuda.synchronize(); t = time.perf_counter(); f(*inputs, out); total += time.perf_counter() - t
    print(f"T={T} host {1e6 * total / N:.0f} us: " + ", ".join(f"{k} {1e6 * v / N:.1f}" for k, v in spent.items()), flush=True)
