"""Find the layers whose experts are named by a list of modules.

Quantisation tools list the modules that stay in 16 bits, or that a scheme is for. An entry is a
module's name ("model.layers.3.mlp"), the end of one ("gate_proj"), a glob ("*.mlp.experts*") or a
regular expression ("re:.*mlp.experts.*"). Which names a checkpoint's modules really have is not
known here, so expressions are tried on all that experts have in any model.
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

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
# An expert's weights are called mlp.experts.NUMBER.PROJECTION, or without number for all experts.
PARTS_OF_NAME = (["mlp", "experts", "number", "projection"], ["mlp", "experts", "projection"])
# compressed-tensors names all modules of a class by the class.
CLASSES = ("Linear", "FusedMoE")


def layers_named(entries: Iterable[str], layers: list[int], num_experts: int) -> dict[int, str]:
    """Return layer -> the first entry that names an expert of it, or a part of one.

    layers: the numbers of those that have experts. Raises ValueError for a bad regular expression.
    """
    named = {}
    for entry in entries:
        text = str(entry)
        for layer in layers_of_entry(text, layers, num_experts):
            named.setdefault(layer, text)
    return named


def layers_of_entry(entry: str, layers: list[int], num_experts: int) -> list[int]:
    """Return the layers whose experts an entry names."""
    if entry.startswith("re:") or is_expression(entry):
        pattern = entry.removeprefix("re:")
        return layers_of_expression(pattern, layers, num_experts)
    if any(letter in entry for letter in "*?["):
        return layers_of_glob(entry, layers, num_experts)
    return layers_of_name(entry, layers)


def is_expression(entry: str) -> bool:
    """Whether an entry without "re:" is a regular expression all the same, and no glob."""
    if entry.startswith((".*", "^")):
        return True
    return any(letter in entry for letter in "\\|($")


def layers_of_expression(pattern: str, layers: list[int], num_experts: int) -> list[int]:
    """Return the layers of whose experts a name matches a regular expression at its start."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error

    matching = []
    for layer in layers:
        names = expert_names(layer, num_experts)
        if any(map(expression.match, names)):
            matching.append(layer)
    return matching


def layers_of_glob(pattern: str, layers: list[int], num_experts: int) -> list[int]:
    """Return the layers of whose experts, or of the modules around them, a name fits a glob."""
    matching = []
    for layer in layers:
        names = expert_names(layer, num_experts)
        names += names_around(layer)
        if any(fnmatchcase(name, pattern) for name in names):
            matching.append(layer)
    return matching


def expert_names(layer: int, num_experts: int) -> list[str]:
    """Return the names that a layer's experts may have, for four of the experts."""
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
    """Return the names that a layer's MLP may have, in which its experts lie."""
    names = []
    for root in ROOTS:
        for mlp in MLPS:
            names.append(f"{root}.{layer}.{mlp}")
    return names


def names_around(layer: int) -> list[str]:
    """Return the names of the modules that a layer's experts lie in."""
    layer_names = [f"{root}.{layer}" for root in ROOTS]
    return layer_names + mlp_names(layer)


def layers_of_name(name: str, layers: list[int]) -> list[int]:
    """Return the layers whose experts, or a part of them, a plain name means."""
    if name in CLASSES or is_around_layers(name):
        return layers

    parts = name.split(".")
    layer = layer_in(parts)
    if layer is None:
        return layers if is_part_of_expert(parts) else []

    behind = parts.index("layers") + 2
    inside = parts[behind:]
    if layer not in layers or (inside and not is_part_of_expert(inside)):
        return []
    return [layer]


def is_around_layers(name: str) -> bool:
    """Whether a module of this name has all layers in it."""
    return any(f"{root}.".startswith(f"{name}.") for root in ROOTS)


def layer_in(parts: list[str]) -> int | None:
    """Return the number that follows "layers" in the parts of a name, None where none does."""
    if "layers" not in parts:
        return None
    number = parts[parts.index("layers") + 1 :][:1]
    if not number or not number[0].isdecimal():
        return None
    return int(number[0])


def is_part_of_expert(parts: list[str]) -> bool:
    """Whether these are successive parts of "mlp.experts.7.gate_proj", with or without a number."""
    kinds = [kind_of_part(part) for part in parts]
    if kinds == ["number"]:
        return False
    return any(is_run(kinds, parts_of_name) for parts_of_name in PARTS_OF_NAME)


def kind_of_part(part: str) -> str:
    """Return which of PARTS_OF_NAME a part of a module's name is; "" for none."""
    if part in MLPS:
        return "mlp"
    if part == "experts":
        return "experts"
    if part.isdecimal():
        return "number"
    if part in PROJECTIONS:
        return "projection"
    return ""


def is_run(items: list[str], sequence: list[str]) -> bool:
    """Whether the sequence has these items in this order, one right after another."""
    length = len(items)
    for start in range(len(sequence) - length + 1):
        if sequence[start : start + length] == items:
            return True
    return False
