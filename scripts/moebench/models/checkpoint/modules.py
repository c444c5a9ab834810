"""Find the layers whose experts are named by a list of modules.

Quantisation tools list the modules that stay in 16 bits, or that a scheme is for. An entry is a
module's name ("model.layers.3.mlp"), the end of one ("gate_proj"), a glob ("*.mlp.experts*") or a
regular expression ("re:.*mlp.experts.*"). A config.json does not say how the checkpoint's modules
are called, so expressions are tried on all names that experts have in any model. schemes.py and
storage.py call `layers_named`.
"""

import fnmatch
import re
from collections.abc import Iterable

# Names of the modules around and inside an expert, in the models that there are
ROOTS = (
    "model.layers",
    "model.language_model.layers",
    "language_model.model.layers",
    "language_model.layers",
    "thinker.model.layers",
    "backbone.layers",
    "layers",
)
MLPS = ("mlp", "block_sparse_moe", "feed_forward", "ffn", "mixer", "moe")
PROJECTIONS = ("gate_proj", "up_proj", "down_proj", "gate_up_proj", "w1", "w2", "w3")
# compressed-tensors names all modules of a class by the class.
CLASSES = ("Linear", "FusedMoE")

# A name of a module of some layer: model.layers.3, with what comes after that
IN_LAYER = re.compile(r"(?:.*?\.)?layers\.(?P<layer>[0-9]+)(?:\.(?P<inside>.+))?")
# An expert's weights are called mlp.experts.NUMBER.PROJECTION, without NUMBER where all experts are
# in one tensor. PART_OF_EXPERT matches that name and successive parts of it ("mlp.experts",
# "experts.3", "3.w1", "mlp", "w1"), but not a NUMBER alone.
MLP = "|".join(MLPS)
PROJECTION = "|".join(PROJECTIONS)
PART_OF_EXPERT = re.compile(
    rf"(?:(?:{MLP})\.)?experts(?:\.[0-9]+)?(?:\.(?:{PROJECTION}))?"
    rf"|(?:{MLP})|(?:[0-9]+\.)?(?:{PROJECTION})"
)


def layers_named(
    entries: Iterable[str], layers: list[int], num_experts: int
) -> dict[int, str]:
    """Return layer -> the first entry that names an expert of it, or a part of one.

    layers: numbers of the layers with experts. Raises ValueError for a faulty regular expression.
    """
    named = {}
    for entry in entries:
        text = str(entry)
        for layer in layers_of_entry(text, layers, num_experts):
            named.setdefault(layer, text)
    return named


def layers_of_entry(entry: str, layers: list[int], num_experts: int) -> list[int]:
    """Return the layers whose experts an entry names.

    A regular expression has to match the start of an expert's name. A glob has to match a whole
    name: an expert's, or that of a module around the experts.
    """
    is_glob = False
    if entry.startswith("re:") or is_expression(entry):
        expression = compiled(entry.removeprefix("re:"))
    elif any(letter in entry for letter in "*?["):
        is_glob = True
        expression = re.compile(fnmatch.translate(entry))
    else:
        return layers_of_name(entry, layers)

    matching = []
    for layer in layers:
        names = expert_names(layer, num_experts)
        if is_glob:
            layer_names = [f"{root}.{layer}" for root in ROOTS]
            names += layer_names + mlp_names(layer)
        if any(map(expression.match, names)):
            matching.append(layer)
    return matching


def is_expression(entry: str) -> bool:
    """Return whether an entry without "re:" is a regular expression all the same, and no glob."""
    if entry.startswith((".*", "^")):
        return True
    return any(letter in entry for letter in "\\|($")


def compiled(pattern: str) -> re.Pattern:
    """Return a text as a regular expression. Raises ValueError for a text that is none."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error


def expert_names(layer: int, num_experts: int) -> list[str]:
    """Return the names that a layer's experts may have; for speed those of four experts alone."""
    some_experts = {0, 1, num_experts // 2, num_experts - 1}
    names = []
    for mlp in mlp_names(layer):
        experts = f"{mlp}.experts"
        names.append(experts)
        for projection in PROJECTIONS:
            names.append(f"{experts}.{projection}")
            for number in some_experts:
                names.append(f"{experts}.{number}.{projection}")
    return names


def mlp_names(layer: int) -> list[str]:
    """Return the names that the module with a layer's experts, its MLP, may have."""
    names = []
    for root in ROOTS:
        for mlp in MLPS:
            names.append(f"{root}.{layer}.{mlp}")
    return names


def layers_of_name(name: str, layers: list[int]) -> list[int]:
    """Return the layers whose experts, or a part of them, a plain name means."""
    has_all_layers = any(f"{root}.".startswith(f"{name}.") for root in ROOTS)
    if name in CLASSES or has_all_layers:
        return layers

    match = IN_LAYER.fullmatch(name)
    if match is None:
        return layers if PART_OF_EXPERT.fullmatch(name) else []

    layer = int(match["layer"])
    inside = match["inside"]
    if layer not in layers or (inside and not PART_OF_EXPERT.fullmatch(inside)):
        return []
    return [layer]
