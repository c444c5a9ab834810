"""warm_triton.py DEFINITION SOLUTION...: calls each solution at each token count of the definition once, with weights of zeros, so that Triton's kernels are compiled."""
import sys, time, torch
from flashinfer_bench.compile import BuilderRegistry
from harness.evaluation import run
from harness.operators.catalogue import definition, GEOMETRIES
from harness.packing import pack
from harness.evaluation.selection import select
key, names = sys.argv[1], sys.argv[2:]
full = definition(key); packed = {n: pack.pack(n)[key] for n in names if key in pack.pack(n)}
axes = {k: a.value for k, a in full.axes.items() if a.type == "const"}
built = {}
for n, p in packed.items():
    t0 = time.time()
    try: built[n] = BuilderRegistry.get_instance().build(full, p)
    except Exception as e: print(key, n, "BUILD", repr(e)[:300], flush=True); continue
    if time.time() - t0 > 3: print(key, n, f"built {time.time() - t0:.0f}s", flush=True)
dt = lambda s: getattr(torch, s.dtype.value)
fixed = {}
Ts = sorted({w.axes["seq_len"] for _, w in run.load_workloads(key, [])})
for T in Ts:
    args = []
    for name, spec in full.inputs.items():
        if spec.shape is None: args.append({"local_expert_offset": 0, "routed_scaling_factor": 2.5}[name]); continue
        shape = [T if a == "seq_len" else axes[a] for a in spec.shape]
        if "seq_len" in spec.shape:
            x = torch.randn(shape, device="cuda"); args.append(x.to(dt(spec)))
        else:
            if name not in fixed: fixed[name] = torch.zeros(shape, dtype=dt(spec), device="cuda")
            args.append(fixed[name])
    out = torch.empty(T, axes["hidden_size"], dtype=torch.bfloat16, device="cuda")
    for n, r in built.items():
        t0 = time.time()
        try: r(*args, out); torch.cuda.synchronize()
        except Exception as e: print(key, n, T, "ERR", repr(e)[:300], flush=True)
print(key, "warm", flush=True)
