"""Which solutions serve a checkpoint's layer, how fast they are, and why the others do not, as

    served, top-k given   NAME 1.16, OTHER 1.31
    not served by         THIRD (hidden size 2048, want 7168)

with the recorded latency over the roofline bound.
"""

import math
import sys
from collections import defaultdict
from dataclasses import dataclass

from moebench.core import paths
from moebench.core.errors import UserError
from moebench.operators import catalogue
from moebench.operators.fp8.routed import after_routing
from moebench.operators.layers import Sizes
from moebench.operators.roofline import MEASURED_ON
from moebench.packing import manifest
from moebench.packing.serves import why_not
from moebench.reports.layer_facts import RankLayer
from moebench.results import measurements
from moebench.results.summary import by_solution

TOP_K_GIVEN = ("routed", "mxfp4")  # forms that an engine calls with the experts of each token


@dataclass(frozen=True)
class Serving:
    """What a solution does with a layer, for each of the layer's forms.

    why_not: form -> why it does not serve it, None where it does. over_bound: form -> recorded
    latency over the bound, of forms that are recorded. elsewhere: the same of the first definition,
    where no solution is recorded on this layer.
    """

    solution: str
    why_not: dict[str, str | None]
    over_bound: dict[str, float]
    elsewhere: float | None


def servings_of(layer: RankLayer) -> list[Serving]:
    """Return what each solution for such layers does with this one, the best first."""
    recorded = {form: over_bound(key) for form, key in layer.keys.items() if key}
    elsewhere = {}
    if not any(recorded.values()):
        first_key, *_ = catalogue.layer_sizes()
        elsewhere = over_bound(first_key)

    servings = []
    for name, solution in manifest.readable_manifests().items():
        serves_fp8_layers = any(map(catalogue.form, solution.definitions))
        if not solution.serves and not serves_fp8_layers:
            continue

        ratios = {}
        for form, ratio_of_solution in recorded.items():
            if name in ratio_of_solution:
                ratios[form] = ratio_of_solution[name]
        servings.append(Serving(name, reasons(solution, layer), ratios, elsewhere.get(name)))
    return sorted(servings, key=best_first)


def reasons(solution: manifest.Manifest, layer: RankLayer) -> dict[str, str | None]:
    """Return form -> why a solution does not serve the layer, None where it does."""
    by_form = {}
    for form, key in layer.keys.items():
        by_form[form] = None
        if key not in solution.definitions:
            by_form[form] = why_not(solution.serves, form, sizes_of_form(form, layer.sizes))
    return by_form


def sizes_of_form(form: str, sizes: Sizes) -> Sizes:
    """Return the sizes that a solution sees: where top-k is given there are no groups of experts,
    and shared experts are among the others.
    """
    return after_routing(sizes) if form in TOP_K_GIVEN else sizes


def over_bound(key: str) -> dict[str, float]:
    """Return solution -> recorded latency over the bound on the GPU whose bound is known; {}
    without traces.
    """
    path = paths.trace_file(catalogue.definition_name(key))
    if not path.exists():
        return {}
    try:
        rows, _ = measurements.load([path])
    except UserError as error:
        print(error, file=sys.stderr)
        return {}
    here = rows[rows.hardware == MEASURED_ON]
    return by_solution(here).over_bound.dropna().to_dict() if len(here) else {}


def best_first(serving: Serving) -> tuple[int, float, float, str]:
    """Return a key to sort by: more forms first, then the fastest here, then the fastest on the
    first definition.
    """
    refused = [reason for reason in serving.why_not.values() if reason]
    here = min(serving.over_bound.values(), default=math.inf)
    return len(refused), here, serving.elsewhere or math.inf, serving.solution


def serving_rows(layer: RankLayer, servings: list[Serving]) -> list[tuple[str, str]]:
    """Return a row for each form with the solutions that serve it, and one with those that serve
    none and why.
    """
    rows = []
    for form in layer.keys:
        name = "served, top-k given" if form in TOP_K_GIVEN else "served, with router"
        rows.append((name, served_by(form, servings)))
    if any(serving.over_bound for serving in servings):
        rows.append(("", "(recorded latency over the bound, geometric mean over workloads)"))

    refusing = defaultdict(list)  # reason -> solutions
    for serving in servings:
        refusals = list(serving.why_not.values())
        if all(refusals):
            refusing[most_telling(refusals)].append(serving.solution)
    texts = [f"{', '.join(names)} ({reason})" for reason, names in refusing.items()]
    if texts:
        rows.append(("not served by", "; ".join(texts)))
    return rows


def served_by(form: str, servings: list[Serving]) -> str:
    """Return the solutions that serve a form, the fastest first, with latency over the bound."""
    servers = solutions_serving(form, servings)
    servers.sort(key=lambda serving: serving.over_bound.get(form, math.inf))

    texts = []
    for serving in servers:
        text = serving.solution
        if form in serving.over_bound:
            text += f" {serving.over_bound[form]:.2f}"
        texts.append(text)
    return ", ".join(texts) or "by none"


def solutions_serving(form: str, servings: list[Serving]) -> list[Serving]:
    """Return the solutions that serve a form."""
    return [serving for serving in servings if serving.why_not[form] is None]


def most_telling(reasons: list[str]) -> str:
    """Return the first reason that is of the layer's sizes, or else the one of its router."""
    of_sizes = [reason for reason in reasons if not reason.startswith("router")]
    return (of_sizes or reasons)[0]
