"""measure.py LIBS shape:T,T,..:rounds[:kind] ... : interleaved variants (LIBS/<shape>-*.so), errors against fp32."""
import sys, time, json, os
from pathlib import Path
import multiprocessing
import torch, tvm_ffi
sys.path.insert(0, str(Path(__file__).parent))
import proto_measure as pm
SH = {"full": (256, 32, 8, 8, 4, 7168, 2048, 0), "qwen3-30b": (128, 128, 8, 1, 1, 2048, 768, 1), "kimi-k2-ep1": (384, 384, 8, 1, 1, 7168, 2048, 0),
 "minimax-m2": (256, 256, 8, 1, 1, 3072, 1536, 0), "qwen3-next": (128, 128, 10, 1, 1, 2048, 512, 1), "kimi-k2-ep8": (384, 48, 8, 1, 1, 7168, 2048, 0),
 "qwen3-235b": (128, 128, 8, 1, 1, 4096, 1536, 1), "glm-5-ep8": (256, 32, 8, 1, 1, 6144, 2048, 0), "deepseek-v3-ep16": (256, 16, 8, 8, 4, 7168, 2048, 0),
 "deepseek-v3-ep4": (256, 64, 8, 8, 4, 7168, 2048, 0), "deepseek-v3-ep1": (256, 256, 8, 8, 4, 7168, 2048, 0)}
def call_of(path, shape):
    m = tvm_ffi.load_module(str(path))
    if SH[shape][-1]:
        return lambda i, out, terms: m.run_renorm(i[0], *i[2:8], out, terms)
    return lambda i, out, terms: m.run_layer(*i, out, terms)
def work(libs, shape, tokens, rounds, kind, lines):
    torch.backends.cuda.matmul.allow_tf32 = False
    paths = sorted(Path(libs).glob(f"{shape}-*.so"))
    names = [p.stem[len(shape) + 1:] for p in paths]
    calls = [call_of(p, shape) for p in paths]
    layer = pm.Layer(SH[shape], max(tokens))
    ends = sorted({0, *tokens})
    sample = torch.cat([torch.linspace(a, b - 1, min(16, b - a), device="cuda").round().long() for a, b in zip(ends, ends[1:])])
    want = layer.reference(sample)
    for t in tokens:
        inputs = layer.inputs(t); bound, rows, active = layer.bound(t); seen = sample < t
        todo = [(n, c, 1) for n, c in zip(names, calls)]
        if kind == "terms" and t > 256: todo += [(n + "/2", c, 2) for n, c in zip(names, calls)]
        outs = [torch.full((t, SH[shape][5]), float("nan"), dtype=torch.bfloat16, device="cuda") for _ in todo]
        rec = dict(shape=shape, T=t, rows=rows, active=active, bound=round(bound * 1e3, 1))
        target = 1.15 * bound + 0.025 if t <= 256 else 1.7 * bound
        for (n, c, terms), out in zip(todo, outs):
            c(inputs, out, terms); torch.cuda.synchronize()
            again = torch.full_like(out, float("nan")); c(inputs, again, terms); torch.cuda.synchronize()
            e, share = pm.judge(out[sample[seen]], want[seen])
            rec[n + ".e"] = float("%.3g" % e); rec[n + ".def"] = round(share[0], 4)
            if not torch.equal(out, again) or not bool(torch.isfinite(out).all()): rec[n + ".BAD"] = 1
        ms = pm.interleaved([lambda c=c, o=o, k=k: c(inputs, o, k) for (n, c, k), o in zip(todo, outs)], rounds)
        for (n, c, k), v in zip(todo, ms): rec[n] = round(v * 1e3, 1); rec[n + ".tgt"] = round(v / target, 3)
        lines.put(rec)
        if kind == "stages" and t > 256:
            from torch.profiler import ProfilerActivity, profile
            for (n, c, k), o in zip(todo, outs):
                with profile(activities=[ProfilerActivity.CUDA]) as p:
                    for _ in range(9): pm.one_time(lambda: c(inputs, o, k))
                by = {}
                for e in p.events():
                    if "many" in e.name: by.setdefault(e.name.split("(")[0].split("<")[0].replace("void ", ""), []).append((e.time_range.start, e.time_range.end))
                r = {m: round(pm.median([b - a for a, b in v]), 1) for m, v in by.items()}
                f, l = sorted(by["many_route"]), sorted(by["many_combine"])
                if len(f) == len(l): r["whole"] = round(pm.median([b[1] - a[0] for a, b in zip(f, l)]), 1)
                lines.put(dict(stages=shape, T=t, variant=n, **r))
if __name__ == "__main__":
    libs, records = sys.argv[1], []
    ctx = multiprocessing.get_context("spawn")
    for job in sys.argv[2:]:
        shape, tokens, rounds, *kind = job.split(":")
        lines = ctx.Queue(); t0 = time.time()
        p = ctx.Process(target=work, args=(libs, shape, [int(x) for x in tokens.split(",")], int(rounds), kind[0] if kind else "", lines)); p.start()
        while p.is_alive() and time.time() - t0 < 120 or not lines.empty():
            try: r = lines.get(timeout=0.2)
            except Exception: continue  # no line yet
            records.append(r); print(" ".join(f"{k}={v}" for k, v in r.items()), flush=True)
        if p.is_alive(): p.kill(); print(shape, "HANGS")
        p.join(); print(shape, "exit", p.exitcode, f"{time.time() - t0:.0f}s", flush=True)
    if os.environ.get("OUT"): Path(os.environ["OUT"], "measure.json").write_text(json.dumps(records))
