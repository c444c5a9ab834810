"""Second run of mma_fused on a GPU: variants of the kernel against hopper_fused, and where a launch's time goes.
mma-gpu2.py build VARIANT | compare T,T,.. VARIANT.. | times T,T,..     (see mma-gpu.py, which lies beside)"""
import importlib.util, json, os, sys, time
from pathlib import Path
import torch
import mma_small_layer as small
from solutions.kernels.build_library import build_library, load_library

spec = importlib.util.spec_from_file_location("gpu1", Path(__file__).with_name("mma-gpu.py"))
gpu1 = importlib.util.module_from_spec(spec); spec.loader.exec_module(gpu1)
OUT = gpu1.OUT
FLAGS = ("-DMMA_FUSED_SMEM_KIB=227", "-DMMA_FUSED_TMA=1", "-DMMA_FUSED_CVT=1")

# name -> (file, text, text instead)...
VARIANTS = {
    "base": [],
    "old": None,  # the form of main, from mma_old/
    "mid": None,
    "prune": [("fused_layer.cu", "  pdl_wait();\n  pdl_launch_dependents();\n", "")],
    "stages3": [("config.cuh", "constexpr int kStages = 2;", "constexpr int kStages = 3;"), ("config.cuh", "constexpr int kPartBuffers = MMA_FUSED_SMEM_KIB == 163 ? 1 : 2;", "constexpr int kPartBuffers = 1;")],
    "parts1": [("config.cuh", "constexpr int kPartBuffers = MMA_FUSED_SMEM_KIB == 163 ? 1 : 2;", "constexpr int kPartBuffers = 1;")],
    "unchanged": [("ptx.cuh", "createpolicy.fractional.L2::evict_first.b64", "createpolicy.fractional.L2::evict_unchanged.b64")],
    "olddiv": [("division.cuh", "rounds = shared / ctas < slices / ctas && shared % ctas ? shared / ctas + 1 : shared / ctas;", "rounds = slices / ctas;")],
    "unroll1": [("gemm1_swiglu.cuh", "  for (int k = warp, step = 0; k < kKSteps1;", "#pragma unroll 1\n  for (int k = warp, step = 0; k < kKSteps1;"), ("gemm2_combine.cuh", "  for (int k = warp, step = 0; k < kKSteps2;", "#pragma unroll 1\n  for (int k = warp, step = 0; k < kKSteps2;")],
}
def costs(one, two):
    """Division's model of time: a step of gemm1 takes `one`, of gemm2 `two`."""
    old = small.cuda_files("full")["division.cuh"]
    head, body = old.split("    const int slices = chunks * kSlices", 1)
    body, tail = body.split("    // In that time as few", 1)
    new = body.replace("kWarpSteps1 - kCutSteps", f"{one} * (kWarpSteps1 - kCutSteps)")
    import re
    new = re.sub(r"\bkWarpSteps1\b(?! - kCut)", f"({one} * kWarpSteps1)", new)
    new = new.replace("kWarpSteps2", f"({two} * kWarpSteps2)")
    return [("division.cuh", old, head + "    const int slices = chunks * kSlices" + new + "    // In that time as few" + tail)]


VARIANTS |= {"cost54": costs(4, 5), "cost64": costs(4, 6), "cost33": costs(3, 3), "cost43": costs(3, 4)}
STAMP = "  if (threadIdx.x == 0) g_times[blockIdx.x][{}] = now();\n"
TIMES = [
    ("fused_layer.cuh", "constexpr int kBarAmax = 1, kBarStored = 2;", """constexpr int kPlaces = 10;
#ifdef MMA_TIMES_HERE
__device__ long long g_times[256][kPlaces];
#endif
__device__ __forceinline__ long long now() { long long t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }
constexpr int kBarAmax = 1, kBarStored = 2;"""),
    ("fused_layer.cu", '#include "gemm1_swiglu.cuh"', '#define MMA_TIMES_HERE\n#include "gemm1_swiglu.cuh"'),
    ("fused_layer.cu", "  zero_sums(args);\n  route(s, args);\n  permute(s, args.num_tokens);\n",
     STAMP.format(0) + "  zero_sums(args);\n  route(s, args);\n" + STAMP.format(1) + "  permute(s, args.num_tokens);\n" + STAMP.format(2)),
    ("fused_layer.cu", "  gemm1_swiglu(s, args, weights);\n  gemm2_combine(s, args, weights);\n",
     STAMP.format(3) + "  gemm1_swiglu(s, args, weights);\n" + STAMP.format(4) + "  weights.stall1 = weights.stall; weights.stall = 0;\n  gemm2_combine(s, args, weights);\n" + STAMP.format(5)
     + "  if (threadIdx.x == 0) g_times[blockIdx.x][6] = weights.stall1, g_times[blockIdx.x][7] = weights.stall, g_times[blockIdx.x][8] = weights.h_wait, g_times[blockIdx.x][9] = s.num_chunks;\n"),
    ("fused_layer.cu", "cudaError_t prepare_fused_layer() {", """cudaError_t copy_times(long long* to) { return cudaMemcpyFromSymbol(to, g_times, sizeof(g_times)); }
cudaError_t prepare_fused_layer() {"""),
    ("weights.cuh", "  int stage = 0, phase = 0;", "  mutable long long stall = 0, stall1 = 0, h_wait = 0;\n  int stage = 0, phase = 0;"),
    ("weights.cuh", "    mbar_wait(&s.full[warp][stage], phase);\n", "    const long long begin = clock64();\n    mbar_wait(&s.full[warp][stage], phase);\n    stall += clock64() - begin;\n"),
    ("gemm2_combine.cuh", "    if (n >= ready) ready = wait_for_h(args.scratch->slices_stored, n, division.chunks);\n",
     "    const long long begin = clock64();\n    if (n >= ready) ready = wait_for_h(args.scratch->slices_stored, n, division.chunks);\n    weights.h_wait += clock64() - begin;\n"),
    ("run.cu", "static void run_layer(", """cudaError_t copy_times(long long* to);
static void read_times(ffi::TensorView to) {  // [256, 10] int64 on the host
  check_cuda(copy_times(static_cast<long long*>(to.data_ptr())), "copying times");
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(read_times, read_times);
static void run_layer("""),
]


def texts(variant):
    if variant in ("old", "mid"): return {p.name: p.read_text() for p in (Path(__file__).parent / f"mma_{variant}").iterdir()}
    found = small.cuda_files("full")  # by file name
    for path, text, instead in TIMES if variant == "times" else VARIANTS[variant]:
        assert found[path].count(text) >= 1, (variant, path, text)
        found[path] = found[path].replace(text, instead, 1)
    return found


def build(variant):
    return build_library(f"mma_{variant}", texts(variant), architecture="9.0", flags=FLAGS)


def compare(counts, variants, rounds=41):
    from definitions import moe_fp8_block_scale as moe
    from harness.evaluation.tolerances import matched_ratios
    layers = {}
    for variant in variants:
        try: layers[variant] = load_library(build(variant)).run_layer
        except Exception as error: print(variant, repr(error)[:200], flush=True)
    hopper, everything, records = gpu1.packed("hopper_fused"), gpu1.layer(max(counts)), []
    for count in counts:
        arguments = gpu1.first(everything, count)
        values, out = list(arguments.values()), torch.empty((count, 7168), dtype=torch.bfloat16, device="cuda")
        calls = {"hopper": lambda: hopper(*values, out)} | {n: lambda f=f: f(*values, out, 0) for n, f in layers.items()}
        want, row = moe.run(**arguments), {"T": count}
        for name, call in calls.items():
            out.fill_(torch.nan); call(); torch.cuda.synchronize()
            row[name + ".ok"] = round(float(matched_ratios(out, want)["default"]), 4)
        times = {name: [] for name in calls}
        for turn in range(rounds):
            for name in (list(calls) if turn % 2 else list(calls)[::-1]): times[name].append(gpu1.timed(calls[name]))
        row |= {name: round(sorted(values_)[rounds // 2], 1) for name, values_ in times.items()}
        records.append(row)
        low = [name for name in calls if row[name + ".ok"] < 0.95]
        print(f"T={count} hopper {row['hopper']} | " + " ".join(f"{n} {row[n]} ({row[n] / row['hopper']:.2f})" for n in layers) + (f" LOW {low}" if low else ""), flush=True)
        (OUT / "variants.json").write_text(json.dumps(records, indent=1))


def times(counts, rounds=15):
    library, everything = load_library(build("times")), gpu1.layer(max(counts))
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    ghz = float(os.environ.get("GHZ", 1.755))
    names = ("route", "permute", "first", "gemm1", "gemm2")
    for count in counts:
        values = list(gpu1.first(everything, count).values())
        out = torch.empty((count, 7168), dtype=torch.bfloat16, device="cuda")
        call, found = (lambda: library.run_layer(*values, out, 0)), []
        for turn in range(rounds + 2):
            us, raw = gpu1.timed(call), torch.zeros((256, 10), dtype=torch.int64)
            library.read_times(raw)
            if turn >= 2: found.append((us, raw[:sms].double()))
        raw = torch.stack([r for _, r in found])  # [rounds, SMs, 10]
        stamps = raw[:, :, :6] / 1e3
        start = stamps[:, :, 0].amin(1, keepdim=True)
        at = stamps - start[..., None]
        line = " ".join(f"{n} {float(at[..., i + 1].mean()):.1f}/{float(at[..., i + 1].amax(1).mean()):.1f}" for i, n in enumerate(names))
        stalls = raw[..., 6:9] / ghz / 1e3
        late = float((stamps[..., 0] - start).amax(1).mean())
        print(f"-- T={count} chunks {int(raw[0, 0, 9])}: events {sorted(u for u, _ in found)[rounds // 2]:.1f} us; last start {late:.1f}; ends after (mean/last CTA): {line}; warp 0 waits for weights in gemm1 {float(stalls[..., 0].mean()):.1f}, gemm2 {float(stalls[..., 1].mean()):.1f}, for h {float(stalls[..., 2].mean()):.1f}", flush=True)
        torch.save(raw, OUT / f"times-{count}.pt")


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    numbers = lambda text: tuple(map(int, text.split(",")))
    if what == "build": build(rest[0])
    elif what == "pack": gpu1.packed(rest[0])
    elif what == "compare": compare(numbers(rest[0]), rest[1:] or list(VARIANTS))
    elif what == "times": times(numbers(rest[0]))
