"""Read which layers of a checkpoint have experts, and the activation of these. read.py calls
`layers_with_experts` and `activation`.

A config.json names the layers in one of five ways: a list of layers, a kind for each layer, a flag
for each layer, a period, or a rule such as "all but the first three".
"""

import math
from collections import Counter
from collections.abc import Iterable

from moebench.models.checkpoint.fields import Fields, without_repeats

ACTIVATIONS = ("silu", "swish", "swigluoai")
OAI_ALPHA = 1.702  # of the activation "swigluoai", gpt-oss'
# with more a config.json is wrong, and reading it would take minutes
MOST_LAYERS = 10_000


def layers_with_experts(fields: Fields) -> list[int]:
    """Return the numbers of the layers with experts, from 0. Raises ValueError if there is none."""
    kinds = fields.get("layer_kinds")
    is_list = kinds is None or isinstance(kinds, list | str)
    fields.require("layer_kinds", is_list, "a list of layers' kinds")

    total = fields.whole("layers", len(kinds) if kinds else None)
    if total > MOST_LAYERS:
        raise ValueError(
            f"{fields.name('layers')}: has {total}, want {MOST_LAYERS} at most"
        )

    for find in (by_list, by_kind, by_flags, by_period, by_rule):
        with_experts = find(fields, total)
        if with_experts is not None:
            break

    numbers = [number for number in range(total) if number in with_experts]
    if not numbers:
        raise ValueError(
            f"{fields.name('layers')}: has {total}, of which none has experts"
        )
    return numbers


def by_list(fields: Fields, total: int) -> set[int] | None:
    """Return the layers that config.json lists by their numbers; None if it does not."""
    listed = fields.get("listed_layers")
    if not listed:
        return None
    if not isinstance(listed, list):
        listed = str(listed).split(",")

    numbers = set()
    for item in listed:
        text = str(item).strip()
        if not text:
            continue
        fields.require("listed_layers", text.isdecimal(), "numbers of layers")
        numbers.add(int(text))
    return numbers


def by_kind(fields: Fields, total: int) -> set[int] | None:
    """Return the layers with experts by a list of kinds, ["dense", "moe", ...], or a pattern of
    letters, "ME*E"; None if there is neither.
    """
    kinds = fields.get("layer_kinds")
    if isinstance(kinds, str):
        return numbers_of(kinds, {"E"})
    if not isinstance(kinds, list):
        return None

    with_experts = numbers_of(kinds, {"moe", "hash_moe"})
    return with_experts or set(range(len(kinds))) - numbers_of(kinds, {"dense"})


def numbers_of(items: Iterable, wanted: set[str]) -> set[int]:
    """Return the places, from 0, of the items whose texts are among the wanted ones."""
    return {number for number, item in enumerate(items) if str(item) in wanted}


def by_flags(fields: Fields, total: int) -> set[int] | None:
    """Return the layers that have 1 in a list of 0 and 1; None if there is no list."""
    flags = fields.get("every_from_0")
    if not isinstance(flags, list):
        return None
    return {number for number, has_experts in enumerate(flags) if has_experts}


def by_period(fields: Fields, total: int) -> set[int] | None:
    """Return every layer at a distance of expert_layer_period, from expert_layer_offset on; None if
    there is no period. Jamba's models have these fields.
    """
    period = fields.values.get("expert_layer_period")
    if not isinstance(period, int) or period < 1:
        return None
    offset = fields.values.get("expert_layer_offset") or 0
    if not is_whole(offset):
        raise ValueError(f"expert_layer_offset: has {offset!r}, want a whole number")
    return set(range(offset % period, total, period))


def by_rule(fields: Fields, total: int) -> set[int]:
    """Return the layers behind the first, dense ones, or every n-th of them, without those that are
    listed as dense.
    """
    first = without_repeats(fields.get("dense_layers", 0))
    fields.require("dense_layers", is_whole(first), "a whole number")

    end = end_of_layers(fields, total)
    dense = fields.values.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise ValueError(f"mlp_only_layers: has {dense!r}, want a list of layers")

    from_0 = fields.whole("every_from_0", 1)
    from_1 = fields.whole("every_from_1", 1)
    with_experts = set()
    for number in range(first, end):
        is_due = number % from_0 == 0 and (number + 1) % from_1 == 0
        if is_due and number not in dense:
            with_experts.add(number)
    return with_experts


def is_whole(value: object) -> bool:
    """Return whether a value is a whole number, 0 or more."""
    if isinstance(value, bool):
        return False
    return isinstance(value, int) and value >= 0


def end_of_layers(fields: Fields, total: int) -> int:
    """Return the number after that of the last layer that may have experts.

    ERNIE's models state the last layer's number; -1 stands for the last of all layers.
    """
    last = without_repeats(fields.values.get("moe_layer_end_index"))
    if last is None or last == -1:
        return total
    if not isinstance(last, int):
        raise ValueError(f"moe_layer_end_index: has {last!r}, want a whole number")
    return min(total, last + 1)


def activation(fields: Fields, layers: list[int]) -> tuple[str, Counter]:
    """Return the activation's name in layers.toml, and limit of its clamp (0: none) -> how many of
    these layers have it.

    layers: those with experts. Raises ValueError for an activation that no definition has.
    """
    name = fields.get("activation", "silu")
    fields.require("activation", name in ACTIVATIONS, "silu or swigluoai")
    alpha = fields.values.get("swiglu_alpha")
    if alpha not in (None, 1, OAI_ALPHA):
        raise ValueError(f"swiglu_alpha: has {alpha!r}, want 1 or {OAI_ALPHA}")
    for cap in ("mlp_gate_softcap", "mlp_up_softcap"):
        value = fields.values.get(cap)
        if value:
            raise ValueError(f"{cap}: has {value!r}, want none")

    kind = fields.implied.get("swiglu", "silu")
    if name == "swigluoai" or alpha == OAI_ALPHA:
        kind = "swigluoai"
    limits = clamp_limits(fields, layers)
    if kind == "swigluoai" and 0 in limits:
        raise ValueError("swiglu_limit: missing, as activation swigluoai has one")
    return kind, limits


def clamp_limits(fields: Fields, layers: list[int]) -> Counter:
    """Return limit of the clamp (0: none) -> how many of these layers have it."""
    needed = layers[-1] + 1
    name = "swiglu_limits"
    by_layer = fields.values.get(name)
    if not by_layer:
        name = "swiglu_limit"
        limit = fields.values.get(name)
        by_layer = [limit] * needed

    fits = isinstance(by_layer, list) and len(by_layer) >= needed
    if not fits or not all(map(is_limit, by_layer)):
        has = fields.values[name]
        raise ValueError(
            f"{name}: has {has!r}, want a number, 0 or more, for each of {needed}"
        )

    return Counter(float(by_layer[number] or 0) for number in layers)


def is_limit(value: object) -> bool:
    """Return whether a clamp can have this limit; None is no clamp."""
    if value is None:
        return True
    return isinstance(value, int | float) and 0 <= value < math.inf
