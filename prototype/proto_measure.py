"""measure.py BUILD: check and time each shape in a process of its own; a table on stdout, figures in ${OUT:-out}/table.json."""

import argparse
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

import torch
import tvm_ffi

sys.path.insert(0, str(Path(__file__).parent))
SHAPES = {}

TOKENS = (1, 8, 64, 256, 1024, 4096)
BANDWIDTH, FLOPS = 4.46e12, 1446e12


def experts_of(logits, bias, shape, factor):
    """The chosen experts [T, k] and weights [T, k]; of equal scores the lower expert's goes first."""
    experts, _, top_k, groups, kept, _, _, renorm = shape
    if renorm:
        value = logits.float()
        chosen = value.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
        return chosen, torch.softmax(value.gather(1, chosen), dim=-1)
    scores = torch.sigmoid(logits.float())
    biased = scores + bias.float()
    if groups > 1:
        by_group = biased.view(len(logits), groups, -1)
        group_scores = by_group.topk(2, dim=-1).values.sum(-1)
        closed = torch.ones_like(group_scores, dtype=torch.bool)
        closed.scatter_(1, group_scores.sort(dim=-1, descending=True, stable=True).indices[:, :kept], False)
        biased = by_group.masked_fill(closed.unsqueeze(-1), float("-inf")).flatten(1)
    chosen = biased.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    weights = scores.gather(1, chosen)
    return chosen, weights / (weights.sum(-1, keepdim=True) + 1e-20) * factor


class Layer:
    def __init__(self, shape, most, seed=0):
        experts, local, top_k, groups, kept, hidden, inter, renorm = self.shape = shape
        torch.manual_seed(seed)
        d = "cuda"
        popular = torch.randn(experts, device=d) * 0.5
        self.logits = torch.randn(most, experts, device=d) + popular
        self.bias = (-0.1 * popular + 0.02 * torch.randn(experts, device=d)).to(torch.bfloat16)
        if renorm:
            self.logits = self.logits.to(torch.bfloat16)
        self.x = torch.randn(most, hidden, device=d).to(torch.float8_e4m3fn)
        self.x_scale = (torch.rand(hidden // 128, most, device=d) + 0.5) * torch.where(torch.rand(hidden // 128, most, device=d) < 0.1, -1.0, 1.0)
        self.w1 = torch.empty(local, 2 * inter, hidden, device=d, dtype=torch.float8_e4m3fn)
        self.w2 = torch.empty(local, hidden, inter, device=d, dtype=torch.float8_e4m3fn)
        for e in range(local):
            self.w1[e] = torch.randn(2 * inter, hidden, device=d, dtype=torch.bfloat16).to(torch.float8_e4m3fn)
            self.w2[e] = torch.randn(hidden, inter, device=d, dtype=torch.bfloat16).to(torch.float8_e4m3fn)
        self.w1s = torch.randn(local, 2 * inter // 128, hidden // 128, device=d) / hidden**0.5
        self.w2s = torch.randn(local, hidden // 128, inter // 128, device=d) / inter**0.5
        self.factor = 2.5
        self.chosen, self.weights = experts_of(self.logits, self.bias, shape, self.factor)
        slices = torch.bincount(self.chosen[0] // local, minlength=(experts + local - 1) // local)
        self.offset = int(slices[: experts // local].argmax()) * local
        self.local = self.chosen - self.offset
        self.local[(self.local < 0) | (self.local >= local)] = -1

    def inputs(self, tokens):
        return (self.logits[:tokens], self.logits[:tokens] if self.shape[-1] else self.bias, self.x[:tokens],
                self.x_scale[:, :tokens].contiguous(), self.w1, self.w1s, self.w2, self.w2s, self.offset, self.factor)

    def bound(self, tokens):
        experts, local, top_k, _, _, hidden, inter, renorm = self.shape
        here = self.local[:tokens]
        rows, active = int((here >= 0).sum()), len(torch.unique(here[here >= 0]))
        size = 3 * hidden * inter
        moved = active * (size + size // 128 // 128 * 4) + tokens * (hidden * 3 + hidden // 128 * 4 + experts * (2 if renorm else 4))
        return max(moved / BANDWIDTH, 2.0 * size * rows / FLOPS) * 1e3, rows, active

    def reference(self, sample):
        """Rows of the output for the tokens in `sample`, in fp32 throughout."""
        _, local, _, _, _, hidden, inter, _ = self.shape
        x = self.x[sample].float() * self.x_scale[:, sample].t().repeat_interleave(128, 1)
        here, out = self.local[sample], torch.zeros(len(sample), hidden, device="cuda")
        for e in torch.unique(here[here >= 0]).tolist():
            t, slot = torch.nonzero(here == e, as_tuple=True)
            w1 = self.w1[e].float() * self.w1s[e].repeat_interleave(128, 0).repeat_interleave(128, 1)
            w2 = self.w2[e].float() * self.w2s[e].repeat_interleave(128, 0).repeat_interleave(128, 1)
            up, gate = (x[t] @ w1.t()).split(inter, 1)
            out.index_add_(0, t, (torch.nn.functional.silu(gate) * up) @ w2.t() * self.weights[sample][t, slot].unsqueeze(1))
        return out


FLUSH = None


def one_time(call):
    global FLUSH
    if FLUSH is None:
        FLUSH = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    FLUSH.zero_()
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def median(times):
    return sorted(times)[len(times) // 2]


def interleaved(calls, rounds):
    times = [[] for _ in calls]
    for call in calls:
        call(), call()
    for _ in range(rounds):
        for of, call in zip(times, calls):
            of.append(one_time(call))
    return [median(of) for of in times]


def loaded(build, name):
    return tvm_ffi.load_module(str(build / f"{name}.so")).run_layer


def judge(out, want):
    out = out.float()
    error = (out - want).norm() / want.norm()
    wrong = (out - want).abs()
    share = [float(((wrong <= atol) | (wrong <= rtol * want.abs())).float().mean()) for atol, rtol in ((0.01, 0.01), (0.1, 0.2))]
    return float(error), share


def family(build, name, tokens, rounds, lines):
    torch.backends.cuda.matmul.allow_tf32 = False
    shape = SHAPES[name]
    layer, kernel = Layer(shape, max(tokens)), loaded(build, name)
    ends = sorted({0, *tokens})
    sample = torch.cat([torch.linspace(a, b - 1, min(16, b - a), device="cuda").round().long() for a, b in zip(ends, ends[1:])])
    want = layer.reference(sample)
    for t in tokens:
        inputs = layer.inputs(t)
        bound, rows, active = layer.bound(t)
        seen = sample < t
        for path, most in (("one", 4096), ("many", 0)):
            if path == "one" and t > (224 if shape[1] <= 32 else 128):
                continue
            out = torch.full((t, shape[5]), float("nan"), dtype=torch.bfloat16, device="cuda")
            again = torch.full_like(out, float("nan"))
            kernel(*inputs, out, 1, most, -1, 0)
            torch.cuda.synchronize()
            error, share = judge(out[sample[seen]], want[seen])
            kernel(*inputs, again, 1, most, -1, 0)
            torch.cuda.synchronize()
            same, finite = bool(torch.equal(out, again)), bool(torch.isfinite(out).all())
            [ms] = interleaved([lambda: kernel(*inputs, out, 1, most, -1, 0)], rounds)
            target = 1.15 * bound + 0.025 if t <= 256 else 1.7 * bound
            lines.put(dict(shape=name, T=t, path=path, rows=rows, active=active, ms=ms, bound=bound, of_target=ms / target,
                           error=error, default=share[0], relaxed=share[1], same=same, finite=finite))


def against_base(build, tokens, rounds, lines):
    layer = Layer(SHAPES["ds8"], max(tokens))
    base, new = loaded(build, "base"), loaded(build, "ds8")
    for t in tokens:
        inputs = layer.inputs(t)
        out = [torch.full((t, 7168), float("nan"), dtype=torch.bfloat16, device="cuda") for _ in range(2)]
        times = interleaved([lambda: base(*inputs, out[0], 1), lambda: new(*inputs, out[1], 1, 224, -1, 0)], rounds)
        bound, rows, active = layer.bound(t)
        lines.put(dict(shape="ds8/base", T=t, base=times[0], ms=times[1], change=times[1] / times[0] - 1, bound=bound,
                       same=bool(torch.equal(*out))))


def trials(build, name, tokens, rounds, lines):
    """Other choices of the launcher: two terms or one, y in stripes."""
    layer, kernel = Layer(SHAPES[name], max(tokens)), loaded(build, name)
    for t in tokens:
        inputs, hidden = layer.inputs(t), layer.shape[5]
        out = torch.empty(t, hidden, dtype=torch.bfloat16, device="cuda")
        choices = [(exact, stripes) for exact in (0, 1 << 20) for stripes in (1, 2, 4) if hidden // stripes % 512 == 0]
        times = interleaved([lambda e=e, s=s: kernel(*inputs, out, 1, 0, e, s) for e, s in choices], rounds)
        lines.put(dict(trial=name, T=t, **{f"{1 + (e > 0)}t/{s}s": ms for (e, s), ms in zip(choices, times)}))


def extremes(build, name, tokens, rounds, lines):
    """Correctness where routing is extreme: all logits equal, and a few experts that nearly all tokens choose."""
    torch.backends.cuda.matmul.allow_tf32 = False
    layer, kernel = Layer(SHAPES[name], max(tokens)), loaded(build, name)
    experts, local = layer.shape[:2]
    for kind in ("equal", "skewed"):
        if kind == "equal":
            layer.logits, layer.bias, layer.offset = torch.zeros_like(layer.logits), torch.zeros_like(layer.bias), 0
        else:
            layer.logits = (torch.randn_like(layer.logits.float()) + 3 * torch.randn(experts, device="cuda")).to(layer.logits.dtype)
            layer.offset = experts - local
        layer.chosen, layer.weights = experts_of(layer.logits, layer.bias, layer.shape, layer.factor)
        layer.local = layer.chosen - layer.offset
        layer.local[(layer.local < 0) | (layer.local >= local)] = -1
        sample = torch.cat([torch.arange(3), torch.linspace(3, max(tokens) - 1, 40).round().long()]).cuda()
        want = layer.reference(sample)
        for t in tokens:
            seen = sample < t
            for path, most in (("one", 4096), ("many", 0)):
                if path == "one" and t > (224 if local <= 32 else 128):
                    continue
                out = torch.full((t, layer.shape[5]), float("nan"), dtype=torch.bfloat16, device="cuda")
                kernel(*layer.inputs(t), out, 1, most, -1, 0)
                torch.cuda.synchronize()
                error = float((out[sample[seen]].float() - want[seen]).norm() / want[seen].norm().clamp(min=1e-9))
                lines.put(dict(extreme=name, kind=kind, T=t, path=path, error=error, finite=bool(torch.isfinite(out).all())))


def versus(build, name, tokens, rounds, other, lines):
    """Two builds of one shape, interleaved."""
    layer = Layer(SHAPES[name], max(tokens))
    kernels = [loaded(build, name), loaded(other, name)]
    sample = torch.linspace(0, min(tokens) - 1, 48, device="cuda").round().long().unique()
    want = layer.reference(sample)
    for t in tokens:
        inputs = layer.inputs(t)
        out = [torch.full((t, layer.shape[5]), float("nan"), dtype=torch.bfloat16, device="cuda") for _ in kernels]
        times = interleaved([lambda k=k, o=o: k(*inputs, o, 1, 4096, -1, 0) for k, o in zip(kernels, out)], rounds)
        errors = [judge(o[sample], want)[0] for o in out]
        lines.put(dict(versus=name, T=t, ms=times[0], other=times[1], change=times[1] / times[0] - 1, error=errors[0], other_error=errors[1]))


def stages(build, name, tokens, rounds, lines):
    """Kernel by kernel, by the profiler, and where the time of one launch goes, if built with -DMOE_TIMES."""
    from torch.profiler import ProfilerActivity, profile

    layer, module = Layer(SHAPES[name], max(tokens)), tvm_ffi.load_module(str(build / f"{name}.so"))
    kernel = module.run_layer
    for t in tokens:
        inputs, hidden = layer.inputs(t), layer.shape[5]
        out = torch.empty(t, hidden, dtype=torch.bfloat16, device="cuda")
        if t <= 128 and hasattr(module, "fused_times"):
            for most in [4096]:
                call = lambda: kernel(*inputs, out, 1, most, -1, 0)  # noqa: E731
                call()
                kept = []
                for _ in range(9):
                    one_time(call)
                    read = torch.zeros(132, 8, dtype=torch.int64)
                    module.fused_times(read)
                    began = read[:, 0].min()
                    kept.append(torch.cat([((read[:, i] - began).double() / 1e3).quantile(torch.tensor([0.5, 1.0], dtype=torch.float64)) for i in range(7)]))
                middle = torch.stack(kept).median(0).values.tolist()
                lines.put(dict(times=name, T=t, **{f"m{i}": "%.1f..%.1f" % (middle[2 * i], middle[2 * i + 1]) for i in range(7)}))
        call = lambda: kernel(*inputs, out, 1, 0, -1, 0)  # noqa: E731
        call()
        with profile(activities=[ProfilerActivity.CUDA]) as p:
            for _ in range(10):
                one_time(call)
        events = [e for e in p.events() if "many" in e.name]
        by = {}
        for e in events:
            by.setdefault(e.name.split("(")[0].split("<")[0].replace("void ", ""), []).append((e.time_range.start, e.time_range.end))
        order = {k: (median([end - start for start, end in v])) for k, v in by.items()}
        first = sorted(by.get("many_route", []))
        last = sorted(by.get("many_combine", []))
        lines.put(dict(stages=name, T=t, **order, whole=median([b[1] - a[0] for a, b in zip(first, last)]) if first else 0))


def text(line):
    return " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in line.items())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=Path)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--tokens", type=int, nargs="*", default=TOKENS)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--timeout", type=float, default=45)
    parser.add_argument("--base", type=int, nargs="*")
    parser.add_argument("--versus", type=Path, help="another build's folder: time both, interleaved, and nothing else of the shapes")
    parser.add_argument("--out", default="table.json")
    parser.add_argument("--extremes", nargs="*", default=[])
    parser.add_argument("--trials", nargs="*", default=[])
    parser.add_argument("--stages", nargs="*", default=[])
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    records = []
    jobs = [(name, family, (args.build, name, args.tokens, args.rounds)) for name in args.shapes]
    for name in args.trials:
        jobs.append((name, trials, (args.build, name, args.tokens, args.rounds)))
    for name in args.shapes if args.versus else ():
        jobs = [job for job in jobs if job[1] is not family]
    for name in args.shapes if args.versus else ():
        jobs.append((name, versus, (args.build, name, args.tokens, args.rounds, args.versus)))
    for name in args.extremes:
        jobs.append((name, extremes, (args.build, name, [3, 100, 129, 901, 4099], args.rounds)))
    for name in args.stages:
        jobs.append((name, stages, (args.build, name, args.tokens, args.rounds)))
    if args.base:
        jobs.append(("base", against_base, (args.build, args.base, 31)))
    for name, work, arguments in jobs:
        began, lines = time.time(), context.Queue()
        child = context.Process(target=work, args=(*arguments, lines))
        child.start()
        while child.is_alive() and time.time() - began < args.timeout or not lines.empty():
            try:
                line = lines.get(timeout=0.2)
            except Exception:
                continue
            records.append(line)
            print(text(line), flush=True)
        if child.is_alive():
            print(name, "HANGS", flush=True)
            child.kill()
        child.join()
        print(f"{name}: exit {child.exitcode}, {time.time() - began:.1f} s", flush=True)
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], args.out).write_text(json.dumps(records, indent=0))


if __name__ == "__main__":
    main()
