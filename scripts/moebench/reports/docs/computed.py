"""Compute the numbers in the pages' sentences from traces and records.

docs/figures.toml names, for each sentence, one of the functions under @named and its arguments: the
number in "costs {:.1f} us inside the launch" is `all_reduce(gpu="NVIDIA H200", ranks=4, ...)`. Such
a function returns numbers, all that a sentence has, or those of which the sentence shows the least
and the greatest for instance. It raises LookupError where the trace or record that it reads is not
there. Shares are in %. sentences.py calls it.
"""

import math
import re
from collections.abc import Callable, Sequence

import pandas as pd

from moebench.core import paths
from moebench.judging.device import size_of_inputs
from moebench.operators import catalogue
from moebench.operators.roofline import CEILINGS, MEASURED_ON
from moebench.operators.workloads import recorded
from moebench.profiling.record import WorkloadProfile
from moebench.reports import engines, layer_times, profiles, repeats, served
from moebench.reports.docs import pages
from moebench.results import measurements
from moebench.results.summary import counted

# by the GPU's clock, on DeepSeek-V4-Flash EP1 on an H200
REST = paths.RECORDS / "rest.csv"
RAY = paths.RECORDS / "ray.md"
WITHOUT_RAY = r"(\d+) cells of [^|]*, whole jobs \| one GPU without Ray (\d+) s"
WITH_ACTORS = r"with actors in place of batches \| (\d+) s:"

Numbers = Sequence[float] | pd.Series
FUNCTIONS: dict[str, Callable[..., Numbers]] = {}


def named(function: Callable[..., Numbers]) -> Callable[..., Numbers]:
    """Return the function, which docs/figures.toml can name from now on."""
    FUNCTIONS[function.__name__] = function
    return function


def width(times: pd.DataFrame | pd.Series) -> float | pd.Series:
    """Return how far times lie apart, in % of the least: of a DataFrame those of each column."""
    return 100 * (times.max() / times.min() - 1)


# Engines


@named
def less_per_token(
    server: str,
    layers: int,
    ours: str = "solution",
    theirs: str = "triton",
    concurrencies: list[int] | None = None,
    **dates: str,
) -> pd.Series:
    """Return how much less time per token one server takes than another, in %, at each of the
    concurrencies, of all by default.

    server, layers, dates: as in `engines.server_runs`. ours, theirs: what computes the experts.
    """
    runs = engines.server_runs(server, layers, **dates)
    tpot = runs.groupby(["backend", "concurrency"]).median_tpot_ms.median()
    savings = 100 * (1 - tpot[ours] / tpot[theirs])
    return savings if concurrencies is None else savings[concurrencies]


@named
def ms_per_token(
    server: str,
    layers: int,
    backends: list[str],
    concurrencies: list[int],
    **dates: str,
) -> list[float]:
    """Return the ms per token of each run: by backend, then by concurrency."""
    runs = engines.server_runs(server, layers, **dates).sort_values("repeat")
    tpot = runs.groupby(["backend", "concurrency"]).median_tpot_ms
    times = []
    for backend in backends:
        for concurrency in concurrencies:
            times += [*tpot.get_group((backend, concurrency))]
    return times


@named
def vllm_runs_apart(layers: int, until: str) -> pd.Series:
    """Return how far runs at one concurrency lie apart at most, in %: of TPOT and of TTFT."""
    runs = engines.server_runs("vllm", layers, until=until)
    cells = runs.groupby(["backend", "concurrency"])
    return width(cells[["median_tpot_ms", "median_ttft_ms"]]).max()


@named
def vllm_p99_over_median(
    layers: int, backend: str, concurrencies: list[int]
) -> pd.Series:
    """Return the 99th percentile of TPOT over its median, at each concurrency."""
    runs = engines.server_runs("vllm", layers)
    runs = runs[runs.backend == backend].set_index("concurrency")
    over = runs.p99_tpot_ms / runs.median_tpot_ms
    return over[concurrencies]


def sglang_latencies() -> pd.DataFrame:
    """Return the latencies of a decode step and of a prefill, a row for each run in SGLang."""
    by_name = pd.DataFrame(engines.json_lines("sglang.jsonl")).set_index("run_name")
    return by_name[["median_decode_latency", "prefill_latency"]]


@named
def less_in_sglang(runs: list[str], than: list[str]) -> pd.Series:
    """Return how much less time a decode step and a prefill take in some runs than in others, in %.

    runs, than: names of runs in the record, over which medians are taken.
    """
    latencies = sglang_latencies()
    return 100 * (1 - latencies.loc[runs].median() / latencies.loc[than].median())


@named
def sglang_starts_apart(runs: list[str]) -> pd.Series:
    """Return how far the times of some runs in SGLang lie apart, in %: of decoding and prefill."""
    return width(sglang_latencies().loc[runs])


@named
def sglang_rest_of_step(experts_by: list[str]) -> pd.Series:
    """Return the ms of a profiled decode step without the experts' kernels."""
    runs = engines.sglang_runs()
    rest = runs["step_ms.decode"] - runs["experts_ms.decode"]
    return rest[experts_by]


@named
def applied_calls() -> list[float]:
    """Return of FlashInfer's calls by Trace Apply: the least and the greatest share of elements
    inside relaxed, from 0 to 1, the least share against FlashInfer's kernels, and the least and the
    greatest us of a call on the host.
    """
    calls = pd.json_normalize(engines.json_lines("flashinfer.jsonl"))
    matched = calls["matched.relaxed"]
    least_beside = calls["beside.relaxed"].min()
    host_us = calls.host_us
    return [matched.min(), matched.max(), least_beside, host_us.min(), host_us.max()]


# Several GPUs, and experts in MXFP4


def way_times(
    definition: str, gpu: str, ranks: int, tokens: int, shares: int
) -> pd.Series:
    """Return way to sum -> us of a layer whose width is split in `shares`, of which `ranks` ran."""
    wanted = {
        "definition": definition,
        "gpu": gpu,
        "ranks": ranks,
        "split": "width",
        "shares": shares,
        "tokens": tokens,
    }
    for point in layer_times.all_reduce_points():
        if wanted.items() <= point.model_dump().items():
            return pd.Series(point.us)
    raise LookupError(f"multi_gpu.jsonl: no point of {wanted}")


def beyond_layer(definition: str, gpu: str, ranks: int, tokens: int) -> pd.Series:
    """Return way to sum -> us beyond the layer alone, of a layer that is split by width."""
    us = way_times(definition, gpu, ranks, tokens, shares=ranks)
    return us.drop(layer_times.ALONE) - us[layer_times.ALONE]


@named
def layer_alone(
    definition: str, gpu: str, ranks: int, tokens: int, shares: list[int]
) -> list[float]:
    """Return the us of the layer alone for each number of shares of its width."""
    us = []
    for count in shares:
        times = way_times(definition, gpu, ranks, tokens, count)
        us.append(times[layer_times.ALONE])
    return us


@named
def all_reduce(ways: list[str], **layer: str | int) -> pd.Series:
    """Return the us beyond the layer alone that these ways to sum take.

    layer: as in `beyond_layer`.
    """
    return beyond_layer(**layer)[ways]


@named
def all_reduce_and_others(**layer: str | int) -> list[float]:
    """Return the us beyond the layer alone of this repository's way to sum, of the fastest other
    one and of the slowest.
    """
    us = beyond_layer(**layer)
    others = us.drop("run_allreduce")
    return [us["run_allreduce"], others.min(), others.max()]


@named
def all_reduces_apart(tokens: int, ways: list[str]) -> list[float]:
    """Return how far two ways to sum, with the layer, lie apart at a token count, in %, in each
    run.
    """
    first, second = ways
    points = [each for each in layer_times.all_reduce_points() if each.tokens == tokens]
    return [100 * abs(point.us[first] / point.us[second] - 1) for point in points]


@named
def mxfp4_over(
    definition: str, solution: str, peers: list[str], most_tokens: int
) -> pd.Series:
    """Return how many times as fast as the faster peer a solution is on a definition with MXFP4
    experts, at each token count up to `most_tokens`.
    """
    rows = layer_times.peer_rows()
    us = layer_times.peer_times(rows[rows.definition == definition])
    us = us.loc[:most_tokens]
    return us[peers].min(axis="columns", skipna=False) / us[solution]


@named
def mxfp4_shares(definitions: list[str], peer: str) -> pd.Series:
    """Return the shares of elements inside relaxed, from 0 to 1, in each of a peer's points."""
    rows = layer_times.peer_rows()
    is_shown = (rows.peer == peer) & rows.definition.isin(definitions)
    return rows.matched[is_shown].str["relaxed"]


# Comparisons


@named
def ceilings(gpu: str, rates: list[str]) -> list[float]:
    """Return ceilings of a GPU, by which bounds divide, in T/s."""
    return [CEILINGS[gpu][rate] / 1e12 for rate in rates]


def timed(
    column: str = "ms",
    clock: str = "events",
    gpu: str = MEASURED_ON,
    layer_key: str | None = None,
    least_tokens: int = 0,
    most_tokens: float = math.inf,
) -> pd.DataFrame:
    """Return the measurements on a GPU that count, a row for each workload and a column for each
    solution: ms, or another column of `measurements.load`.

    layer_key: of the layer, None for all. least_tokens, most_tokens: of the workloads.
    """
    rows = counted(pages.rows(clock))
    chosen = (rows.hardware == gpu) & rows.tokens.between(least_tokens, most_tokens)
    if layer_key:
        chosen &= rows.geometry == layer_key
    workload = ["definition", "tokens", "uuid"]
    return rows[chosen].pivot(index=workload, columns="solution", values=column)


@named
def over_bound(solution: str, **workloads: str | int) -> pd.Series:
    """Return a solution's latency over the bound on each workload. workloads: as in `timed`."""
    return timed("over_bound", **workloads)[solution].dropna()


@named
def times_as_fast(solution: str, other: str, **workloads: str | int) -> pd.Series:
    """Return how many times as fast a solution is as another, on each workload."""
    ms = timed(**workloads)
    return (ms[other] / ms[solution]).dropna()


@named
def longer(solution: str, than: str, **workloads: str | int) -> pd.Series:
    """Return how much longer a solution takes than another, in %, on each workload."""
    return 100 * (times_as_fast(than, solution, **workloads) - 1)


@named
def same_kernel_apart(solution: str, other: str, **workloads: str | int) -> list[float]:
    """Return how far two solutions lie apart that are one kernel.

    First on how many layers both were timed; then in % the median and the greatest difference from
    8 tokens on; then for fewer tokens the least and the greatest of the medians at each count, and
    the greatest difference.
    """
    difference = longer(solution, other, **workloads).abs()
    layers = difference.index.unique("definition")
    many = difference[difference.index.get_level_values("tokens") >= 8]
    few = difference.drop(many.index)
    medians = few.groupby("tokens").median()
    of_many = [many.median(), many.max()]
    return [len(layers), *of_many, medians.min(), medians.max(), few.max()]


def times_of_main_definition(clock: str) -> pd.Series:
    """Return (T, solution, uuid) -> ms on the main definition, by a clock."""
    rows = counted(pages.main_definition(clock))
    return rows.set_index(["tokens", "solution", "uuid"]).ms


@named
def clocks_apart(left_out: str) -> list[float]:
    """Return by how many ms the two clocks differ at one token, at least and at most, and by how
    many % at most the GPU's clock shows less at 14107 tokens.

    left_out: a solution whose own times vary by more than that.
    """
    events = times_of_main_definition("events").drop(left_out, level="solution")
    gpu = times_of_main_definition("gpu").drop(left_out, level="solution")
    at_one = (events - gpu).dropna()[1]
    less = 100 * (1 - gpu / events).dropna()[14107]
    return [at_one.min(), at_one.max(), less.max()]


@named
def fib_main_apart(least_tokens: int = 0, most_tokens: float = math.inf) -> pd.Series:
    """Return how far times by FIB's main branch are from ours by the GPU's clock, in %, on each
    workload with so many tokens.
    """
    theirs, _ = measurements.load([paths.RECORDS / "fib_main.jsonl"])
    theirs = theirs[theirs.clock == "gpu"].set_index(["tokens", "solution", "uuid"]).ms
    apart = 100 * (theirs / times_of_main_definition("gpu") - 1).abs().dropna()
    return apart.sort_index().loc[least_tokens:most_tokens]


@named
def cards_apart(
    card: str,
    other: str,
    left_out: str | None = None,
    least_tokens: int = 0,
    most_tokens: float = math.inf,
) -> pd.Series:
    """Return how far the medians of two cards lie apart, in %, on each workload with so many
    tokens. left_out: a solution.
    """
    apart = 100 * repeats.on_both(repeats.recorded(), card, other).apart
    tokens = apart.index.get_level_values("tokens")
    is_counted = apart.index.get_level_values("solution") != left_out
    return apart[is_counted & (least_tokens <= tokens) & (tokens <= most_tokens)]


@named
def ratios_apart(card: str, other: str) -> pd.Series:
    """Return how far each solution's ratios to the fastest one lie apart on two cards, in %."""
    cells = repeats.recorded()
    ratios = [repeats.over_fastest(cells, each) for each in (card, other)]
    return 100 * repeats.apart((ratios[0] / ratios[1]).dropna())


@named
def medians_within(card: str, other: str) -> list[float]:
    """Return how many medians of another card a card has as well, how many of them lie in its range
    with the stated spread, and how many in the range alone.
    """
    both = repeats.with_verdicts(repeats.recorded(), card, other)
    return [len(both), both.in_spread.sum(), both.in_range.sum()]


@named
def runs_apart(card: str, solution: str) -> pd.Series:
    """Return how far the runs of a solution on a card lie apart, in %, on each workload."""
    cells = repeats.recorded().loc[card, solution]
    return 100 * (cells.ms_high / cells.ms_low - 1)


@named
def layer_us(layer_key: str, solution: str, tokens: list[int]) -> list[float]:
    """Return a solution's us on a layer at each T, by events and then by the GPU's clock."""
    us = []
    for clock in ("events", "gpu"):
        ms = timed(clock=clock, layer_key=layer_key)[solution]
        us += [*1e3 * ms.groupby("tokens").median()[tokens]]
    return us


# Sizes


@named
def gigabytes_of_weights(layer_key: str) -> list[float]:
    """Return the GB of a layer's weights on one rank."""
    sizes = catalogue.layer_sizes()[layer_key]
    expert_bytes = catalogue.operator(layer_key).expert_bytes(sizes)
    return [sizes["num_local_experts"] * expert_bytes / 1e9]


@named
def gigabytes_of_inputs() -> list[float]:
    """Return the GB of all inputs, of each workload of the main definition."""
    full = catalogue.definition("full")
    return [size_of_inputs(full, workload) / 1e9 for workload in recorded("full")]


# Profiles, served records, Ray


def profiles_of(solution: str) -> list[WorkloadProfile]:
    """Return a solution's profiles. Raises LookupError where there are none."""
    for record in profiles.recorded():
        if record.solution == solution:
            return record.workloads
    raise LookupError(f"records/profile: nothing of {solution}")


@named
def profiled_reading(solution: str, tokens: int) -> list[float]:
    """Return the MB that a call has to move, the us in which kernels run, and the TB/s of both."""
    at_tokens = [profile for profile in profiles_of(solution) if profile.T == tokens]
    busy_us = at_tokens[0].busy_us
    rows = pages.main_definition()
    bound_ms = rows.bound_ms[rows.tokens == tokens].max()
    megabytes = bound_ms * CEILINGS[MEASURED_ON]["bytes"] / 1e9
    return [megabytes, busy_us, megabytes / busy_us]


@named
def tensor_cores_at_work(solution: str, least_tokens: int) -> list[float]:
    """Return in how many % of the cycles of each launch of a GEMM tensor cores work."""
    shares = []
    for profile in profiles_of(solution):
        for kernel in profile.kernels:
            if profile.T >= least_tokens and "gemm" in kernel.stage:
                shares += [launch.tensor_percent for launch in kernel.counters]
    return shares


@named
def served_savings(solution: str, others: list[str], tokens: list[int]) -> list[float]:
    """Return the ms that a solution saves in the first served record, at each token count against
    each of the others.
    """
    first = served.recorded()[0]
    savings = []
    for count in tokens:
        ms = {point.solution: point.ms for point in first.points_at(count)}
        savings += [ms[other] - ms[solution] for other in others]
    return savings


@named
def served_ms(layer_key: str, solution: str, tokens: list[int]) -> list[float]:
    """Return the ms of all layers of a served record at each token count, then the bounds."""
    definition = catalogue.definition_name(layer_key)
    records = [each for each in served.recorded() if each.head.definition == definition]
    points = []
    for count in tokens:
        at_count = records[0].points_at(count)
        points += [point for point in at_count if point.solution == solution]
    return [point.ms for point in points] + [point.bound_ms for point in points]


@named
def seconds_on_ray() -> list[float]:
    """Return the seconds of a job on two GPUs with actors, how many cells it has, and the seconds
    on one GPU without Ray.
    """
    text = RAY.read_text(encoding="utf-8")
    without_ray = re.search(WITHOUT_RAY, text)
    with_actors = re.search(WITH_ACTORS, text)
    if not without_ray or not with_actors:
        raise LookupError("records/ray.md: nothing says how long the job took")
    return [float(number) for number in (with_actors[1], *without_ray.groups())]


# The rest before a trial


@named
def runs_apart_after_rest(rest_s: float, tokens: list[int]) -> pd.Series:
    """Return how far the runs of each solution lie apart at each T, in %, with a rest of so many
    seconds before each trial.
    """
    runs = pd.read_csv(REST)
    runs = runs[(runs.rest_s == rest_s) & runs.tokens.isin(tokens)]
    return width(runs.groupby(["tokens", "solution"]).us)
