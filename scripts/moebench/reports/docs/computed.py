"""Compute the numbers in the pages' sentences from traces and records.

docs/figures.toml names, for each sentence, one of the functions under @named and its arguments: the
number in "costs {} us inside the launch" is `all_reduce(gpu="NVIDIA H200", ranks=4, ...)`. Such a
function returns the texts of a sentence's numbers, ["3.1"], and raises LookupError where the trace
or record that it reads is not there. sentences.py calls it.
"""

import re
from collections.abc import Callable, Iterable

import pandas as pd

from moebench.core import paths
from moebench.judging.device import size_of_inputs
from moebench.operators import catalogue
from moebench.operators.roofline import CEILINGS, MEASURED_ON
from moebench.operators.workloads import recorded
from moebench.profiling.record import WorkloadProfile
from moebench.reports import engines, layer_times, profiles, repeats, served
from moebench.reports.docs import pages
from moebench.reports.table import decimal
from moebench.results import measurements
from moebench.results.summary import counted

# by the GPU's clock, on DeepSeek-V4-Flash EP1 on an H200
REST = paths.RECORDS / "rest.csv"
RAY = paths.RECORDS / "ray.md"
WITHOUT_RAY = r"(\d+) cells of [^|]*, whole jobs \| one GPU without Ray (\d+) s"
WITH_ACTORS = r"with actors in place of batches \| (\d+) s:"

FUNCTIONS: dict[str, Callable[..., list[str]]] = {}


def named(function: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Return the function, which docs/figures.toml can name from now on."""
    FUNCTIONS[function.__name__] = function
    return function


def numbers(values: Iterable[float], digits: int) -> list[str]:
    """Return the texts of numbers with so many decimal places."""
    return [decimal(value, digits) for value in values]


def percents(shares: Iterable[float], digits: int = 0) -> list[str]:
    """Return the texts of shares in %: ["12"] for [0.12]."""
    return [decimal(100 * share, digits) for share in shares]


# Engines


def least_and_greatest_saving(ours: pd.Series, theirs: pd.Series) -> list[str]:
    """Return how much less `ours` is than `theirs`, in %, over concurrencies."""
    savings = 1 - ours / theirs
    return percents([savings.min(skipna=False), savings.max()])


@named
def less_per_token_in_vllm(layers: int, backend: str) -> list[str]:
    """Return how much less time per token a server with a solution takes than one with a backend of
    vLLM, in %: the least and the greatest saving over concurrencies.

    layers: of the model. Only runs of the solution before the backend's last one are taken.
    """
    runs = engines.vllm_runs(layers)
    theirs = runs[runs.backend == backend]
    ours = runs[runs.backend == "solution"]
    ours = ours[ours.date < theirs.date.max()]

    before = theirs.groupby("concurrency").median_tpot_ms.median()
    after = ours.groupby("concurrency").median_tpot_ms.median()
    return least_and_greatest_saving(after, before)


@named
def less_per_token_side_by_side(layers: int, backend: str) -> list[str]:
    """Return the same as `less_per_token_in_vllm`, by the last run in which both servers were up
    together.
    """
    runs = engines.vllm_runs(layers)
    together = runs[runs.date == runs.date.max()]
    tpot = together.pivot(
        index="concurrency", columns="backend", values="median_tpot_ms"
    )
    return least_and_greatest_saving(tpot.solution, tpot[backend])


@named
def less_in_sglang(runs: list[str], than: list[str]) -> list[str]:
    """Return how much less time a decode step and a prefill take in some runs than in others, in %.

    runs, than: names of runs in the record, over which medians are taken.
    """
    latencies = sglang_latencies()
    ours = latencies.loc[runs].median()
    theirs = latencies.loc[than].median()
    return percents(1 - ours / theirs)


def sglang_latencies() -> pd.DataFrame:
    """Return the latencies of a decode step and of a prefill, a row for each run in SGLang."""
    by_name = pd.DataFrame(engines.json_lines("sglang.jsonl")).set_index("run_name")
    return by_name[["median_decode_latency", "prefill_latency"]]


@named
def sum_in_vllm(layers: int, concurrencies: list[int], since: str = "") -> list[str]:
    """Return how much less time per token the server takes that leaves the sum over ranks to the
    solution than the one that does not, in %, at each concurrency.

    since: of which date on.
    """
    runs = engines.vllm_runs(layers, since)
    tpot = runs.groupby(["backend", "concurrency"]).median_tpot_ms.median()
    savings = 1 - tpot.solution_sum / tpot.solution
    return percents(savings[concurrencies], 1)


@named
def vllm_runs_apart(layers: int, until: str) -> list[str]:
    """Return how far runs at one concurrency lie apart at most, in %: of TPOT and of TTFT.

    until: before which date.
    """
    runs = engines.vllm_runs(layers, until=until)
    cells = runs.groupby(["backend", "concurrency"])
    times = cells[["median_tpot_ms", "median_ttft_ms"]]
    widths = times.max() / times.min() - 1
    return percents(widths.max(), 1)


@named
def vllm_p99_over_median(
    layers: int, backend: str, concurrencies: list[int]
) -> list[str]:
    """Return the 99th percentile of TPOT over its median, at each concurrency."""
    runs = engines.vllm_runs(layers)
    runs = runs[runs.backend == backend].set_index("concurrency")
    over = runs.p99_tpot_ms / runs.median_tpot_ms
    return numbers(over[concurrencies], 1)


@named
def vllm_tpot(
    layers: int, backend: str, start: int, concurrencies: list[int]
) -> list[str]:
    """Return the ms per token of a server's runs, at each concurrency. start: which of them."""
    runs = engines.vllm_runs(layers)
    runs = runs[(runs.backend == backend) & (runs.start == start)]
    tpot = runs.set_index("concurrency").median_tpot_ms
    return numbers(tpot[concurrencies], 3)


@named
def less_per_token_in_sglang(layers: int, concurrencies: list[int]) -> list[str]:
    """Return how much less time per token a server with the solution takes than one with SGLang's
    Triton kernels, in %, at each concurrency.
    """
    runs = engines.sglang_server_runs(layers)
    tpot = runs.groupby(["backend", "concurrency"]).median_tpot_ms.median()
    savings = 1 - tpot.solution / tpot.triton
    return percents(savings[concurrencies])


@named
def sglang_tpot_of_runs(layers: int, concurrency: int, digits: int) -> list[str]:
    """Return the ms per token of each run: of Triton's server, then of the solution's. digits:
    after the decimal point.
    """
    runs = engines.sglang_server_runs(layers)
    runs = runs[runs.concurrency == concurrency].sort_values("repeat")
    tpot = runs.groupby("backend").median_tpot_ms
    times = [*tpot.get_group("triton"), *tpot.get_group("solution")]
    return numbers(times, digits)


@named
def sglang_starts_apart(runs: list[str]) -> list[str]:
    """Return how far the times of some runs in SGLang lie apart at most, in %."""
    times = sglang_latencies().loc[runs]
    widths = times.max() / times.min() - 1
    return percents([widths.max()], 1)


@named
def sglang_rest_of_step(experts_by: list[str]) -> list[str]:
    """Return the ms of a profiled decode step without the experts' kernels."""
    runs = engines.sglang_runs()
    rest = runs["step_ms.decode"] - runs["experts_ms.decode"]
    return numbers(rest[experts_by], 2)


@named
def applied_calls() -> list[str]:
    """Return of FlashInfer's calls by Trace Apply: the least and the greatest share of elements
    inside relaxed, the least share against FlashInfer's kernels, and the least and the greatest us
    of a call on the host.
    """
    calls = pd.json_normalize(engines.json_lines("flashinfer.jsonl"))
    matched = calls["matched.relaxed"]
    beside = calls["beside.relaxed"]
    shares = [matched.min(), matched.max(), beside.min()]
    host_us = [calls.host_us.min(), calls.host_us.max()]
    return numbers(shares, 3) + numbers(host_us, 0)


# Several GPUs


def way_times(
    definition: str, gpu: str, ranks: int, tokens: int, shares: int
) -> dict[str, float]:
    """Return way to sum -> us of a layer whose width is split in `shares`, of which `ranks` ran."""
    wanted = (definition, gpu, ranks, "width", shares, tokens)
    for point in layer_times.all_reduce_points():
        place = (
            point.definition,
            point.gpu,
            point.ranks,
            point.split,
            point.shares,
            point.tokens,
        )
        if place == wanted:
            return dict(point.us)
    raise LookupError(
        f"multi_gpu.jsonl: no point of {definition} in {shares}, {ranks} {gpu},"
        f" T={tokens}"
    )


def beyond_layer(
    definition: str, gpu: str, ranks: int, tokens: int
) -> dict[str, float]:
    """Return way to sum -> us beyond the layer alone, of a layer that is split by width."""
    us = way_times(definition, gpu, ranks, tokens, shares=ranks)
    alone = us.pop(layer_times.ALONE)
    return {way: time - alone for way, time in us.items()}


@named
def layer_alone(
    definition: str, gpu: str, ranks: int, tokens: int, shares: list[int]
) -> list[str]:
    """Return the us of the layer alone for each number of shares of its width."""
    us = []
    for count in shares:
        times = way_times(definition, gpu, ranks, tokens, count)
        us.append(times[layer_times.ALONE])
    return numbers(us, 1)


@named
def all_reduce(
    definition: str, gpu: str, ranks: int, tokens: int, ways: list[str]
) -> list[str]:
    """Return the us beyond the layer alone that these ways to sum take."""
    us = beyond_layer(definition, gpu, ranks, tokens)
    return numbers([us[way] for way in ways], 1)


@named
def all_reduce_and_others(
    definition: str, gpu: str, ranks: int, tokens: int
) -> list[str]:
    """Return the us beyond the layer alone of this repository's way to sum, of the fastest other
    one and of the slowest.
    """
    us = beyond_layer(definition, gpu, ranks, tokens)
    ours = us.pop("run_allreduce")
    others = us.values()
    return numbers([ours, min(others), max(others)], 1)


@named
def all_reduces_apart(tokens: int, ways: list[str]) -> list[str]:
    """Return how far two ways to sum, with the layer, lie apart at most at a token count, in %."""
    first, second = ways
    apart = []
    for point in layer_times.all_reduce_points():
        if point.tokens == tokens:
            ratio = point.us[first] / point.us[second]
            apart.append(abs(ratio - 1))
    return percents([max(apart)], 2)


@named
def mxfp4_over(
    definition: str,
    solution: str,
    peers: list[str],
    most_tokens: int,
    card: int | None = None,
) -> list[str]:
    """Return how many times as fast as the faster peer a solution is on a definition with MXFP4
    experts, at the least and at the most of the token counts up to `most_tokens`.

    card: the one GPU whose points are taken; None for all.
    """
    points = [each for each in points_of(definition) if card in (None, each.card)]
    times = layer_times.peer_times(points)
    few_tokens = times[times.index <= most_tokens]
    faster_peer = few_tokens[peers].min(axis="columns", skipna=False)
    ratio = faster_peer / few_tokens[solution]
    return numbers([ratio.min(skipna=False), ratio.max()], 2)


def points_of(definition: str) -> list[layer_times.PeerPoint]:
    """Return the points of a definition with MXFP4 experts."""
    points = layer_times.peer_points()
    return [point for point in points if point.definition == definition]


@named
def mxfp4_ms(definition: str, tokens: int, peers: dict[str, int]) -> list[str]:
    """Return the ms of peers at a token count. peers: name -> digits after the decimal point."""
    ms = layer_times.peer_times(points_of(definition)).loc[tokens] / 1e3
    return [decimal(ms[peer], digits) for peer, digits in peers.items()]


@named
def mxfp4_shares(definitions: list[str], peer: str) -> list[str]:
    """Return the least and the greatest share of elements inside relaxed, over definitions."""
    shares = []
    for definition in definitions:
        for point in points_of(definition):
            if point.peer == peer:
                shares.append(point.matched["relaxed"])
    return numbers([min(shares), max(shares)], 2)


# Comparisons


@named
def ceilings(gpu: str, rates: list[str]) -> list[str]:
    """Return ceilings of a GPU, by which bounds divide, in T/s; TB/s with two decimal places."""
    texts = []
    for rate in rates:
        digits = 2 if rate == "bytes" else 0
        texts.append(decimal(CEILINGS[gpu][rate] / 1e12, digits))
    return texts


def times_over(gpu: str, solution: str, other: str) -> pd.DataFrame:
    """Return a row for each workload on a GPU, with the ratio of two solutions' times."""
    rows = counted(pages.rows())
    on_gpu = rows[rows.hardware == gpu]
    workload = ["definition", "tokens", "uuid"]
    ms = on_gpu.pivot(index=workload, columns="solution", values="ms")
    ratio = ms[solution] / ms[other]
    return ratio.dropna().reset_index(name="ratio")


@named
def same_kernel_apart(gpu: str, solutions: list[str], most_tokens: int) -> list[str]:
    """Return how far two solutions lie apart that are one kernel up to most_tokens.

    First on how many layers both were timed; then in % the median and the greatest difference from
    8 tokens on; then for fewer tokens the least and the greatest of the medians at each count, and
    the greatest difference.
    """
    both = times_over(gpu, *solutions)
    both = both[both.tokens <= most_tokens]
    layers = both.definition.nunique()

    difference = (both.ratio - 1).abs()
    has_many_tokens = both.tokens >= 8
    many = difference[has_many_tokens]
    few = difference[~has_many_tokens]
    medians = few.groupby(both.tokens).median()
    shares_of_many = [many.median(), many.max()]
    shares_of_few = [medians.min(), medians.max(), few.max()]
    return [str(layers), *percents(shares_of_many), *percents(shares_of_few)]


@named
def same_kernel_longer(gpu: str, solutions: list[str], most_tokens: int) -> list[str]:
    """Return by how much the first of two solutions that are one kernel took longer, in %: the
    median, and at most.
    """
    both = times_over(gpu, *solutions)
    longer = both.ratio[both.tokens <= most_tokens] - 1
    return percents([longer.median()], 1) + percents([longer.max()])


@named
def longer_at_most(solution: str, than: str, least_tokens: int) -> list[str]:
    """Return what a solution takes longer than another one, at most over all layers, in %."""
    both = times_over(MEASURED_ON, solution, than)
    longer = both.ratio[both.tokens >= least_tokens] - 1
    return percents([longer.max()])


def times_of_main_definition(clock: str) -> pd.Series:
    """Return (T, solution, uuid) -> ms on the main definition, by a clock."""
    rows = counted(pages.main_definition(clock))
    return rows.set_index(["tokens", "solution", "uuid"]).ms


@named
def clocks_apart(left_out: str) -> list[str]:
    """Return by how many ms the two clocks differ at one token, at least and at most, and by how
    many % at most the GPU's clock shows less at 14107 tokens.

    left_out: a solution whose own times vary by more than that.
    """
    events = times_of_main_definition("events").drop(left_out, level="solution")
    gpu = times_of_main_definition("gpu").drop(left_out, level="solution")
    at_one = (events - gpu).dropna()[1]
    less_at_most = (1 - gpu / events).dropna()[14107]
    milliseconds = numbers([at_one.min(), at_one.max()], 2)
    return milliseconds + percents([less_at_most.max()])


@named
def fib_main_apart() -> list[str]:
    """Return how far times by FIB's main branch are from ours by the GPU's clock, at most, in %:
    from 57 tokens on, and at one token.
    """
    theirs, _ = measurements.load([paths.RECORDS / "fib_main.jsonl"])
    theirs = theirs[theirs.clock == "gpu"].set_index(["tokens", "solution", "uuid"]).ms
    ours = times_of_main_definition("gpu")

    apart = (theirs / ours - 1).abs().dropna()
    from_57 = apart[apart.index.get_level_values("tokens") >= 57]
    return percents([from_57.max()], 1) + percents([apart[1].max()])


@named
def few_tokens_apart(card: str, other: str, left_out: str) -> list[str]:
    """Return how far the medians of two cards lie apart, in %: in the median up to
    repeats.MOST_TOKENS, without the solution that is left out, and at most beyond.
    """
    both = repeats.on_both(repeats.recorded(), card, other)
    apart = both.apart.drop(left_out, level="solution")
    is_many = apart.index.get_level_values("tokens") > repeats.MOST_TOKENS
    few = apart[~is_many]
    many = apart[is_many]
    return percents([few.median(), many.max()], 1)


@named
def cards_apart(shown: list[str]) -> list[str]:
    """Return how far apart both of repeats.CARDS are, in %.

    shown: which numbers: "median" and "most" of their times, or how far their "ratios" to the
    fastest solution lie apart at most.
    """
    cells = repeats.recorded()
    times = repeats.on_both(cells, *repeats.CARDS).apart
    first, second = (repeats.over_fastest(cells, card) for card in repeats.CARDS)
    ratios = repeats.apart((first / second).dropna())

    shares = {"median": times.median(), "most": times.max(), "ratios": ratios.max()}
    return percents([shares[name] for name in shown], 1)


@named
def medians_within(card: str, other: str) -> list[str]:
    """Return how many medians of another card a card has as well, how many of them lie in its range
    with the stated spread, and how many in the range alone.
    """
    both = repeats.with_verdicts(repeats.recorded(), card, other)
    counts = [len(both), both.in_spread.sum(), both.in_range.sum()]
    return numbers(counts, 0)


@named
def runs_apart(card: str, solution: str) -> list[str]:
    """Return how far the runs of a solution on a card lie apart, median and greatest, in %."""
    cells = repeats.recorded().loc[card, solution]
    width = cells.ms_high / cells.ms_low - 1
    return percents([width.median(), width.max()])


@named
def over_bound(gpu: str, solution: str) -> list[str]:
    """Return a solution's latency over the bound on the main definition, by CUDA events: the least
    and the greatest from 14 to 901 tokens, that at one token, and the greatest beyond 901.
    """
    rows = counted(pages.main_definition("events", gpu))
    of_solution = rows[rows.solution == solution].sort_values("tokens")
    over = of_solution.set_index("tokens").over_bound
    middle = over.loc[14:901]
    beyond = over.loc[902:]
    return numbers([middle.min(), middle.max(), over[1], beyond.max()], 1)


def of_layer(layer_key: str, clock: str = "events") -> pd.DataFrame:
    """Return the measurements of a layer that count, on the H200, a row for each workload."""
    rows = counted(pages.rows(clock))
    on_gpu = rows[(rows.geometry == layer_key) & (rows.hardware == MEASURED_ON)]
    return on_gpu.set_index(["solution", "tokens", "uuid"]).sort_index()


@named
def layer_over_bound(layer_key: str, solution: str) -> list[str]:
    """Return a solution's latency over the bound on a layer, at least and at most."""
    over = of_layer(layer_key).over_bound[solution]
    return numbers([over.min(), over.max()], 1)


@named
def layer_times_as_fast(
    layer_key: str, solution: str, other: str, most_digits: int
) -> list[str]:
    """Return how many times as fast a solution is as another on a layer, at least and at most.

    most_digits: of the greatest number, after the decimal point.
    """
    ms = of_layer(layer_key).ms
    ratio = ms[other] / ms[solution]
    return [decimal(ratio.min(), 1), decimal(ratio.max(), most_digits)]


@named
def layer_takes_longer(layer_key: str, solution: str, than: str) -> list[str]:
    """Return how much longer a solution takes than another on a layer, in %, at least and at most.

    A solution that is faster somewhere takes 0% longer at least.
    """
    ms = of_layer(layer_key).ms
    excess = ms[solution] / ms[than] - 1
    least = max(excess.min(), 0)
    return percents([least, excess.max()])


@named
def layer_us(layer_key: str, solution: str, tokens: list[int]) -> list[str]:
    """Return a solution's us on a layer at each T, by events and then by the GPU's clock."""
    texts = []
    for clock in ("events", "gpu"):
        ms = of_layer(layer_key, clock).ms[solution]
        texts += numbers([1e3 * ms[count].median() for count in tokens], 0)
    return texts


# Sizes


@named
def gigabytes_of_weights(layer_key: str) -> list[str]:
    """Return the GB of a layer's weights on one rank."""
    sizes = catalogue.layer_sizes()[layer_key]
    expert_bytes = catalogue.operator(layer_key).expert_bytes(sizes)
    weights = sizes["num_local_experts"] * expert_bytes
    return [decimal(weights / 1e9, 2)]


@named
def gigabytes_of_inputs() -> list[str]:
    """Return the GB of all inputs of the main definition's largest workload."""
    full = catalogue.definition("full")
    sizes = [size_of_inputs(full, workload) for workload in recorded("full")]
    return [decimal(max(sizes) / 1e9, 1)]


# Profiles, served records, Ray


def profiles_of(solution: str) -> list[WorkloadProfile]:
    """Return a solution's profiles. Raises LookupError where there are none."""
    for record in profiles.recorded():
        if record.solution == solution:
            return record.workloads
    raise LookupError(f"records/profile: nothing of {solution}")


@named
def profiled_reading(solution: str, tokens: int) -> list[str]:
    """Return the MB that a call has to move, the us in which kernels run, and the TB/s of both."""
    at_tokens = [profile for profile in profiles_of(solution) if profile.T == tokens]
    busy_us = at_tokens[0].busy_us
    rows = pages.main_definition()
    bound_ms = rows.bound_ms[rows.tokens == tokens].max()
    megabytes = bound_ms * CEILINGS[MEASURED_ON]["bytes"] / 1e9
    terabytes_a_second = megabytes / busy_us
    return numbers([megabytes, busy_us], 0) + numbers([terabytes_a_second], 2)


@named
def tensor_cores_at_work(solution: str, least_tokens: int) -> list[str]:
    """Return in how many % of the cycles of a GEMM tensor cores work, at least and at most."""
    shares = []
    for profile in profiles_of(solution):
        for kernel in profile.kernels:
            if profile.T >= least_tokens and "gemm" in kernel.stage:
                shares += [launch.tensor_percent for launch in kernel.counters]
    return numbers([min(shares), max(shares)], 0)


@named
def served_savings(solution: str, others: list[str], tokens: list[int]) -> list[str]:
    """Return the ms that a solution saves in the first served record, at each token count against
    each of the others.
    """
    first = served.recorded()[0]
    texts = []
    for count in tokens:
        ms = {point.solution: point.ms for point in first.points_at(count)}
        texts += numbers([ms[other] - ms[solution] for other in others], 1)
    return texts


@named
def served_ms(layer_key: str, solution: str, tokens: list[int]) -> list[str]:
    """Return the ms of all layers of a served record at each token count, then the bounds."""
    definition = catalogue.definition_name(layer_key)
    records = {}
    for record in served.recorded():
        records.setdefault(record.head.definition, record)

    ms = []
    bounds_ms = []
    for count in tokens:
        for point in records[definition].points_at(count):
            if point.solution == solution:
                ms.append(point.ms)
                bounds_ms.append(point.bound_ms)
    return numbers(ms + bounds_ms, 2)


@named
def seconds_on_ray() -> list[str]:
    """Return the seconds of a job on two GPUs with actors, how many cells it has, and the seconds
    on one GPU without Ray.
    """
    text = RAY.read_text(encoding="utf-8")
    without_ray = re.search(WITHOUT_RAY, text)
    with_actors = re.search(WITH_ACTORS, text)
    if not without_ray or not with_actors:
        raise LookupError("records/ray.md: nothing says how long the job took")
    return [with_actors[1], *without_ray.groups()]


# The rest before a trial


@named
def runs_apart_after_rest(rest_s: float, tokens: list[int]) -> list[str]:
    """Return how far the runs of a solution lie apart at most, in %, with a rest of so many seconds
    before each trial.
    """
    runs = pd.read_csv(REST)
    runs = runs[(runs.rest_s == rest_s) & runs.tokens.isin(tokens)]
    if runs.empty:
        raise LookupError(f"{REST.name}: no runs with a rest of {rest_s} s")

    us = runs.groupby(["tokens", "solution"]).us
    widths = us.max() / us.min() - 1
    return percents([widths.max()], 1)
