"""times.py LIBS shape:T,T ... : cycles of tiles by instrumented build; clocks and power under load."""
import sys, time, threading
from pathlib import Path
import torch, tvm_ffi, pynvml
import proto_measure as pm
from measure import SH, call_of
pynvml.nvmlInit(); dev = pynvml.nvmlDeviceGetHandleByIndex(0)
def load_of(f, seconds=0.8):
    seen, stop = [], time.time() + seconds
    while time.time() < stop:
        for _ in range(20): f()
        seen.append((pynvml.nvmlDeviceGetClockInfo(dev, 1), pynvml.nvmlDeviceGetPowerUsage(dev) / 1e3, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(dev)))
        torch.cuda.synchronize()
    t = seen[len(seen) // 2:]
    return f"SM MHz {min(x[0] for x in t)}..{max(x[0] for x in t)} W {sum(x[1] for x in t) / len(t):.0f} throttle {sorted({hex(x[2]) for x in t})}"
for job in sys.argv[2:]:
    shape, tokens = job.split(":"); tokens = [int(x) for x in tokens.split(",")]
    layer = pm.Layer(SH[shape], max(tokens))
    path = Path(sys.argv[1]) / f"{shape}-t.so"
    m, call, plain = tvm_ffi.load_module(str(path)), call_of(path, shape), call_of(Path(sys.argv[1]) / f"{shape}-e.so", shape)
    for t in tokens:
        inp = layer.inputs(t); out = torch.empty(t, SH[shape][5], dtype=torch.bfloat16, device="cuda")
        for _ in range(3): pm.one_time(lambda: call(inp, out, 1))
        for k in (1, 2):
            g = torch.zeros(132, 64, 4, dtype=torch.int64); getattr(m, f"times{k}")(g)
            ok = g[:, :, 3] > 0; n = g[:, :, 3][ok]; main = (g[:, :, 1] - g[:, :, 0])[ok].float(); epi = (g[:, :, 2] - g[:, :, 1])[ok].float()
            both = ok[:, 1:] & ok[:, :-1]; gap = (g[:, 1:, 0] - g[:, :-1, 2])[both].float()
            span = torch.tensor([int(g[b, int(ok[b].sum()) - 1, 2] - g[b, 0, 0]) for b in range(132) if ok[b].any()]).float()
            first = (g[:, 0, 1] - g[:, 0, 0])[ok[:, 0]].float()
            line = f"{shape} T={t} gemm{k}: tiles {int(ok.sum())} per CTA {ok.sum(1).min()}..{ok.sum(1).max()} span {span.min():.0f}/{span.median():.0f}/{span.max():.0f} gap {gap.median() if len(gap) else 0:.0f} first main {first.median():.0f}"
            for lo, hi in ((1, 16), (17, 32), (33, 48), (49, 64), (65, 128)):
                pick = (n >= lo) & (n <= hi)
                if pick.any(): line += f" | n{hi}: {int(pick.sum())} main {main[pick].median():.0f} epi {epi[pick].median():.0f}"
            print(line, flush=True)
        print("   back to back:", load_of(lambda: plain(inp, out, 1)), "| as measured:", load_of(lambda: pm.one_time(lambda: plain(inp, out, 1))), flush=True)
    del layer; torch.cuda.empty_cache()
