"""What figures in sentences are computed from: traces and records. docs/figures.toml names these
functions, beside what they are called with. Each returns the texts of a sentence's figures, and
raises LookupError where what it reads is not there.
"""

import json
import re
from collections.abc import Callable
from statistics import median

import pandas as pd

from moebench.core import paths
from moebench.judging.gpu_memory import size_of_inputs
from moebench.operators import catalogue
from moebench.operators.roofline import CEILINGS, MEASURED_ON
from moebench.operators.workloads import recorded
from moebench.profiling.record import WorkloadProfile
from moebench.reports import multi_gpu, mxfp4, pages, served
from moebench.results import measurements
from moebench.results.summary import SHOWN

ENGINES = paths.RECORDS / "engines"
WORKLOAD = ["definition", "tokens", "uuid"]


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f}"


def counted(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows whose times count, at the tolerance that pages show."""
    return rows[(rows.tolerance == SHOWN) & rows.counts]


# Engines


def json_lines(name: str) -> list[dict]:
    """Return the objects of a record of engines."""
    text = (ENGINES / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def less_per_token_in_vllm(layers: int, backend: str) -> list[str]:
    """Return the least and the greatest saving by concurrency in %, against a backend of vLLM.

    layers: of the model. Only runs of ours before the backend's last one are taken.
    """
    theirs = vllm_runs(layers, backend)
    last = max(run["date"] for run in theirs)
    ours = [run for run in vllm_runs(layers, "solution") if run["date"] < last]

    savings = []
    for concurrency in sorted({run["concurrency"] for run in theirs}):
        before = median_tpot_ms(theirs, concurrency)
        after = median_tpot_ms(ours, concurrency)
        savings.append(1 - after / before)
    return [percent(min(savings)), percent(max(savings))]


def vllm_runs(layers: int, backend: str) -> list[dict]:
    """Return the recorded points of a model of so many layers with a backend."""
    runs = []
    for run in json_lines("vllm.jsonl"):
        if run["backend"] == backend and run["model"]["num_hidden_layers"] == layers:
            runs.append(run)
    return runs


def median_tpot_ms(runs: list[dict], concurrency: int) -> float:
    """Return the median over runs of the time an output token takes."""
    return median(run["median_tpot_ms"] for run in runs if run["concurrency"] == concurrency)


def less_in_sglang(runs: list[str], than: list[str]) -> list[str]:
    """Return the savings of a decode step and of a prefill in %, medians over runs by name."""
    by_name = {run["run_name"]: run for run in json_lines("sglang.jsonl")}
    savings = []
    for field in ("median_decode_latency", "prefill_latency"):
        ours = median(by_name[name][field] for name in runs)
        theirs = median(by_name[name][field] for name in than)
        savings.append(percent(1 - ours / theirs))
    return savings


# Several GPUs


def beyond_layer(gpu: str, ranks: int, tokens: int) -> dict[str, float]:
    """Return way to sum -> us beyond the layer alone, which is split by width over the ranks."""
    for point in multi_gpu.read(paths.MULTI_GPU):
        key = (point.gpu, point.ranks, point.shares, point.split, point.tokens)
        if key == (gpu, ranks, ranks, "width", tokens):
            alone = point.us[multi_gpu.ALONE]
            return {way: us - alone for way, us in point.us.items() if way != multi_gpu.ALONE}
    raise LookupError(f"multi_gpu.jsonl: no point of {ranks} {gpu}, T={tokens}")


def all_reduce(gpu: str, ranks: int, tokens: int, ways: list[str]) -> list[str]:
    """Return us beyond the layer alone of these ways to sum."""
    us = beyond_layer(gpu, ranks, tokens)
    return [f"{us[way]:.1f}" for way in ways]


def all_reduce_and_others(gpu: str, ranks: int, tokens: int) -> list[str]:
    """Return us of our way to sum, of the fastest and of the slowest other one."""
    us = beyond_layer(gpu, ranks, tokens)
    ours = us.pop("run_allreduce")
    return [f"{each:.1f}" for each in (ours, min(us.values()), max(us.values()))]


def all_reduces_apart(tokens: int, ways: list[str]) -> list[str]:
    """Return how far two ways to sum lie apart at most at a token count, layer and sum, in %."""
    first, second = ways
    apart = []
    for point in multi_gpu.read(paths.MULTI_GPU):
        if point.tokens == tokens:
            apart.append(abs(point.us[first] / point.us[second] - 1))
    return [percent(max(apart), 1)]


def mxfp4_over(solution: str, peers: list[str], most_tokens: int) -> list[str]:
    """Return how many times as fast as the faster peer a solution is with MXFP4 experts, at the
    least and at the most of the token counts up to `most_tokens`.
    """
    ratios = []
    us: dict[int, dict[str, float]] = {}
    for point in mxfp4.read(paths.MXFP4_PEERS):
        us.setdefault(point.tokens, {})[point.peer] = point.us
    for tokens, by_peer in us.items():
        if tokens <= most_tokens:
            ratios.append(min(by_peer[peer] for peer in peers) / by_peer[solution])
    return [f"{min(ratios):.2f}", f"{max(ratios):.2f}"]


# Comparisons


def ceilings(gpu: str, rates: list[str]) -> list[str]:
    """Return the rates of a GPU that a bound divides by, in T/s; bytes/s with two digits more."""
    texts = []
    for rate in rates:
        digits = 2 if rate == "bytes" else 0
        texts.append(f"{CEILINGS[gpu][rate] / 1e12:.{digits}f}")
    return texts


def times_over(gpu: str, solution: str, other: str) -> pd.DataFrame:
    """Return a row for each workload on a GPU, with the ratio of two solutions' times."""
    rows = pages.rows()
    ms = counted(rows[rows.hardware == gpu]).pivot(index=WORKLOAD, columns="solution", values="ms")
    return (ms[solution] / ms[other]).dropna().reset_index(name="ratio")


def same_kernel_apart(gpu: str, solutions: list[str], most_tokens: int) -> list[str]:
    """Return how many layers there are of two solutions that are one kernel up to most_tokens, the
    median and the greatest difference from 8 tokens on, the least and the greatest median of fewer
    tokens, and the greatest difference of those; in %.
    """
    both = times_over(gpu, *solutions)
    both = both[both.tokens <= most_tokens]
    difference = (both.ratio - 1).abs()
    many = difference[both.tokens >= 8]
    few = difference[both.tokens < 8]

    medians = few.groupby(both.tokens).median()
    shares = [many.median(), many.max(), medians.min(), medians.max(), few.max()]
    return [str(both.definition.nunique()), *map(percent, shares)]


def same_kernel_longer(gpu: str, solutions: list[str], most_tokens: int) -> list[str]:
    """Return by how much the first of two that are one kernel took longer, median and at most."""
    both = times_over(gpu, *solutions)
    longer = both.ratio[both.tokens <= most_tokens] - 1
    return [percent(longer.median(), 1), percent(longer.max())]


def longer_at_most(solution: str, than: str, least_tokens: int) -> list[str]:
    """Return what a solution takes longer than another one, at most over all layers, in %."""
    both = times_over(MEASURED_ON, solution, than)
    return [percent((both.ratio[both.tokens >= least_tokens] - 1).max())]


def clocks_apart() -> list[str]:
    """Return by how many ms the clocks differ at one token, and by which share the GPU's shows less
    at most at 14107.
    """
    ms = {}
    for clock in ("events", "gpu"):
        ms[clock] = counted(pages.main_definition(clock)).set_index(["tokens", "solution"]).ms
    at_one = (ms["events"] - ms["gpu"]).dropna()[1]
    at_most = (1 - ms["gpu"] / ms["events"]).dropna()[14107].max()
    return [f"{at_one.min():.2f}", f"{at_one.max():.2f}", percent(at_most)]


def fib_main_apart() -> list[str]:
    """Return how far FIB's main branch is from the GPU's clock in %: from 57 tokens on, at one."""
    theirs, _ = measurements.load([paths.RECORDS / "fib_main.jsonl"])
    cell = ["solution", "uuid", "tokens"]
    by_them = theirs[theirs.clock == "gpu"].set_index(cell).ms
    by_us = counted(pages.main_definition("gpu")).set_index(cell).ms
    apart = (by_them / by_us - 1).abs().dropna().reset_index(name="share")
    at_one = apart.share[apart.tokens == 1].max()
    return [percent(apart.share[apart.tokens >= 57].max(), 1), percent(at_one)]


def over_bound(gpu: str, solution: str) -> list[str]:
    """Return times the bound by events: least and greatest from 14 to 901 tokens, at one, and the
    greatest beyond.
    """
    rows = counted(pages.main_definition("events", gpu))
    over = rows[rows.solution == solution].set_index("tokens").over_bound
    middle = over[(over.index >= 14) & (over.index <= 901)]
    many = over[over.index > 901]
    return [f"{value:.1f}" for value in (middle.min(), middle.max(), over[1], many.max())]


# Sizes


def gigabytes_of_weights(layer_key: str) -> list[str]:
    """Return GB of a layer's weights on a rank."""
    sizes = catalogue.layer_sizes()[layer_key]
    weights = sizes["num_local_experts"] * catalogue.operator(layer_key).expert_bytes(sizes)
    return [f"{weights / 1e9:.2f}"]


def gigabytes_of_inputs() -> list[str]:
    """Return GB of the inputs of the main definition's largest workload."""
    full = catalogue.definition("full")
    sizes = [size_of_inputs(full, workload) for workload in recorded("full")]
    return [f"{max(sizes) / 1e9:.1f}"]


# Profiles, served records, Ray


def profiles_of(solution: str) -> list[WorkloadProfile]:
    """Return a solution's profiles. Raises LookupError where there are none."""
    for record in pages.profile_records():
        if record.solution == solution:
            return record.workloads
    raise LookupError(f"records/profile: nothing of {solution}")


def profiled_reading(solution: str, tokens: int) -> list[str]:
    """Return MB that a call has to move, us in which kernels run, and TB/s."""
    busy_us = next(each.busy_us for each in profiles_of(solution) if each.T == tokens)
    rows = pages.main_definition()
    bound_ms = rows[rows.tokens == tokens].bound_ms.max()
    megabytes = bound_ms * CEILINGS[MEASURED_ON]["bytes"] / 1e9
    return [f"{megabytes:.0f}", f"{busy_us:.0f}", f"{megabytes / busy_us:.2f}"]


def tensor_cores_at_work(solution: str, least_tokens: int) -> list[str]:
    """Return the least and the greatest share of cycles in the GEMMs, in %."""
    shares = []
    for profile in profiles_of(solution):
        for kernel in profile.kernels:
            if profile.T >= least_tokens and "gemm" in kernel.stage:
                shares += [launch.tensor_percent for launch in kernel.counters]
    return [f"{min(shares):.0f}", f"{max(shares):.0f}"]


def served_savings(solution: str, others: list[str], tokens: list[int]) -> list[str]:
    """Return ms of the first served record that a solution saves, against each of the others."""
    first = served.recorded()[0]
    texts = []
    for count in tokens:
        ms = {point.solution: point.ms for point in first.points_at(count)}
        texts += [f"{ms[other] - ms[solution]:.1f}" for other in others]
    return texts


def seconds_on_ray() -> list[str]:
    """Return seconds of 62 cells on two GPUs with actors, and on one without Ray."""
    text = (paths.RECORDS / "ray.md").read_text(encoding="utf-8")
    without_ray = re.search(
        r"(\d+) cells of [^|]*, whole jobs \| one GPU without Ray (\d+) s", text
    )
    with_actors = re.search(r"with actors in place of batches \| (\d+) s:", text)
    if not without_ray or not with_actors:
        raise LookupError("records/ray.md: nothing says how long the job took")
    return [with_actors[1], *without_ray.groups()]


FUNCTIONS: dict[str, Callable[..., list[str]]] = {
    function.__name__: function
    for function in (
        all_reduce,
        all_reduce_and_others,
        all_reduces_apart,
        mxfp4_over,
        ceilings,
        clocks_apart,
        fib_main_apart,
        gigabytes_of_inputs,
        gigabytes_of_weights,
        less_in_sglang,
        less_per_token_in_vllm,
        longer_at_most,
        over_bound,
        profiled_reading,
        same_kernel_apart,
        same_kernel_longer,
        seconds_on_ray,
        served_savings,
        tensor_cores_at_work,
    )
}
