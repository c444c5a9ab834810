"""What `moebench model` says of a checkpoint's MoE layer: a name and a text in each row, as

    experts               32 of 256, top-k 8, 4 of 8 groups
    hidden, intermediate  7168, 2048
    served, top-k given   NAME 1.16, OTHER 1.31
    not served by         THIRD (hidden size 2048, want 7168)

`facts` makes rows of config.json and of the sizes that the layer has on one rank. `servings_of`
finds out which solutions serve the layer, how fast they are, by recorded latency over the roofline
bound, and why the others do not; `serving_rows` makes rows of that.
"""

import math
import sys
import textwrap
from collections import defaultdict
from dataclasses import dataclass

from moebench.core import paths
from moebench.core.errors import UserError
from moebench.models.checkpoint import Checkpoint
from moebench.models.expected_bound import expected_bound
from moebench.models.scales import Facts
from moebench.operators import catalogue
from moebench.operators.fp8 import swiglu
from moebench.operators.fp8.routed import after_routing
from moebench.operators.layers import Sizes, routed_experts
from moebench.operators.roofline import MEASURED_ON
from moebench.packing import manifest
from moebench.packing.serves import why_not
from moebench.reports.models import GPU_GB
from moebench.results import measurements
from moebench.results.summary import by_solution

TOKENS = (1, 64, 4096)  # for which bounds are shown
MOST_LISTED = 8  # of the fields that are not understood


@dataclass(frozen=True)
class RankLayer:
    """A checkpoint's layer on one rank.

    keys: form of the layer -> key of the definition, None without one. A form is how a definition
    takes the routing: "sigmoid-bias" and "renorm" have the router inside, "routed" and "mxfp4" are
    called with top-k given. keys_with_shared: keys of definitions that include the shared experts.
    """

    checkpoint: Checkpoint
    sizes: Sizes
    keys: dict[str, str | None]
    keys_with_shared: list[str]


def keys_by_form(sizes: Sizes, kind: str) -> dict[str, str | None]:
    """Return form -> the key of the definition with these sizes, None without one.

    kind: of the weights, "fp8" or "mxfp4".
    """
    by_name = catalogue.by_name()
    names = catalogue.names(sizes, kind)
    return {form: by_name.get(name) for form, name in names.items()}


def facts(layer: RankLayer) -> Facts:
    """Return rows of what config.json says and of what follows from it."""
    checkpoint = layer.checkpoint
    keys = [key for key in layer.keys.values() if key]
    texts = {
        "experts": experts_text(layer.sizes),
        "shared experts": shared_text(layer),
        "hidden, intermediate": widths_text(layer),
        "router": router_text(layer),
        "activation": activation_text(layer),
        "weights": f"{checkpoint.storage}; {layer_gigabytes(layer):.2f} GB a layer",
        "MoE layers": memory_text(layer),
        "bound, ms": bounds_text(layer),
        "definition": ", ".join(keys) or "none yet",
        "note": "; ".join(checkpoint.notes),
        "not understood": listed(checkpoint.not_understood),
    }
    return [(name, text) for name, text in texts.items() if text]


def experts_text(sizes: Sizes) -> str:
    """Return how many experts the rank has of how many, and how many a token chooses."""
    text = f"{routed_experts(sizes)} of {sizes['num_experts']}, top-k {sizes['top_k']}"
    if sizes["num_groups"] > 1:
        text += f", {sizes['kept_groups']} of {sizes['num_groups']} groups"
    return text


def router_text(layer: RankLayer) -> str:
    """Return the router, and that no definition has it inside if that is so."""
    router = layer.checkpoint.router
    if len(layer.keys) == 1:
        router += "; no definition has this router inside, so top-k is given"
    return router


def activation_text(layer: RankLayer) -> str:
    """Return the activation, and how many layers have another limit."""
    text = swiglu.description(layer.sizes)
    for limit, layers in layer.checkpoint.others.items():
        text += f"; {layers} more with limit {limit:g} (--limit)"
    return text


def shared_text(layer: RankLayer) -> str:
    """Return what the shared experts are, and which definitions include them; "" without any."""
    shared = layer.checkpoint.shared
    if not shared:
        return ""

    gate = ", weighed by a sigmoid" if shared.has_gate else ""
    words = f"{shared.width} wide{gate}"
    if layer.sizes["num_shared_experts"]:
        return f"{words}; included, behind the others"
    if shared.why_not_appended:
        return f"{words}; no definition can include them: {shared.why_not_appended}"
    if layer.keys_with_shared:
        return f"{words}; included in {', '.join(layer.keys_with_shared)}"
    return f"{words}; no definition includes them yet (--shared)"


def widths_text(layer: RankLayer) -> str:
    """Return the hidden and the intermediate size, and of which size the latter is a slice."""
    sizes = layer.sizes
    text = f"{sizes['hidden_size']}, {sizes['intermediate_size']}"
    if sizes["tensor_ranks"] > 1:
        whole = layer.checkpoint.sizes["intermediate_size"]
        text += f", one of {sizes['tensor_ranks']} slices of {whole}"
    return text


def layer_gigabytes(layer: RankLayer) -> float:
    """Return the memory that a layer's weights take on the rank."""
    expert_bytes = layer.checkpoint.operator.expert_bytes(layer.sizes)
    return layer.sizes["num_local_experts"] * expert_bytes / 1e9


def memory_text(layer: RankLayer) -> str:
    """Return how many MoE layers the model has, and whether the weights of all fit a GPU."""
    count = layer.checkpoint.layers + sum(layer.checkpoint.others.values())
    gigabytes = layer_gigabytes(layer) * count
    fits = "fits" if gigabytes <= GPU_GB else "exceeds"
    return f"{count}, {gigabytes:.1f} GB, which {fits} a GPU of {GPU_GB} GB"


def bounds_text(layer: RankLayer) -> str:
    """Return the roofline bounds at TOKENS, "T=1: 0.0312 (8.0 experts active), ..."."""
    parts = []
    for tokens in TOKENS:
        bound = expected_bound(tokens, layer.sizes, layer.checkpoint.operator)
        active = f"{bound.active:.1f} experts active"
        parts.append(f"T={tokens}: {bound.ms:.4f} ({active})")
    return f"{', '.join(parts)}; means over routings, {MEASURED_ON}"


def listed(fields: dict[str, object]) -> str:
    """Return the names and values of fields, cut to a few words each."""
    parts = []
    for name, value in fields.items():
        shortened = textwrap.shorten(str(value), 24)
        parts.append(f"{name} {shortened}")
    text = ", ".join(parts[:MOST_LISTED])
    further = len(parts) - MOST_LISTED
    if further > 0:
        text += f" and {further} more"
    return text


@dataclass(frozen=True)
class Servings:
    """Which solutions for FP8 layers serve a layer, and how fast they are; the best are first.

    by_form: form of the layer -> solution that serves it -> recorded latency over the bound, None
    where that is not recorded. why_not: solution that serves no form -> the reason.
    """

    by_form: dict[str, dict[str, float | None]]
    why_not: dict[str, str]


def servings_of(layer: RankLayer) -> Servings:
    """Return which solutions serve a layer."""
    keys = layer.keys.items()
    recorded = {form: over_bound(key) for form, key in keys if key}
    reasons_of = {}
    for name, solution in manifest.readable_manifests().items():
        if solution.serves or any(map(catalogue.form, solution.definitions)):
            reasons_of[name] = reasons(solution, layer)

    servings = Servings({form: {} for form in layer.keys}, {})
    for name in best_first(reasons_of, list(recorded.values())):
        refused = reasons_of[name]
        for form, reason in refused.items():
            if reason is None:
                ratio = recorded.get(form, {}).get(name)
                servings.by_form[form][name] = ratio
        if all(refused.values()):
            servings.why_not[name] = most_telling(list(refused.values()))
    return servings


def best_first(
    reasons_of: dict[str, dict[str, str | None]], recorded: list[dict[str, float]]
) -> list[str]:
    """Return solutions sorted: first those that serve more forms, then the faster on this layer, or
    where none is recorded on it the faster on the catalogue's first definition.

    reasons_of: solution -> its `reasons`. recorded: for each form solution -> latency over the
    bound.
    """
    if not any(recorded):
        first_key, *_ = catalogue.layer_sizes()
        recorded = [over_bound(first_key)]

    def place(solution: str) -> tuple[int, float, str]:
        refusals = list(filter(None, reasons_of[solution].values()))
        ratios = [each.get(solution, math.inf) for each in recorded]
        return len(refusals), min(ratios), solution

    return sorted(reasons_of, key=place)


def reasons(solution: manifest.Manifest, layer: RankLayer) -> dict[str, str | None]:
    """Return form -> why a solution does not serve the layer, None where it does."""
    by_form = {}
    for form, key in layer.keys.items():
        by_form[form] = None
        if key not in solution.definitions:
            sizes = layer.sizes
            if form in catalogue.TOP_K_GIVEN:
                # then a solution sees no groups, and shared experts as others
                sizes = after_routing(sizes)
            by_form[form] = why_not(solution.serves, form, sizes)
    return by_form


def over_bound(key: str) -> dict[str, float]:
    """Return solution -> recorded latency over the bound on MEASURED_ON; {} without traces.

    key: of the layer.
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
    if here.empty:
        return {}
    return by_solution(here).over_bound.dropna().to_dict()


def serving_rows(servings: Servings) -> Facts:
    """Return a row for each form with the solutions that serve it, and a row with those that serve
    no form and why.
    """
    rows = []
    is_recorded = False
    for form, servers in servings.by_form.items():
        is_given = form in catalogue.TOP_K_GIVEN
        name = "served, top-k given" if is_given else "served, with router"
        rows.append((name, served_by(servers)))
        is_recorded = is_recorded or any(servers.values())
    if is_recorded:
        rows.append(
            ("", "(recorded latency over the bound, geometric mean over workloads)")
        )

    refusing = defaultdict(list)  # reason -> solutions
    for solution, reason in servings.why_not.items():
        refusing[reason].append(solution)
    texts = [f"{', '.join(names)} ({reason})" for reason, names in refusing.items()]
    if texts:
        rows.append(("not served by", "; ".join(texts)))
    return rows


def served_by(servers: dict[str, float | None]) -> str:
    """Return the solutions that serve a form, the fastest first, with latency over the bound."""
    texts = []
    for name in sorted(servers, key=lambda name: servers[name] or math.inf):
        ratio = servers[name]
        texts.append(f"{name} {ratio:.2f}" if ratio else name)
    return ", ".join(texts) or "by none"


def most_telling(reasons: list[str]) -> str:
    """Return the first reason that is about sizes, or else the one that is about the router."""
    of_sizes = [reason for reason in reasons if not reason.startswith("router")]
    return (of_sizes or reasons)[0]
