"""Compute the numbers in the pages' sentences from traces and records.

docs/figures.toml names, for each sentence, one of FUNCTIONS and its arguments: the number in "costs
{} us inside the launch" is `all_reduce(gpu="NVIDIA H200", ranks=4, ...)`. Such a function returns
the texts of a sentence's numbers, ["3.1"], and raises LookupError where the trace or record that it
reads is not there. sentences.py calls it.
"""

from collections.abc import Callable

import pandas as pd

from moebench.operators import catalogue
from moebench.operators.roofline import CEILINGS, MEASURED_ON
from moebench.reports import layer_times
from moebench.reports.docs import pages
from moebench.reports.table import decimal
from moebench.results.summary import counted


def percent(share: float, digits: int = 0) -> str:
    """Return a share in %: "12" for 0.12."""
    return decimal(100 * share, digits)


def all_reduce(definition: str, gpu: str, ranks: int, tokens: int, ways: list[str]) -> list[str]:
    """Return the us that these ways to sum take beyond the layer alone, which is split by width."""
    wanted = (definition, gpu, ranks, "width", ranks, tokens)
    for point in layer_times.all_reduce_points():
        if point.place == wanted:
            alone = point.us[layer_times.ALONE]
            return [decimal(point.us[way] - alone, 1) for way in ways]
    raise LookupError(f"multi_gpu.jsonl: no point of {wanted}")


def mxfp4_times_as_fast(
    definition: str, solution: str, peers: list[str], most_tokens: int, card: int | None = None
) -> list[str]:
    """Return how many times as fast as the faster peer a solution is on a definition with MXFP4
    experts, at the least and at the most of the token counts up to `most_tokens`.

    card: the one GPU whose points are taken; None for all.
    """
    points = []
    for point in layer_times.peer_points():
        if point.definition == definition and card in (None, point.card):
            points.append(point)

    times = layer_times.peer_times(points).loc[:most_tokens]
    faster_peer = times[peers].min(axis="columns", skipna=False)
    ratio = faster_peer / times[solution]
    return [decimal(ratio.min(skipna=False), 2), decimal(ratio.max(), 2)]


def ceilings(gpu: str, rates: list[str]) -> list[str]:
    """Return ceilings of a GPU, by which bounds divide, in T/s; TB/s with two decimal places."""
    texts = []
    for rate in rates:
        digits = 2 if rate == "bytes" else 0
        tera = CEILINGS[gpu][rate] / 1e12
        texts.append(decimal(tera, digits))
    return texts


def ratios(gpu: str, solution: str, other: str) -> pd.Series:
    """Return T of each workload that two solutions ran on a GPU -> the ratio of their times."""
    rows = counted(pages.rows())
    on_gpu = rows[rows.hardware == gpu]
    ms = on_gpu.pivot(index=["tokens", "definition", "uuid"], columns="solution", values="ms")
    ratio = ms[solution] / ms[other]
    return ratio.dropna().droplevel(["definition", "uuid"])


def apart(gpu: str, solutions: list[str], most_tokens: int) -> list[str]:
    """Return how far the times of two solutions on the same workload lie apart up to a token count,
    in %: the median over all layers, and at most.
    """
    difference = ratios(gpu, *solutions).loc[:most_tokens] - 1
    shares = difference.abs()
    return [percent(shares.median(), 1), percent(shares.max())]


def longer_at_most(solution: str, than: str, least_tokens: int) -> list[str]:
    """Return what a solution takes longer than another one, at most over all layers, in %."""
    longer = ratios(MEASURED_ON, solution, than).loc[least_tokens:] - 1
    return [percent(longer.max())]


def over_bound(gpu: str, solution: str, tokens: list[int]) -> list[str]:
    """Return a solution's latency over the bound on the main definition, by CUDA events: the least
    and the greatest in a range of token counts, first and last, and the greatest of all.
    """
    rows = counted(pages.main_definition("events", gpu))
    of_solution = rows[rows.solution == solution]
    first, last = tokens
    inside = of_solution[of_solution.tokens.between(first, last)].over_bound

    numbers = [inside.min(), inside.max(), of_solution.over_bound.max()]
    return [decimal(number, 1) for number in numbers]


def gigabytes_of_weights(layer_key: str) -> list[str]:
    """Return the GB of a layer's weights on one rank."""
    sizes = catalogue.layer_sizes()[layer_key]
    expert_bytes = catalogue.operator(layer_key).expert_bytes(sizes)
    weights = sizes["num_local_experts"] * expert_bytes
    return [decimal(weights / 1e9, 2)]


FUNCTIONS: dict[str, Callable[..., list[str]]] = {
    "all_reduce": all_reduce,
    "apart": apart,
    "ceilings": ceilings,
    "gigabytes_of_weights": gigabytes_of_weights,
    "longer_at_most": longer_at_most,
    "mxfp4_times_as_fast": mxfp4_times_as_fast,
    "over_bound": over_bound,
}
