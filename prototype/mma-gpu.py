"""First run of mma_fused on a GPU. mma-gpu.py build GEOMETRY CONFIG | pack SOLUTION | warm SOLUTION T,T.. | stages GEOMETRY CONFIG T,T.. [CTAS,.. [REPEATS]] |
many | compare T,T,..   CONFIG: 227,1,1 and so on. From the repository's root, PYTHONPATH=scripts:.:tests/support."""
import json, os, sys, time
from pathlib import Path
import torch
import hopper_stages as stages
import mma_small_layer as small
from solutions.kernels.build_library import build_library, load_library

OUT = Path(os.environ.get("OUT", "/tmp"))
AWAIT = r'''
// Waits for the launch. Where it hangs: prints what its counters say, read through another stream, and ends the process.
#include <unistd.h>
#include <chrono>
#include <cstdio>
static void await_launch(const FusedScratch* scratch, cudaStream_t stream, uint8_t* bytes, cudaStream_t other) {
  const auto begin = std::chrono::steady_clock::now();
  for (int said = 0; cudaStreamQuery(stream) == cudaErrorNotReady;) {
    cudaGetLastError();
    if (std::chrono::steady_clock::now() - begin < std::chrono::seconds(3 * (said + 1))) continue;
    cudaMemcpyAsync(bytes, scratch, offsetof(FusedScratch, mask), cudaMemcpyDeviceToHost, other);
    cudaStreamSynchronize(other);
    const FusedScratch& s = *reinterpret_cast<const FusedScratch*>(bytes);
    unsigned most = 0, whole = 0, slices = 0, sums = 0;
    for (unsigned n : s.slices_stored) whole += n == kSlices, slices += n, most += n > kSlices;
    for (unsigned n : s.sums_added) sums += n;
    fprintf(stderr, "HANG after %d s: counters: routed %u finished %u; chunks whole %u, over full %u, slices %u of %d each; sums added %u\n",
            3 * (said + 1), s.counters[kRouted], s.counters[kFinished], whole, most, slices, kSlices, sums);
    if (++said == 2) _exit(99);
  }
  cudaGetLastError();
}
'''
LAUNCH = "  if (const cudaError_t error = launch_fused_layer(maps, args, ctas, stream)) return error;"

BEFORE = """  static cudaStream_t other = [] { cudaStream_t s; cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking); return s; }();
  static uint8_t* bytes = [] { void* p; cudaMallocHost(&p, kCounters); return (uint8_t*)p; }();
"""

def sources(geometry):
    texts = small.stage_sources(geometry)
    sample = texts["stages.cu"]
    assert sample.count(LAUNCH) == 1
    at = sample.index("static cudaError_t launch_and_read_out(const TensorMaps& maps, const FusedArgs& args, int ctas, cudaStream_t stream) {")
    texts["stages.cu"] = sample[:at] + AWAIT + sample[at:].replace(LAUNCH, BEFORE + LAUNCH + "\n  await_launch(&scratch, stream, bytes, other);")
    return texts


def build(geometry, configuration):
    return build_library("mma_gpu_stages", sources(geometry), architecture="9.0", flags=small.flags(configuration))


def run_stages(geometry, configuration, counts, grids=(0,), repeats=0):
    t0 = time.time()
    library, of = load_library(build(geometry, configuration)), stages.sizes(geometry)
    weights = stages.weights(of, "cuda")
    bad = 0
    for count in counts:
        arguments = stages.tokens(of, count, "cuda") | weights
        for ctas in grids:
            what = f"{geometry} {configuration} T={count}" + (f" CTAs={ctas}" if ctas else "")
            output, arrays, numbers = stages.call(library, of, arguments, ctas)
            h = arrays["h"].view(torch.float16).view(-1, of["intermediate_size"])
            scale = arrays["h_scale"].view(torch.float32).view(-1, of["intermediate_size"] // 32)
            fault = small.first_fault(of, arguments, output, h, scale)
            counters = "" if not arrays["counters"].any() else " COUNTERS NOT ZERO"
            same = [torch.equal(stages.call(library, of, arguments, ctas)[0], output) for _ in range(repeats)]
            bad += fault is not None or bool(counters) or not all(same)
            print(f"{what}: {fault or 'right'}{counters}{'' if all(same) else f' REPEATS DIFFER {same.count(False)}'}", flush=True)
    print(f"-- {geometry} {configuration}: {bad} wrong, {time.time() - t0:.0f} s", flush=True)
    return bad > 0


def packed(name, geometry="full"):
    from flashinfer_bench.compile import BuilderRegistry
    from harness.operators.catalogue import definition
    from harness.packing import pack
    return BuilderRegistry.get_instance().build(definition(geometry), pack.pack(name)[geometry])


def layer(most, seed=0):
    from definitions import moe_fp8_block_scale as moe
    """Arguments of `full` by name, as a trained router's: popularity, and most of it taken back by the bias."""
    g = torch.Generator("cuda").manual_seed(seed)
    rand = lambda *shape: torch.randn(shape, generator=g, device="cuda")
    popular = 0.4 * rand(256)
    logits, bias = rand(most, 256) - 0.5 + popular, (-0.135 * popular + 0.01 * rand(256)).bfloat16()
    fp8 = lambda *shape: torch.cat([rand(1, *shape[1:]).to(torch.float8_e4m3fn).view(torch.uint8) for _ in range(shape[0])]).view(torch.float8_e4m3fn)
    return {"routing_logits": logits, "routing_bias": bias, "hidden_states": rand(most, 7168).to(torch.float8_e4m3fn),
            "hidden_states_scale": rand(56, most), "gemm1_weights": fp8(32, 4096, 7168), "gemm1_weights_scale": rand(32, 32, 56) / 85,
            "gemm2_weights": fp8(32, 7168, 2048), "gemm2_weights_scale": rand(32, 56, 16) / 45,
            "local_expert_offset": 32 * int((moe.route(logits[:1], bias, 1.0)[0] // 32).mode().values), "routed_scaling_factor": 2.5}


def first(arguments, count):
    new = dict(arguments)
    for name in ("routing_logits", "hidden_states"): new[name] = arguments[name][:count].contiguous()
    new["hidden_states_scale"] = arguments["hidden_states_scale"][:, :count].contiguous()
    return new


def many(counts=(300, 1000, 3000)):
    """Above 256 tokens: as sm_90 takes it, and the fp16 products of sm_89 and of sm_80 forced here."""
    from definitions import moe_fp8_block_scale as moe
    from harness.evaluation.tolerances import matched_ratios
    main = sys.modules[packed("mma_fused")._callable.__module__]
    module = sys.modules[main.many_tokens.__module__]
    own, run = module.choose_many, getattr(module.many_tokens, "__wrapped__", module.many_tokens)
    everything = layer(max(counts))
    for kind, choose in (("own", own), ("cvt", lambda a, *o: own("sm_89", *o)), ("bytes", lambda a, *o: own("sm_80", *o))):
        module.choose_many = choose
        for count in counts:
            arguments, out = first(everything, count), torch.full((count, 7168), torch.nan, dtype=torch.bfloat16, device="cuda")
            call = lambda: run(*arguments.values(), out)
            call(); torch.cuda.synchronize()
            ok = {k: round(float(v), 4) for k, v in matched_ratios(out, moe.run(**arguments)).items()}
            us = sorted(timed(call) for _ in range(11))[5]
            print(f"-- many T={count} {kind}: {ok} {us:.0f} us", flush=True)
    return 0


FLUSH = None
def timed(call):
    global FLUSH
    FLUSH = torch.empty(256 << 20, dtype=torch.uint8, device="cuda") if FLUSH is None else FLUSH
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    FLUSH.zero_(); torch.cuda.synchronize(); a.record(); call(); b.record(); b.synchronize()
    return a.elapsed_time(b) * 1e3


def warm(name, counts):
    """So that Triton's kernels are compiled."""
    function, everything = packed(name), layer(max(counts))
    for count in counts:
        function(*first(everything, count).values(), torch.empty((count, 7168), dtype=torch.bfloat16, device="cuda"))
    torch.cuda.synchronize()
    return 0


def compare(counts, names=("mma_fused", "hopper_fused", "triton_fused_v2", "sglang_triton"), rounds=31):
    from definitions import moe_fp8_block_scale as moe
    from harness.evaluation.tolerances import matched_ratios
    t0, built = time.time(), {}
    for name in names:
        try: built[name] = packed(name)
        except Exception as error: print(f"{name}: {error!r}"[:300], flush=True)
    everything, records = layer(max(counts)), []
    print(f"-- compare: ready after {time.time() - t0:.0f} s; us: events, in a graph; (x hopper_fused)", flush=True)
    for count in counts:
        arguments = first(everything, count)
        experts = moe.route(arguments["routing_logits"], arguments["routing_bias"], 1.0)
        local = experts[0] - arguments["local_expert_offset"]
        here = (local >= 0) & (local < 32)
        active = len(local[here].unique())
        want = moe.run(**arguments)
        row = {"T": count, "active": active, "rows": int(here.sum()), "bound": active * 44.04e6 / 4.46e12 * 1e6}
        calls, graphs = {}, {}
        for name, function in built.items():
            out = torch.full((count, 7168), torch.nan, dtype=torch.bfloat16, device="cuda")
            calls[name] = lambda function=function, out=out: function(*arguments.values(), out)
            try:
                calls[name](); torch.cuda.synchronize()
                row[name + ".ok"] = {k: round(float(v), 4) for k, v in matched_ratios(out, want).items()}
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph): calls[name]()
                calls[name](); out.fill_(torch.nan); graph.replay(); torch.cuda.synchronize()
                row[name + ".graph_ok"] = round(float(matched_ratios(out, want)["default"]), 4)
                graphs[name] = graph
            except Exception as error:
                print(f"{name} T={count}: {error!r}"[:300], flush=True); calls.pop(name, None)
        for kind, of in (("us", calls), ("graph_us", {n: g.replay for n, g in graphs.items()})):
            times = {name: [] for name in of}
            for turn in range(rounds):
                for name in (list(of) if turn % 2 else list(of)[::-1]): times[name].append(timed(of[name]))
            for name, values in times.items(): row[f"{name}.{kind}"] = round(sorted(values)[rounds // 2], 1)
        records.append(row)
        base = row.get("hopper_fused.us"), row.get("hopper_fused.graph_us")
        cells = []
        for name in built:
            us, graph = row.get(name + ".us"), row.get(name + ".graph_us")
            ratio = f" ({us / base[0]:.2f}x {graph / base[1]:.2f}x)" if us and graph and all(base) and name == "mma_fused" else ""
            cells.append(f"{name[:6]} {us} {graph}{ratio} def {row.get(name + '.ok', {}).get('default')}")
        print(f"T={count} active {active} bound {row['bound']:.0f}: " + " | ".join(cells), flush=True)
        (OUT / "compare.json").write_text(json.dumps(records, indent=1))
    return 0


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    numbers = lambda text: tuple(map(int, text.split(",")))
    if what == "build":
        build(rest[0], numbers(rest[1])); status = 0
    elif what == "pack":
        packed(rest[0]); status = 0
    elif what == "warm":
        status = warm(rest[0], numbers(rest[1]))
    elif what == "stages":
        status = run_stages(rest[0], numbers(rest[1]), numbers(rest[2]), numbers(rest[3]) if len(rest) > 3 else (0,), int(rest[4]) if len(rest) > 4 else 0)
    elif what == "many":
        status = many()
    elif what == "compare":
        status = compare(numbers(rest[0]))
    sys.stdout.flush()
    os._exit(int(status))
