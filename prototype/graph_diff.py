"""Why do a CUDA graph's results differ from an eager call's? triton_fused_v2 and hopper_fused behind a router, 256 experts.

    PYTHONPATH=scripts:. python graph_diff.py                      # from the repository's root; ~40 s on one H200, 12 GB
    PYTHONPATH=scripts:.:TRANSFORMERS python graph_diff.py --model # the whole model, module by module; ~90 s, 70 GB
    ... --variants     # also: gemm1 with fence.proxy.async before wgmma, and without cp.async (runs by itself on a finding)

Every line: what ran, how often, in how many calls some bit differed from the first call's, in which rows, and how far.
How to read it:
  eager differs               the kernels race; the first stage named is the one (h: gemm1, y: gemm2, pair_of_row: permute)
  only "memory spoilt"        something reads what nobody wrote
  only graphs, also stages    timing or parameters of the launches; "stages, graph" says where
  only "launched from Python" / all but it: replay.cpp
  fenced variant repeats      gemm1's missing fence.proxy.async (branch h-graph has the fix, a commit of its own)
  nothing                     the layer is right: --model names the model's first module whose output is not the same
Needs no network: torch 2.11, triton 3.6, tvm_ffi, nvcc for hopper_fused (left out where it does not build).
Free memory is filled with 0xFF (NaN, -1) between calls: the allocator's free blocks, a graph's own free blocks, and in the
stage tests every intermediate result before each replay.
"""

import argparse
import importlib
import importlib.util
import os
import sys
import tempfile
import time
from pathlib import Path

if "--cpu" in sys.argv:  # a dry run of this script in the interpreter, tiny sizes, no graph
    os.environ["TRITON_INTERPRET"] = "1"
    from harness.core import interpreter  # noqa: F401

import torch  # noqa: E402
from harness.operators.catalogue import GEOMETRIES  # noqa: E402
from harness.packing import pack  # noqa: E402

T0 = time.monotonic()
CUDA = "--cpu" not in sys.argv
DEVICE = "cuda" if CUDA else "cpu"
GEOMETRY = "deepseek-v3-ep1-routed" if CUDA else "small-routed"
FENCE = (  # text of gemm1_swiglu_quant.py that it goes before, the fence
    "            up += tl.dot(up_w, x.T) * (x_scale * up_scale)[None, :]\n",
    '            tl.inline_asm_elementwise("fence.proxy.async.shared::cta; mov.b32 $0, $1;", "=r,r", [k],'
    " dtype=tl.int32, is_pure=False, pack=1)\n",
)
found = []  # findings, said again at the end


def say(text):
    print(f"[{time.monotonic() - T0:5.1f} s] {text}", flush=True)


# ---- packages ----


def package(solution, parent, edit=None):
    """The package of a solution, imported; its kernels are compiled at the first call. edit: (file's name, old, new)."""
    parent.mkdir()
    (folder,) = pack.pack_packages([solution], parent, [GEOMETRY])
    if edit:
        name, old, new = edit
        (path,) = folder.rglob(name)
        text = path.read_text()
        assert text.count(old) == 1, f"{name}: no such line"
        path.write_text(text.replace(old, new))
    named = f"{parent.name}_{folder.name}"
    spec = importlib.util.spec_from_file_location(named, folder / "__init__.py", submodule_search_locations=[str(folder)])
    sys.modules[named] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def part(module, name):
    return importlib.import_module(f"{module.__name__}.{name}")


# ---- inputs ----


def weights():
    of = GEOMETRIES[GEOMETRY]
    experts, hidden, inter = of["num_local_experts"], of["hidden_size"], of["intermediate_size"]
    random = torch.Generator(DEVICE).manual_seed(0)

    def fp8(rows, columns):
        w = torch.empty(experts, rows, columns, dtype=torch.float8_e4m3fn, device=DEVICE)
        for one in w:
            one.copy_(torch.randn(rows, columns, generator=random, device=DEVICE))
        return w

    def scale(rows, columns):
        return 0.02 * (0.5 + torch.rand(experts, rows // 128, columns // 128, generator=random, device=DEVICE))

    return fp8(2 * inter, hidden), scale(2 * inter, hidden), fp8(hidden, inter), scale(hidden, inter)


def tokens(count, seed):
    of = GEOMETRIES[GEOMETRY]
    random = torch.Generator(DEVICE).manual_seed(seed)
    x = torch.randn(count, of["hidden_size"], generator=random, device=DEVICE).bfloat16()
    liked = torch.randn(of["num_local_experts"], generator=random, device=DEVICE)  # as routers do, some more than others
    score = torch.randn(count, of["num_local_experts"], generator=random, device=DEVICE) + liked
    chosen = score.topk(of["top_k"], -1)
    return x, chosen.indices.to(torch.int32), 2.5 * chosen.values.sigmoid() / chosen.values.sigmoid().sum(-1, True)


# ---- memory that nobody may read ----


class Raw:
    """Bytes at an address, for torch.as_tensor."""

    def __init__(self, address, size):
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": (size,), "typestr": "|u1", "strides": None, "version": 2
        }  # fmt: skip


def poison(pool=None):
    """Fill free blocks with 0xFF: the default pool's by allocating them, a graph's where they are."""
    if not CUDA:
        return
    held = []
    for segment in torch.cuda.memory_snapshot():
        if tuple(segment["segment_pool_id"]) != tuple(pool or (0, 0)):
            continue
        at = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                if pool:
                    torch.as_tensor(Raw(at, block["size"]), device="cuda").fill_(0xFF)
                else:
                    held.append(block["size"])
            at += block["size"]
    kept = [torch.empty(size, dtype=torch.uint8, device="cuda").fill_(0xFF) for size in sorted(held, reverse=True)]
    del kept
    if CUDA:
        torch.cuda.synchronize()


def spoil(results):
    for one in results.values():
        one.view(-1).view(torch.uint8).fill_(0xFF)


# ---- comparing ----


def bits(tensor):
    return tensor.contiguous().view(torch.uint8).flatten(1) if tensor.dim() > 1 else tensor.contiguous().view(-1, 1)


def compare(what, call, first, seconds, between=lambda: None):
    """Call for so many seconds; each result, a dict of tensors, with the first's. Says and keeps what differs."""
    wrong, stages, rows, most, calls = 0, {}, set(), 0.0, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end or calls < 3:
        between()
        got = call()
        calls += 1
        if any(not torch.equal(bits(got[name]), bits(first[name])) for name in first):
            wrong += 1
            for name in first:
                differs = (bits(got[name]) != bits(first[name])).any(-1)
                if differs.any():
                    stages[name] = stages.get(name, 0) + 1
                    at = differs.nonzero().flatten().tolist()
                    if name == "output":
                        rows.update(at)
                        apart = (got[name].float() - first[name].float()).abs().max().item()
                        most = max(most, apart) if apart == apart else float("nan")
                    elif wrong <= 2:
                        columns = (bits(got[name])[at[0]] != bits(first[name])[at[0]]).nonzero().flatten().tolist()
                        say(f"      {name}: rows {at[:8]}, of row {at[0]} bytes {columns[0]}..{columns[-1]} ({len(columns)})")
    line = f"{what}: {calls} calls, {wrong} differ"
    if wrong:
        order = [f"{name} ({stages[name]})" for name in first if name in stages]
        line += f"; first at {order[0]}, all: {', '.join(order)}; output rows {sorted(rows)[:12]}, by up to {most:.4g}"
        found.append(line)
    say(line)
    return wrong


def captured(call):
    """(replay, the results of it, its memory pool)."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    pool = graph.pool()

    def replay():
        graph.replay()
        return results

    return replay, results, pool


# ---- what is called ----


def layer(run, given, w):
    """One call; a dict with its output."""
    output = torch.full_like(given[0], torch.nan)

    def call():
        output.fill_(torch.nan)
        run(*given, *w, 0, output)
        return {"output": output}

    return call


def chain(run, given, w, layers=4):
    """Some layers as in a model: each one's tokens are the normalised sum so far; scratch is used again and again."""
    x, ids, factors = given

    def call():
        total, results = x, {}
        for n in range(layers):
            normal = torch.nn.functional.rms_norm(total, total.shape[-1:])
            one = torch.empty_like(normal)
            run(normal, ids.long().roll(n, 0).to(torch.int32), factors.roll(n, 0).float(), *w, 0, one)
            total = total + one
            results[f"layer {n}"] = one
        return results | {"output": total}

    return call


def stages(module, given, w):
    """triton_fused_v2's run_routed_bf16, all that it makes kept. Rows that no tile uses are left out of what is compared."""
    main = part(module, "main")
    x, ids, factors = given
    choice = main.choice_of(x, *w)
    plan = main.permute(ids, w[0].shape[0], choice.gemm1.block_m, first_expert=0)
    used, rows = int(plan.num_tiles), int(plan.num_rows)

    def call():
        q, q_scale = main.quantise_tokens(x)
        p = main.permute(ids, w[0].shape[0], choice.gemm1.block_m, first_expert=0)
        h, h_scale = main.first_product(q, q_scale, *w[:2], p, choice)
        y = torch.empty(p.pair_of_row.shape[0], x.shape[1], dtype=torch.bfloat16, device=x.device)
        output = torch.empty_like(x)
        main.gemm2(h, h_scale, *w[2:], p, 0, y, choice.gemm2, choice.tma)
        main.combine(y, p.row_of_pair, factors, output, 0)
        return {
            "quantised": q,
            "its scale": q_scale,
            "row_of_pair": p.row_of_pair,
            "pair_of_row": p.pair_of_row[:rows],
            "tile_expert": p.tile_expert[:used],
            "num_tiles": p.num_tiles,
            "h": h[:rows],
            "h_scale": h_scale[:rows],
            "y": y[:rows],
            "output": output,
        }

    return call, f"{choice.gemm1}, {choice.gemm2}, fused={choice.fused}, tma={choice.tma}, {used} tiles"


def copies(results):
    return {name: tensor.clone() for name, tensor in results.items()}


def check(name, run, given, w, seconds, bypass=None):
    """All tests of one solution at one number of tokens. bypass: the function without `replayed`."""
    count = len(given[0])
    call = layer(run, given, w)
    first = copies(call())
    assert torch.isfinite(first["output"]).all(), "the first output is not finite"
    wrong = compare(f"{name} T={count}: eager", call, first, seconds)
    wrong += compare(f"{name} T={count}: eager, memory spoilt", call, first, seconds, poison)
    if bypass:
        wrong += compare(f"{name} T={count}: eager, launched from Python", layer(bypass, given, w), first, seconds, poison)
    links = chain(run, given, w)
    eager = copies(links())
    wrong += compare(f"{name} T={count}: 4 layers, eager", links, eager, seconds)
    if CUDA:
        for what, of, to, reach in (("one layer", call, first, 1), ("4 layers", links, eager, 2)):
            replay, results, pool = captured(of)

            def between(results=results, pool=pool):
                spoil(results)
                poison(pool)

            wrong += compare(f"{name} T={count}: {what}, graph", replay, to, reach * seconds)
            wrong += compare(f"{name} T={count}: {what}, graph, its memory spoilt", replay, to, seconds, between)
            del replay, results
    return wrong


def check_stages(name, module, given, w, seconds):
    """By stage; ms of a replay."""
    count = len(given[0])
    call, choice = stages(module, given, w)
    say(f"{name} T={count}: {choice}")
    first = copies(call())
    wrong = compare(f"{name} T={count}: stages, eager", call, first, seconds, poison)
    if CUDA:
        replay, results, _ = captured(call)
        wrong += compare(f"{name} T={count}: stages, graph", replay, first, seconds)
        wrong += compare(f"{name} T={count}: stages, graph, all spoilt", replay, first, seconds, lambda: spoil(results))
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        marks[0].record()
        for _ in range(20):
            replay()
        marks[1].record()
        torch.cuda.synchronize()
        say(f"{name} T={count}: {marks[0].elapsed_time(marks[1]) / 20:.4f} ms a replay of all stages")
    return wrong


def check_variants(folder, given, w, seconds):
    """gemm1 with a proxy fence between cp.async's data and wgmma; without cp.async; with fewer stages in flight."""
    old, fence = FENCE
    fenced = package("triton_fused_v2", folder / "fenced", ("gemm1_swiglu_quant.py", old, fence + old))
    check_stages("gemm1 with fence.proxy.async", fenced, given, w, seconds)
    for label, changes in {
        "gemm1 without cp.async": {"num_stages": 1},
        "gemm1 of 3 stages": {"num_stages": 3},
        "gemm1 of a tile a program": {"programs": 1 << 20},
    }.items():
        module = package("triton_fused_v2", folder / f"v{abs(hash(label))}")
        main = part(module, "main")
        choose = main.choose

        def other(*sizes, choose=choose, changes=changes):
            choice = choose(*sizes)
            return choice._replace(gemm1=choice.gemm1._replace(**changes))

        main.choose = other
        check_stages(label, module, given, w, seconds)


# ---- the model ----


def check_model(args):
    """Every module's output in two eager steps, in a graph's replay, and in a second one; the first that differ."""
    from harness.commands.generate import adapter
    from harness.served import deepseek_v3, generation
    from harness.served.passes import capture

    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        packages = pack.pack_packages(args.solutions, Path(folder), [GEOMETRY])
        names = [adapter(path).register() for path in packages]
        model = deepseek_v3.build(GEOMETRY, args.layers, DEVICE)
        say("model built")
        kept = {}

        def hook(name):
            def keep(module, given, output):
                out = output if isinstance(output, tuple) else (output,)
                for n, one in enumerate(out):
                    if isinstance(one, torch.Tensor):
                        kept[f"{name}[{n}]"] = one.clone()

            return keep

        for name in [deepseek_v3.BF16, *names]:
            model.use(name)
            hooks = [m.register_forward_hook(hook(n)) for n, m in model.lm.named_modules() if n and n != "model"]
            for batch in args.tokens:
                for turn in range(args.turns):
                    step = generation.decode_in_place(model, batch, 256 if CUDA else 2)
                    step()
                    seen = {}
                    for which in ("a step", "the next step"):
                        kept.clear()
                        seen[which] = {"logits": step().clone()} | dict(kept)
                    if CUDA:
                        kept.clear()
                        replay = capture(step)
                        inside = dict(kept)
                        for which in ("a replay", "the next replay"):
                            for one in inside.values():
                                one.view(-1).view(torch.uint8).fill_(0xFF)
                            logits = replay()
                            seen[which] = {"logits": logits.clone()} | copies(inside)
                        replay = inside = None
                    pairs = [("a step", "the next step"), ("the next step", "a replay"), ("a replay", "the next replay")]
                    for one, other in pairs if CUDA else pairs[:1]:
                        differ(f"{name} batch {batch} turn {turn}: {one} and {other}", seen[one], seen[other])
                    kept.clear()
                    step = seen = None
            for one in hooks:
                one.remove()


def differ(what, one, other):
    names = []
    for name in [key for key in one if key != "logits"] + ["logits"]:
        a, b = (of[name].flatten(0, -2) if of[name].dim() > 1 else of[name][None] for of in (one, other))
        rows = (bits(a) != bits(b)).any(-1)
        if rows.any():
            most = (a.float() - b.float()).abs().max().item()
            names.append(f"{name}: {int(rows.sum())} of {len(rows)} rows, by up to {most:.3g}")
    line = f"{what}: {len(names)} of {len(one)} outputs differ"
    say(line)
    for name in names[:6] + names[-1:] if len(names) > 6 else names:
        say(f"      {name}")
    if names:
        found.append(f"{line}; first {names[0]}; last {names[-1]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--solutions", nargs="+", default=["triton_fused_v2", "hopper_fused"] if CUDA else ["triton_fused_v2"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[8, 32] if CUDA else [2])
    parser.add_argument("--seconds", type=float, default=0.4, help="of each test; the race tests of triton_fused_v2: twice")
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--model", action="store_true")
    parser.add_argument("--layers", type=int, default=2 if CUDA else 1)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    named = f"torch {torch.__version__}, triton {__import__('triton').__version__}, tvm_ffi {__import__('tvm_ffi').__version__}"
    say(f"{torch.cuda.get_device_name() if CUDA else 'cpu'}: {named}")
    if args.model:
        check_model(args)
    else:
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            folder, w = Path(folder), weights()
            say("weights are there")
            wrong = 0
            for solution in args.solutions:
                try:
                    module = package(solution, folder / solution)
                    triton = hasattr(part(module, "main"), "first_product")
                    for count in args.tokens:
                        given = tokens(count, seed=count)
                        bypass = getattr(module.run_bf16, "__wrapped__", None) if triton else None
                        if triton and CUDA and not bypass:
                            say("replay is not in use: its C++ part did not build, or triton is not 3.6")
                        wrong += check(solution, module.run_bf16, given, w, args.seconds, bypass)
                        if triton:
                            wrong += check_stages(solution, module, given, w, 2 * args.seconds)
                except Exception as error:
                    say(f"{solution}: {type(error).__name__}: {error}")
                    found.append(f"{solution}: {type(error).__name__}: {error}")
            if CUDA and (args.variants or wrong and "triton_fused_v2" in args.solutions):
                try:
                    check_variants(folder, tokens(args.tokens[-1], seed=args.tokens[-1]), w, 2 * args.seconds)
                except Exception as error:
                    say(f"variants: {type(error).__name__}: {error}")
    say(f"{len(found)} findings" + "".join(f"\n  * {line}" for line in found))


main()
