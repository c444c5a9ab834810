"""warm.py LIBS shape:T,T ...: time with cold code (after the flush) and warm code (another layer's call between flush and timing)."""
import sys, torch
from pathlib import Path
import proto_measure as pm
from measure import SH, call_of
FL = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
def timed(call, before):
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    FL.zero_(); before(); torch.cuda.synchronize(); a.record(); call(); b.record(); b.synchronize(); return a.elapsed_time(b) * 1e3
for job in sys.argv[2:]:
    shape, tokens = job.split(":"); tokens = [int(x) for x in tokens.split(",")]
    A, B = pm.Layer(SH[shape], max(tokens), 0), pm.Layer(SH[shape], max(tokens), 1)
    c = call_of(Path(sys.argv[1].split(chr(58))[0]) / f"{shape}-{sys.argv[1].split(chr(58))[1] if chr(58) in sys.argv[1] else chr(110)}.so", shape)
    for t in tokens:
        ia, ib = A.inputs(t), B.inputs(t); out = torch.empty(t, SH[shape][5], dtype=torch.bfloat16, device="cuda"); o2 = torch.empty_like(out)
        small = B.inputs(1)
        r = {"cold": [], "warm": [], "host": []}
        for _ in range(25):
            r["cold"].append(timed(lambda: c(ia, out, 1), lambda: None))
            r["warm"].append(timed(lambda: c(ia, out, 1), lambda: c(ib, o2, 1)))
            r["host"].append(timed(lambda: None, lambda: None))
        print(shape, t, {k: round(pm.median(v), 1) for k, v in r.items()}, "bound", round(A.bound(t)[0] * 1e3, 1), flush=True)
    del A, B; torch.cuda.empty_cache()
