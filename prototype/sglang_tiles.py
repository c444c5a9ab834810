"""sglang_tiles.py T ...: best tiles of SGLang's kernel for the two products of the first definition, beside the present ones.

Phase 1 (--warm I N): compiles and runs part I of N of the configurations, so that N processes fill Triton's cache. Phase 2: times."""
import sys, torch, itertools, statistics
from flashinfer_bench.compile import BuilderRegistry
from harness.evaluation import sweep
from harness.operators import routing_kinds
from harness.operators.catalogue import definition
from harness.packing import pack
from harness.tuning.bench import event_times
args = sys.argv[1:]; warm = None
if args[0] == "--warm": warm = int(args[1]), int(args[2]); args = args[3:]
Ts = [int(t) for t in args]; key, dev = "full", "cuda"; full = definition(key)
f = BuilderRegistry.get_instance().build(full, pack.pack("sglang_triton")[key]); m = sys.modules[f._callable.__module__]
def c(bm, bn, g, w, s): return dict(BLOCK_SIZE_M=bm, BLOCK_SIZE_N=bn, BLOCK_SIZE_K=128, GROUP_SIZE_M=g, num_warps=w, num_stages=s)
def near(T): r = T * 8 / 256; return [b for b in (16, 32, 64, 128) if min(r, 64) / 4 <= b <= max(32, 2 * r) or b == 16 and r <= 8]
def space(T):
    return [c(bm, bn, g, w, s) for bm, bn, g, w, s in itertools.product(near(T), (64, 128), (1, 16, 64), (4, 8), (3, 4, 5)) if not (w == 8 and bm < 64)]
base = sweep.random_inputs(full, max(Ts), dev)
for T in Ts:
    logits, bias, x, xs, w1, s1, w2, s2, off, fac = sweep.with_routing(full, base, routing_kinds.tensors("real", T, key), dev)
    expert, weight = m.route(logits, bias, off, fac, 32); pairs = expert.numel()
    perms = {}; best = {}
    for cfg in space(T):
        bm = cfg["BLOCK_SIZE_M"]
        if bm not in perms:
            p = m.permute(expert, 32, bm, padding=pairs); g = m.grouped_product(x, xs, (1, T), w1, s1, p, m.choose_configs(pairs / 256, 2048)[0] | dict(BLOCK_SIZE_M=bm), tma=False)
            perms[bm] = p, *m.swiglu_quant(g, p, bm, 8 * 132); del g
    todo = space(T)
    if warm: todo = todo[warm[0]::warm[1]]
    times = {1: [], 2: []}
    for cfg in todo:
        p, h, hs = perms[cfg["BLOCK_SIZE_M"]]
        for which in (1, 2):
            call = (lambda: m.grouped_product(x, xs, (1, T), w1, s1, p, cfg, tma=False)) if which == 1 else (lambda: m.grouped_product(h, hs, hs.stride(), w2, s2, p, cfg, tma=True))
            try:
                call(); torch.cuda.synchronize()
                if not warm: times[which].append((statistics.median(event_times([call], 7 if T > 2000 else 11)[0]), tuple(cfg.values())))
            except Exception as e: print("left out", which, cfg, repr(e)[:80], flush=True)
    if warm: continue
    now = m.choose_configs(pairs / 256, 2048); look = [dict((b, a) for a, b in times[w]) for w in (1, 2)]
    present = sum(look[i].get(tuple(now[i].values())) or statistics.median(event_times([lambda: m.grouped_product(x, xs, (1, T), w1, s1, perms[now[0]["BLOCK_SIZE_M"]][0], now[0], tma=False) if i == 0 else m.grouped_product(*perms[now[0]["BLOCK_SIZE_M"]][1:], perms[now[0]["BLOCK_SIZE_M"]][2].stride(), w2, s2, perms[now[0]["BLOCK_SIZE_M"]][0], now[1], tma=True)], 11)[0]) for i in (0, 1))
    by = {}
    for bm in perms: by[bm] = min((t for t in times[1] if t[1][0] == bm), default=(1e9, None)), min((t for t in times[2] if t[1][0] == bm), default=(1e9, None))
    bm = min(by, key=lambda b: by[b][0][0] + by[b][1][0]); a, b = by[bm]
    print(f"T={T} present {present:.1f} us; best {a[0] + b[0]:.1f}: gemm1 {a[1]} {a[0]:.1f}, gemm2 {b[1]} {b[0]:.1f}", flush=True)
