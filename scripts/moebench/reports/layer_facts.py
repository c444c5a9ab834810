"""What `moebench model` says of a checkpoint's MoE layer: a name and a text for each fact, as

    experts               32 of 256, top-k 8, 4 of 8 groups
    hidden, intermediate  7168, 2048

from what config.json says and from the sizes that the layer has on one rank.
"""

import textwrap
from dataclasses import dataclass

from moebench.models.checkpoint import Checkpoint
from moebench.models.expected_bound import expected_bound
from moebench.operators import catalogue
from moebench.operators.fp8 import swiglu
from moebench.operators.layers import Sizes, routed_experts
from moebench.operators.roofline import MEASURED_ON
from moebench.reports.models import GPU_GB

TOKENS = (1, 64, 4096)
MOST_LISTED = 8  # fields that are not understood


@dataclass(frozen=True)
class RankLayer:
    """A checkpoint's layer on one rank.

    keys: form -> its definition's key, None without one. A form is how a definition takes the
    routing: "sigmoid-bias" and "renorm" have the router inside, "routed" and "mxfp4" are called
    with top-k given. keys_with_shared: of the definitions that include the shared experts.
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


def facts(layer: RankLayer) -> list[tuple[str, str]]:
    """Return what config.json says, and what follows from it: names and texts."""
    checkpoint = layer.checkpoint
    rows = [("experts", experts_text(layer.sizes))]
    if checkpoint.shared:
        rows.append(("shared experts", shared_text(layer)))

    router = checkpoint.router
    if len(layer.keys) == 1:
        router += "; no definition has this router inside, so top-k is given"
    activation = swiglu.description(layer.sizes)
    for limit, layers in checkpoint.others.items():
        activation += f"; {layers} more with limit {limit:g} (--limit)"
    keys = [key for key in layer.keys.values() if key]

    rows.append(("hidden, intermediate", widths_text(layer)))
    rows.append(("router", router))
    rows.append(("activation", activation))
    rows += memory_rows(layer)
    rows.append(("bound, ms", bounds_text(layer)))
    rows.append(("definition", ", ".join(keys) or "none yet"))
    if checkpoint.notes:
        rows.append(("note", "; ".join(checkpoint.notes)))
    if checkpoint.not_understood:
        rows.append(("not understood", listed(checkpoint.not_understood)))
    return rows


def experts_text(sizes: Sizes) -> str:
    """Return "32 of 256, top-k 8, 4 of 8 groups"."""
    text = f"{routed_experts(sizes)} of {sizes['num_experts']}, top-k {sizes['top_k']}"
    if sizes["num_groups"] > 1:
        text += f", {sizes['kept_groups']} of {sizes['num_groups']} groups"
    return text


def shared_text(layer: RankLayer) -> str:
    """Return what the shared experts are, and which definitions include them."""
    shared = layer.checkpoint.shared
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
    """Return the hidden and the intermediate size, and of which the latter is a slice."""
    sizes = layer.sizes
    text = f"{sizes['hidden_size']}, {sizes['intermediate_size']}"
    if sizes["tensor_ranks"] > 1:
        whole = layer.checkpoint.sizes["intermediate_size"]
        text += f", one of {sizes['tensor_ranks']} slices of {whole}"
    return text


def memory_rows(layer: RankLayer) -> list[tuple[str, str]]:
    """Return what a layer's weights take, and what those of the model's MoE layers take."""
    checkpoint = layer.checkpoint
    layer_gb = layer.sizes["num_local_experts"] * checkpoint.expert_bytes(layer.sizes) / 1e9
    count = checkpoint.layers + sum(checkpoint.others.values())
    model_gb = layer_gb * count
    fits = "fits" if model_gb <= GPU_GB else "exceeds"
    return [
        ("weights", f"{checkpoint.storage}; {layer_gb:.2f} GB a layer"),
        ("MoE layers", f"{count}, {model_gb:.1f} GB, which {fits} a GPU of {GPU_GB} GB"),
    ]


def bounds_text(layer: RankLayer) -> str:
    """Return the roofline bounds at TOKENS, means over routings, in words."""
    parts = []
    expert_bytes = layer.checkpoint.expert_bytes(layer.sizes)
    for tokens in TOKENS:
        bound = expected_bound(tokens, layer.sizes, expert_bytes)
        parts.append(f"T={tokens}: {bound.ms:.4f} ({bound.active:.1f} experts active)")
    return f"{', '.join(parts)}; means over routings, {MEASURED_ON}"


def listed(fields: dict[str, object]) -> str:
    """Return fields of a config.json and what they have, cut to a few words each."""
    parts = [f"{name} {textwrap.shorten(str(value), 24)}" for name, value in fields.items()]
    text = ", ".join(parts[:MOST_LISTED])
    further = len(parts) - MOST_LISTED
    if further > 0:
        text += f" and {further} more"
    return text
