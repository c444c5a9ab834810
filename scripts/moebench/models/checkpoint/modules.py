"""Which layers' experts a list of a checkpoint's modules names.

Quantisation tools list the modules that stay in 16 bits, or that a scheme is for, by name
("model.layers.3.mlp"), by the end of a name ("gate_proj"), by a glob ("*.mlp.experts*") or by a
regular expression ("re:.*mlp.experts.*").
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

# How checkpoints call the modules around and inside an expert.
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
# What an expert's name is made of, with the expert's number or for all experts together.
PARTS_OF_NAME = (["mlp", "experts", "number", "projection"], ["mlp", "experts", "projection"])
# Classes by which compressed-tensors names every such module.
CLASSES = ("Linear", "FusedMoE")


def layers_named(entries: Iterable[str], layers: list[int], num_experts: int) -> dict[int, str]:
    """Return layer -> the first entry that names an expert of it, or a part of one.

    layers: the numbers of those that have experts. Raises ValueError for a regular expression that
    is none.
    """
    named = {}
    for entry in entries:
        for layer in layers_of_entry(str(entry), layers, num_experts):
            named.setdefault(layer, str(entry))
    return named


def layers_of_entry(entry: str, layers: list[int], num_experts: int) -> list[int]:
    """Return the layers whose experts an entry names."""
    if entry.startswith("re:") or is_expression(entry):
        return layers_of_expression(entry.removeprefix("re:"), layers, num_experts)
    if any(letter in entry for letter in "*?["):
        return layers_of_glob(entry, layers, num_experts)
    return layers_of_name(entry, layers)


def is_expression(entry: str) -> bool:
    """Whether an entry that does not say so is a regular expression and no glob."""
    return entry.startswith((".*", "^")) or any(letter in entry for letter in "\\|($")


def layers_of_expression(pattern: str, layers: list[int], num_experts: int) -> list[int]:
    """Return the layers of whose experts a module's name begins with a match."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error

    matching = []
    for layer in layers:
        names = expert_names(layer, num_experts)
        if any(expression.match(name) for name in names):
            matching.append(layer)
    return matching


def layers_of_glob(pattern: str, layers: list[int], num_experts: int) -> list[int]:
    """Return the layers of whose experts, or of what they lie in, a name matches."""
    matching = []
    for layer in layers:
        names = [*expert_names(layer, num_experts), *names_around(layer)]
        if any(fnmatchcase(name, pattern) for name in names):
            matching.append(layer)
    return matching


def expert_names(layer: int, num_experts: int) -> list[str]:
    """Return the names that the modules of a layer's experts may have, of some of the experts."""
    some = sorted({0, 1, num_experts // 2, num_experts - 1})
    names = []
    for root in ROOTS:
        for mlp in MLPS:
            experts = f"{root}.{layer}.{mlp}.experts"
            names.append(experts)
            for projection in PROJECTIONS:
                names.append(f"{experts}.{projection}")
                names += [f"{experts}.{expert}.{projection}" for expert in some]
    return names


def names_around(layer: int) -> list[str]:
    """Return the names of the modules that a layer's experts lie in."""
    names = []
    for root in ROOTS:
        names.append(f"{root}.{layer}")
        names += [f"{root}.{layer}.{mlp}" for mlp in MLPS]
    return names


def layers_of_name(name: str, layers: list[int]) -> list[int]:
    """Return the layers of whose experts a plain name is a part."""
    parts = name.split(".")
    if name in CLASSES or any(f"{root}.".startswith(f"{name}.") for root in ROOTS):
        return layers

    for at in range(len(parts) - 1):
        if parts[at] == "layers" and parts[at + 1].isdecimal():
            layer = int(parts[at + 1])
            inside = parts[at + 2 :]
            is_named = layer in layers and (not inside or is_part_of_expert(inside))
            return [layer] if is_named else []
    return layers if is_part_of_expert(parts) else []


def is_part_of_expert(parts: list[str]) -> bool:
    """Whether these are successive parts of "mlp.experts.7.gate_proj", with or without a number."""
    kinds = [kind_of_part(part) for part in parts]
    if kinds == ["number"]:
        return False
    return any(is_run(kinds, parts_of_name) for parts_of_name in PARTS_OF_NAME)


def kind_of_part(part: str) -> str:
    """Return which part of an expert's name this may be; "" for none."""
    if part in MLPS:
        return "mlp"
    if part == "experts":
        return "experts"
    if part.isdecimal():
        return "number"
    return "projection" if part in PROJECTIONS else ""


def is_run(items: list[str], sequence: list[str]) -> bool:
    """Whether the items stand in the sequence, one right after another."""
    starts = range(len(sequence) - len(items) + 1)
    return any(sequence[start : start + len(items)] == items for start in starts)
