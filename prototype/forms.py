"""forms.py KEY SOLUTION [T ...]: release 18 (.scout/v18, full only), release 19 and its routed form, interleaved; eager (cold L2) and six layers in one graph."""
import sys, json, pathlib, torch
from flashinfer_bench import Solution
from flashinfer_bench.compile import BuilderRegistry
from harness.evaluation import sweep
from harness.operators import routing_kinds
from harness.operators.catalogue import definition, GEOMETRIES
from harness.packing import pack
from harness.operators.moe_fp8_block_scale_routed import ROUTER_INSIDE
key, name = sys.argv[1:3]; Ts = [int(t) for t in sys.argv[3:]] or [1, 7, 8, 16, 32, 56, 64, 80, 128, 256, 901, 1024, 4096, 11948]
rkey = {v: k for k, v in ROUTER_INSIDE.items()}.get(key) or key.replace("full", "deepseek-v3-ep8") + "-routed"
full, routed = definition(key), definition(rkey); B = BuilderRegistry.get_instance(); dev = "cuda:0"
runs = {}
old = pathlib.Path(".scout/v18", name + ".json")
if key == "full" and old.exists(): runs["v18"] = B.build(full, Solution.model_validate_json(old.read_text()))
runs["v19"] = B.build(full, pack.pack(name)[key])
runs["routed"] = B.build(routed, pack.pack(name)[rkey])
L = 6 if key == "full" else 3
Tmax = max(Ts); base = sweep.random_inputs(full, Tmax, dev)
names = list(full.inputs); g = GEOMETRIES[key]; I = g["intermediate_size"]
def swap(w): a, b = w.chunk(2, dim=1); return torch.cat([b, a], 1).contiguous()
layers = []
for l in range(L):
    d = dict(zip(names, base))
    for n in names:
        if "weights" in n: d[n] = d[n] if l == 0 else (d[n].view(torch.uint8).flip(0).roll(l, 1).contiguous().view(d[n].dtype) if "scale" not in n else d[n].roll(l, 0).contiguous())
    layers.append(d)
gate = [dict(gemm1_weights=swap(d["gemm1_weights"].view(torch.uint8)).view(torch.float8_e4m3fn), gemm1_weights_scale=swap(d["gemm1_weights_scale"])) for d in layers]
FL = torch.empty(256 << 20, dtype=torch.uint8, device=dev)
def ev(f, flush=True):
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    if flush: FL.zero_()
    torch.cuda.synchronize(); a.record(); f(); b.record(); b.synchronize(); return a.elapsed_time(b) * 1e3
med = lambda x: sorted(x)[len(x) // 2]
def topk(logits, bias, off, fac):
    x = logits.float(); n = x.shape[0]
    if bias is None: c, e = x.topk(g["top_k"] if "top_k" in g else 8, -1); return e, c.softmax(-1)
    s = x.sigmoid(); b = s + bias.float(); G = 8 if "ng8" in full.name else 1
    if G == 8:
        gs = b.view(n, 8, -1).topk(2, -1).values.sum(-1); keep = torch.zeros_like(gs, dtype=torch.bool).scatter_(1, gs.topk(4, -1).indices, True)
        b = b.view(n, 8, -1).masked_fill(~keep[:, :, None], -1e30).view(n, -1)
    e = b.topk(8, -1).indices; w = s.gather(1, e); return e, w / (w.sum(-1, keepdim=True) + 1e-20) * fac
for T in Ts:
    forms = {k: [] for k in runs}; outs = {k: [torch.full((T, g["hidden_size"]), float("nan"), dtype=torch.bfloat16, device=dev) for _ in range(L)] for k in runs}
    for l, d in enumerate(layers):
        r = routing_kinds.tensors("real", T, key)
        ins = dict(zip(names, sweep.with_routing(full, [d[n] for n in names], r, dev)))
        for n in ("routing_logits",): ins[n] = ins[n].roll(l, 0).contiguous() if T > 1 else ins[n]
        for n in ("hidden_states", "hidden_states_scale"):
            ax = full.inputs[n].shape.index("seq_len"); ins[n] = ins[n].narrow(ax, 0, T).contiguous()
        e, w = topk(ins["routing_logits"][:T], ins.get("routing_bias"), ins.get("local_expert_offset", 0), ins.get("routed_scaling_factor", 1.0))
        ri = {**ins, **gate[l], "topk_ids": e.int().contiguous(), "topk_weights": w.float().contiguous(), "hidden_states_scale": ins["hidden_states_scale"].t().contiguous(), "local_expert_offset": ins.get("local_expert_offset", 0)}
        for k, f in runs.items():
            a = [ri[n] for n in routed.inputs] if k == "routed" else [ins[n] for n in names]
            forms[k].append(lambda f=f, a=a, o=outs[k][l]: f(*a, o))
    graphs = {}
    for k, fs in forms.items():
        s = torch.cuda.Stream()
        with torch.cuda.stream(s):
            for f in fs: f(); f()
        s.synchronize(); gr = torch.cuda.CUDAGraph()
        with torch.cuda.graph(gr, stream=s):
            for f in fs: f()
        graphs[k] = gr
    eager = {k: [] for k in runs}; many = {k: [] for k in runs}
    for i in range(41):
        order = list(runs) if i % 2 else list(runs)[::-1]
        for k in order: eager[k].append(ev(forms[k][i % L]))
        for k in order: graphs[k].replay(); many[k].append(ev(graphs[k].replay, False) / L)
    torch.cuda.synchronize(); ref = outs["v19"]
    err = {k: max(float((o.float() - r.float()).norm() / r.float().norm().clamp(min=1e-9)) for o, r in zip(outs[k], ref)) for k in runs}
    e, m = {k: med(v) for k, v in eager.items()}, {k: med(v) for k, v in many.items()}
    print(f"{key} {name} T={T} eager " + " ".join(f"{k} {v:.1f}" for k, v in e.items()) + " graph/layer " + " ".join(f"{k} {v:.2f}" for k, v in m.items()) + " err " + " ".join(f"{k} {v:.1e}" for k, v in err.items()), flush=True)
    del graphs, forms
