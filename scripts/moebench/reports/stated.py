"""What README.md and docs/ say in figures, sentence by sentence: how each is recomputed, or why it
is no measurement of ours. `sentences` has what a template is.
"""

import json
from statistics import median

import pandas as pd

from moebench.core import paths
from moebench.judging.gpu_memory import size_of_inputs
from moebench.operators import catalogue
from moebench.operators.roofline import CEILINGS, H100, MEASURED_ON
from moebench.operators.workloads import recorded
from moebench.reports import multi_gpu, pages, served
from moebench.reports.sentences import NotMeasured, Recomputed
from moebench.results import measurements
from moebench.results.summary import SHOWN

ENGINES = paths.RECORDS / "engines"
SAME_KERNEL_UP_TO = 64  # tokens: hopper_fused and hopper_fused_exact
GUIDE = "docs/compare.md"


def json_lines(name: str) -> list[dict]:
    """Return the objects of a record of engines."""
    text = (ENGINES / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f}"


# README.md


def less_per_token_in_vllm() -> list[str]:
    """Return the least and the greatest saving by concurrency, with all layers of Qwen3-30B.

    Against vLLM's Triton kernel, which ran before hopper_fused and after.
    """
    triton = vllm_runs("triton")
    last = max(run["date"] for run in triton)
    ours = [run for run in vllm_runs("solution") if run["date"] < last]

    savings = []
    for concurrency in sorted({run["concurrency"] for run in triton}):
        before = median_tpot_ms(triton, concurrency)
        after = median_tpot_ms(ours, concurrency)
        savings.append(1 - after / before)
    return [percent(min(savings)), percent(max(savings))]


def vllm_runs(backend: str) -> list[dict]:
    """Return the recorded points of all layers of Qwen3-30B with a backend."""
    runs = []
    for run in json_lines("vllm.jsonl"):
        if run["backend"] == backend and run["model"]["num_hidden_layers"] == 48:
            runs.append(run)
    return runs


def median_tpot_ms(runs: list[dict], concurrency: int) -> float:
    """Return the median over runs of the time an output token takes."""
    return median(run["median_tpot_ms"] for run in runs if run["concurrency"] == concurrency)


def less_in_sglang() -> list[str]:
    """Return the savings of a decode step and of a prefill, medians over starts."""
    savings = []
    for field in ("median_decode_latency", "prefill_latency"):
        triton = []
        ours = []
        for run in json_lines("sglang.jsonl"):
            name = run["run_name"]
            if name.startswith("hopper_fused"):
                ours.append(run[field])
            elif not name.startswith("triton_fused_v2"):
                triton.append(run[field])
        savings.append(percent(1 - median(ours) / median(triton)))
    return savings


def one_token_on_four() -> dict[str, float]:
    """Return way to sum -> us beyond the layer alone: 4 H200 split by width, one token."""
    for point in multi_gpu.read(paths.MULTI_GPU):
        if (point.gpu, point.ranks, point.split, point.tokens) == (MEASURED_ON, 4, "width", 1):
            alone = point.us[multi_gpu.ALONE]
            return {way: us - alone for way, us in point.us.items()}
    raise LookupError("records/multi_gpu.jsonl: no point of 4 H200 split by width at T=1")


def sums_on_four() -> list[str]:
    """Return us of our sum, of the fastest and of the slowest other one."""
    us = one_token_on_four()
    ours = us.pop("run_allreduce")
    del us[multi_gpu.ALONE]
    return [f"{each:.1f}" for each in (ours, min(us.values()), max(us.values()))]


# docs/compare.md


def ceilings(gpu: str, *rates: str) -> list[str]:
    """Return the rates of a GPU that a bound divides by, in T/s; bytes/s with two digits more."""
    texts = []
    for rate in rates:
        digits = 2 if rate == "bytes" else 0
        texts.append(f"{CEILINGS[gpu][rate] / 1e12:.{digits}f}")
    return texts


def same_kernel(gpu: str) -> pd.DataFrame:
    """Return tokens, and hopper_fused's ms over hopper_fused_exact's where both are one kernel."""
    rows = pages.rows()
    timed = rows[(rows.hardware == gpu) & (rows.tolerance == SHOWN) & rows.counts]
    few = timed[timed.tokens <= SAME_KERNEL_UP_TO]
    ms = few.pivot(index=["definition", "tokens", "uuid"], columns="solution", values="ms")
    return (ms["hopper_fused"] / ms["hopper_fused_exact"]).dropna().reset_index(name="ratio")


def same_kernel_on_h200() -> list[str]:
    """Return how many layers these are, the median and the greatest difference from 8 tokens on,
    the least and the greatest median of fewer tokens, and the greatest difference of those.
    """
    both = same_kernel(MEASURED_ON)
    difference = (both.ratio - 1).abs()
    many = difference[both.tokens >= 8]
    few = difference[both.tokens < 8]
    medians = few.groupby(both.tokens).median()
    shares = [many.median(), many.max(), medians.min(), medians.max(), few.max()]
    return [str(both.definition.nunique()), *map(percent, shares)]


def same_kernel_on_h100() -> list[str]:
    """Return by how much hopper_fused took longer, in the median and at most."""
    longer = same_kernel(H100).ratio - 1
    return [percent(longer.median(), 1), percent(longer.max())]


def clocks_apart() -> list[str]:
    """Return by how many ms the clocks differ at one token, and by which share the GPU's shows less
    at most at 14107.
    """
    ms = {}
    for clock in ("events", "gpu"):
        rows = pages.main_definition(clock)
        timed = rows[(rows.tolerance == SHOWN) & rows.counts]
        ms[clock] = timed.set_index(["tokens", "solution"]).ms
    at_one = (ms["events"] - ms["gpu"]).dropna()[1]
    at_most = (1 - ms["gpu"] / ms["events"]).dropna()[14107].max()
    return [f"{at_one.min():.2f}", f"{at_one.max():.2f}", percent(at_most)]


def fib_main_apart() -> list[str]:
    """Return how far FIB's main branch is from the GPU's clock from 57 tokens on, and at one."""
    theirs, _ = measurements.load([paths.RECORDS / "fib_main.jsonl"])
    cell = ["solution", "uuid", "tokens"]
    by_them = theirs[theirs.clock == "gpu"].set_index(cell).ms
    rows = pages.main_definition("gpu")
    by_us = rows[rows.counts].set_index(cell).ms
    apart = (by_them / by_us - 1).abs().dropna().reset_index(name="share")
    at_one = apart.share[apart.tokens == 1].max()
    return [percent(apart.share[apart.tokens >= 57].max(), 1), percent(at_one)]


def over_bound_on_h100() -> list[str]:
    """Return hopper_fused's times the bound: least and greatest from 14 to 901 tokens, at one, and
    least and greatest beyond.
    """
    rows = pages.main_definition("events", H100)
    timed = rows[(rows.tolerance == SHOWN) & rows.counts]
    ours = timed[timed.solution == "hopper_fused"]
    over_bound = ours.set_index("tokens").over_bound
    middle = over_bound[(over_bound.index >= 14) & (over_bound.index <= 901)]
    many = over_bound[over_bound.index > 901]
    values = (middle.min(), middle.max(), over_bound[1], many.max())
    return [f"{value:.1f}" for value in values]


# Other pages


def fastest_sums() -> list[str]:
    """Return us beyond the layer alone: ours, NCCL's and torch's one-shot."""
    us = one_token_on_four()
    ways = ("run_allreduce", "group's all-reduce", "symmetric memory, one-shot")
    return [f"{us[way]:.1f}" for way in ways]


def off_two_shot() -> list[str]:
    """Return how far run_allreduce is from torch's two-shot at 256 tokens, at most."""
    apart = []
    for point in multi_gpu.read(paths.MULTI_GPU):
        if point.tokens == 256:
            two_shot = point.us["symmetric memory, two-shot"]
            apart.append(abs(point.us["run_allreduce"] / two_shot - 1))
    return [percent(max(apart), 1)]


def fp4_gigabytes(layer_key: str) -> list[str]:
    """Return GB of a layer's weights in MXFP4."""
    sizes = catalogue.layer_sizes()[layer_key]
    weights = sizes["num_local_experts"] * catalogue.operator(layer_key).expert_bytes(sizes)
    return [f"{weights / 1e9:.2f}"]


def profiled(tokens: int) -> list:
    """Return hopper_fused's profiles of so many tokens or more."""
    (record,) = [each for each in pages.profile_records() if each.solution == "hopper_fused"]
    return [profile for profile in record.workloads if tokens <= profile.T]


def reading_at_57() -> list[str]:
    """Return MB of the workload, us in which kernels run, and TB/s."""
    profile = profiled(57)[0]
    rows = pages.main_definition()
    bound_ms = rows[rows.tokens == 57].bound_ms.max()
    megabytes = bound_ms * CEILINGS[MEASURED_ON]["bytes"] / 1e9
    rate = megabytes / profile.busy_us
    return [f"{megabytes:.0f}", f"{profile.busy_us:.0f}", f"{rate:.2f}"]


def tensor_cores_at_work() -> list[str]:
    """Return the least and the greatest share of cycles in the GEMMs from 4096 tokens on."""
    shares = []
    for profile in profiled(4096):
        for kernel in profile.kernels:
            if "gemm" in kernel.stage:
                shares += [launch.tensor_percent for launch in kernel.counters]
    return [f"{min(shares):.0f}", f"{max(shares):.0f}"]


def served_savings() -> list[str]:
    """Return ms that hopper_fused saves, against each of two, at 32 and at 8192 tokens."""
    first = served.recorded()[0]
    texts = []
    for tokens in (32, 8192):
        ours = first.point(tokens, "hopper_fused").ms
        for other in ("deepgemm", "sglang_triton"):
            texts.append(f"{first.point(tokens, other).ms - ours:.1f}")
    return texts


def gigabytes_of_inputs() -> list[str]:
    """Return GB of the inputs of the main definition's largest workload."""
    full = catalogue.definition("full")
    workloads = recorded("full")
    return [f"{max(size_of_inputs(full, workload) for workload in workloads) / 1e9:.1f}"]


def seconds_on_ray() -> list[str]:
    """Return seconds of 62 cells on two GPUs with actors, and on one without Ray."""
    text = (paths.RECORDS / "ray.md").read_text(encoding="utf-8")
    wanted = ("| 104 s: 15 until Ray runs", "whole jobs | one GPU without Ray 156 s")
    for words in wanted:
        if words not in text:
            raise LookupError(f"records/ray.md: nothing says {words!r}")
    return ["104", "62", "156"]


def cost_of_two_terms() -> list[str]:
    """Return what hopper_fused_exact takes longer than hopper_fused, at most, in %."""
    rows = pages.rows()
    timed = rows[(rows.hardware == MEASURED_ON) & (rows.tolerance == SHOWN) & rows.counts]
    ms = timed.pivot(index=["definition", "tokens", "uuid"], columns="solution", values="ms")
    many = ms[ms.index.get_level_values("tokens") > 1024]
    return [percent((many["hopper_fused_exact"] / many["hopper_fused"] - 1).max())]


def layer_table(layer_key: str, *words: str) -> tuple[tuple[str, str], object]:
    """Return the entry of RECOMPUTED for a row of the table of MXFP4 layers."""
    template = " | ".join([f"| `{layer_key}`", *words, "{} GB |"])
    return ("docs/models.md", template), lambda: fp4_gigabytes(layer_key)


RECOMPUTED: Recomputed = {
    ("README.md", "takes {} to {}% less time an output token"): less_per_token_in_vllm,
    ("README.md", "{}% less, and {}% less for a"): less_in_sglang,
    ("README.md", "costs {} us inside the launch, {} to {} us behind it"): sums_on_four,
    (GUIDE, "moved once at {} TB/s, or every FP8 FLOP done at {} TFLOP/s"): (
        lambda: ceilings(MEASURED_ON, "bytes", "fp8")
    ),
    (GUIDE, "reached {} TB/s, dense GEMMs reached {} TFLOP/s in FP8 and {} in bf16"): (
        lambda: ceilings(H100, "bytes", "fp8", "bf16")
    ),
    (
        GUIDE,
        "over {} layers, their times differ by {}% in the median and {}% at most from 8 tokens on, "
        "and by {} to {}% with fewer tokens, {}% in the worst case",
    ): same_kernel_on_h200,
    (GUIDE, "On the H100 `hopper_fused` took {}% longer, and {}% at most"): same_kernel_on_h100,
    (
        GUIDE,
        "the host's time, {} to {} ms. At T = 14107 the GPU's clock, which took fewer calls, shows "
        "up to {}% less",
    ): clocks_apart,
    (
        GUIDE,
        "[within {}%](../records/fib_main.jsonl) of this clock's times from 57 tokens on, and "
        "within {}% at T = 1",
    ): fib_main_apart,
    (
        GUIDE,
        "takes {} to {} times that bound from 14 to 901 tokens, {} times at T = 1, and up to {} "
        "times beyond",
    ): over_bound_on_h100,
    (
        "docs/multi_gpu.md",
        "costs {} us behind the width's part, where NCCL's costs {} and torch's one-shot {}.",
    ): fastest_sums,
    ("docs/multi_gpu.md", "torch's two-shot, and within {}% of that"): off_two_shot,
    ("docs/profile.md", "at T = 57 it reads {} MB in {} us, {} TB/s"): reading_at_57,
    ("docs/profile.md", "tensor cores work {} to {}% of its cycles"): tensor_cores_at_work,
    (
        "docs/served.md",
        "saves {} ms against `deepgemm` and {} ms against `sglang_triton`; with a chunk of 8192 "
        "tokens {} and {} ms",
    ): served_savings,
    (
        "docs/run.md",
        "took {} s for {} pairs of solution and workload, one H100 without Ray {} s",
    ): seconds_on_ray,
    ("docs/run.md", "takes many times its {} GB of inputs"): gigabytes_of_inputs,
    ("docs/tolerances.md", "costs up to {}% with many tokens"): cost_of_two_terms,
}
RECOMPUTED |= dict(
    [
        layer_table("deepseek-v4-flash-mxfp4", "DeepSeek-V4-Flash, all experts"),
        layer_table("deepseek-v4-flash-ep8-mxfp4", "one of 8 ranks"),
        layer_table("deepseek-v4-flash-tp4-mxfp4", "a quarter of every expert"),
        layer_table("deepseek-v4-pro-ep8-mxfp4", "DeepSeek-V4-Pro, one of 8 ranks"),
    ]
)

NOT_MEASURED: NotMeasured = {
    (GUIDE, "its range is taken to be 5%"): "a rule: results/spread.py",
    (GUIDE, "a read of 8 GiB"): "what tools/ceilings.py reads",
    ("docs/run.md", "4 GB of memory at most, files of 1 GB"): "limits: judging/isolation",
    ("docs/tolerances.md", "about 2.6% in the root mean square"): "computed: three mantissa bits",
}
