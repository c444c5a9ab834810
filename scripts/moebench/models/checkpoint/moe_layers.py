"""Which layers of a checkpoint have experts, and how they clamp their activation."""

import math
from collections import Counter

from moebench.models.checkpoint.fields import Fields, without_repeats

MOST_LAYERS = 10_000  # beyond, a config.json is wrong, and looking through it takes minutes


def layers_with_experts(fields: Fields) -> list[int]:
    """Return the numbers of the layers that have experts, from 0. Raises ValueError for none."""
    kinds = fields.get("layer_kinds")
    is_list = kinds is None or isinstance(kinds, list | str)
    fields.require("layer_kinds", is_list, "a list of layers' kinds")

    total = fields.whole("layers", len(kinds) if kinds else None)
    if total > MOST_LAYERS:
        raise ValueError(f"{fields.name('layers')}: has {total}, want {MOST_LAYERS} at most")

    for find in (by_list, by_kind, by_flags, by_period, by_rule):
        with_experts = find(fields, total)
        if with_experts is not None:
            break

    numbers = sorted(number for number in with_experts if number < total)
    if not numbers:
        raise ValueError(f"{fields.name('layers')}: has {total}, of which none has experts")
    return numbers


def by_list(fields: Fields, total: int) -> set[int] | None:
    """Return the layers that config.json lists by their numbers, if it does."""
    listed = fields.get("listed_layers")
    if not listed:
        return None
    items = listed if isinstance(listed, list) else str(listed).split(",")

    texts = [str(item).strip() for item in items]
    numbers = [text for text in texts if text]
    all_decimal = all(text.isdecimal() for text in numbers)
    fields.require("listed_layers", all_decimal, "numbers of layers")
    return {int(text) for text in numbers}


def by_kind(fields: Fields, total: int) -> set[int] | None:
    """Return the layers whose kind in a list, or letter in a pattern, is one with experts."""
    kinds = fields.get("layer_kinds")
    if isinstance(kinds, str):
        return {number for number, letter in enumerate(kinds) if letter == "E"}
    if not isinstance(kinds, list):
        return None

    with_experts = {number for number, kind in enumerate(kinds) if kind in ("moe", "hash_moe")}
    if with_experts:
        return with_experts
    return {number for number, kind in enumerate(kinds) if kind != "dense"}


def by_flags(fields: Fields, total: int) -> set[int] | None:
    """Return the layers that a list of 0 and 1 marks, if there is one."""
    flags = fields.get("every_from_0")
    if not isinstance(flags, list):
        return None
    return {number for number, has_experts in enumerate(flags) if has_experts}


def by_period(fields: Fields, total: int) -> set[int] | None:
    """Return Jamba's layers: one in expert_layer_period, from expert_layer_offset on."""
    period = fields.values.get("expert_layer_period")
    if not isinstance(period, int) or period < 1:
        return None
    offset = fields.values.get("expert_layer_offset") or 0
    return {number for number in range(total) if (number - offset) % period == 0}


def by_rule(fields: Fields, total: int) -> set[int]:
    """Return the layers after the dense ones, or every n-th of them."""
    first = without_repeats(fields.get("dense_layers", 0))
    is_number = isinstance(first, int) and not isinstance(first, bool)
    fields.require("dense_layers", is_number and first >= 0, "a whole number")

    end = end_of_layers(fields, total)
    dense = fields.values.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise ValueError(f"mlp_only_layers: has {dense!r}, want a list of layers")

    from_0 = fields.whole("every_from_0", 1)
    from_1 = fields.whole("every_from_1", 1)
    with_experts = set()
    for number in range(first, end):
        if number % from_0 == 0 and (number + 1) % from_1 == 0 and number not in dense:
            with_experts.add(number)
    return with_experts


def end_of_layers(fields: Fields, total: int) -> int:
    """Return the number behind the last layer that may have experts: ERNIE says so; -1: all."""
    last = without_repeats(fields.values.get("moe_layer_end_index"))
    if last is not None and not isinstance(last, int):
        raise ValueError(f"moe_layer_end_index: has {last!r}, want a whole number")
    return total if last in (None, -1) else min(total, last + 1)


def activation(fields: Fields, layers: list[int]) -> tuple[str, Counter]:
    """Return its name in layers.toml, and limit of the clamp (0: none) -> how many of these layers
    have it.

    Raises ValueError for an activation that no definition has.
    """
    name = fields.get("activation", "silu")
    fields.require("activation", name in ("silu", "swish", "swigluoai"), "silu or swigluoai")
    alpha = fields.values.get("swiglu_alpha")
    if alpha not in (None, 1, 1.702):
        raise ValueError(f"swiglu_alpha: has {alpha!r}, want 1 or 1.702")
    for cap in ("mlp_gate_softcap", "mlp_up_softcap"):
        if fields.values.get(cap):
            raise ValueError(f"{cap}: has {fields.values[cap]!r}, want none")

    limits = clamp_limits(fields, layers)
    is_oai = name == "swigluoai" or alpha == 1.702
    kind = "swigluoai" if is_oai else fields.implied.get("swiglu", "silu")
    if kind == "swigluoai" and 0 in limits:
        raise ValueError("swiglu_limit: missing, as activation swigluoai has one")
    return kind, limits


def clamp_limits(fields: Fields, layers: list[int]) -> Counter:
    """Return limit of the clamp (0: none) -> how many of these layers have it."""
    needed = layers[-1] + 1
    name = "swiglu_limits"
    limits = fields.values.get(name)
    if not limits:
        name = "swiglu_limit"
        limits = [fields.values.get(name)] * needed

    if not isinstance(limits, list) or len(limits) < needed or not all(map(is_limit, limits)):
        has = fields.values[name]
        raise ValueError(f"{name}: has {has!r}, want a number, 0 or more, for each of {needed}")
    return Counter(float(limits[number] or 0) for number in layers)


def is_limit(value: object) -> bool:
    """Whether a clamp can have this limit; None is none."""
    return value is None or (isinstance(value, int | float) and 0 <= value < math.inf)
