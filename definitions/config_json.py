"""A checkpoint's config.json -> its MoE layer in the words of layers.toml, or why no definition can
be of it.

config_json.toml has the names of each field, and what a model's own code does where config.json is
silent.
"""

import math
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from definitions.moe_fp8_block_scale import BLOCK

FACTS = tomllib.loads(Path(__file__).with_name("config_json.toml").read_text(encoding="utf-8"))
FIELDS = FACTS["fields"]
FP8 = 'quant_method "fp8" and weight_block_size [128, 128]'


@dataclass(frozen=True)
class Checkpoint:
    """of: keys of a table in layers.toml. layers: how many are alike. others: limit of the clamp ->
    further layers.

    router, storage: in words.
    """

    of: dict
    layers: int
    others: dict[float, int]
    router: str
    storage: str

    def on(self, ranks: int) -> dict:
        """Sizes on one of so many expert-parallel ranks. Raises ValueError where they do not divide
        the experts.
        """
        if self.of["num_experts"] % ranks:
            raise ValueError(
                f"--ep: got {ranks}, want a divisor of {self.of['num_experts']}, the experts"
            )
        return self.of | {"num_local_experts": self.of["num_experts"] // ranks}


def read(config: dict, assume_fp8: bool = False, limit: float | None = None) -> Checkpoint:
    """Of a config.json's content. Raises ValueError that names the field, what it has and what is
    wanted.

    assume_fp8: whatever the weights are stored as. limit: of the clamp, where layers differ in it;
    default: of most.
    """
    if not isinstance(config, dict):
        raise ValueError(f"got {type(config).__name__}, want an object")
    text = config
    while part := next(
        (text[name] for name in FIELDS["text_part"] if isinstance(text.get(name), dict)), None
    ):
        text = part
    quantisation = text.get("quantization_config") or config.get("quantization_config")
    storage = "taken for FP8" if assume_fp8 else stored(quantisation, text.get("expert_dtype"))
    implied = {}
    for known in FACTS["implied"]:
        implied |= known if text.get("model_type") in known["model_types"] else {}
    names = FIELDS | ({"intermediate_size": [implied["width"]]} if "width" in implied else {})
    of = {
        size: whole(text, names[size])
        for size in ("num_experts", "top_k", "hidden_size", "intermediate_size")
    }
    of |= {size: whole(text, names[size], 1) for size in ("num_groups", "kept_groups")}
    for size, most in (("top_k", "num_experts"), ("kept_groups", "num_groups")):
        wanted(
            text,
            names[size],
            of[size] <= of[most],
            f"at most {of[most]}, as {shown(text, names[most])} has",
        )
    for size in ("hidden_size", "intermediate_size"):
        wanted(
            text,
            names[size],
            of[size] % BLOCK == 0,
            f"a multiple of {BLOCK}, the width of a scale's block",
        )
    wanted(
        text,
        names["num_groups"],
        of["num_experts"] % of["num_groups"] == 0,
        "a divisor of the experts",
    )
    a_group, groups = of["num_experts"] // of["num_groups"], f"{of['num_groups']} groups"
    wanted(
        text,
        names["num_groups"],
        a_group > 1,
        "two experts or more in a group, as its best two count",
    )
    most = min(
        a_group * of["kept_groups"], of["num_experts"] - 1
    )  # a router that takes all chooses none
    wanted(
        text,
        names["top_k"],
        of["top_k"] <= most,
        f"at most {most}, with {of['kept_groups']} of {groups} open",
    )
    of["routing"], router = routing(text, implied, of["num_groups"])
    of["activation"], limits = activation(text, implied, moe_layers(text, implied))
    if limit is not None and limit not in limits:
        raise ValueError(
            f"--limit: got {limit:g}, its layers have {', '.join(f'{each:g}' for each in limits)}"
        )
    of["swiglu_limit"] = limits.most_common(1)[0][0] if limit is None else limit
    if of["activation"] == "swiglustep" and not of["swiglu_limit"]:
        of["activation"] = "silu"
    layers = limits.pop(of["swiglu_limit"])
    return Checkpoint(of, layers, dict(limits), router, storage)


def given(text: dict, names: list[str], default: object = None) -> object:
    """The value of a field under any of its names. Raises ValueError where two of them contradict
    each other.
    """
    values = {name: text[name] for name in names if text.get(name) is not None}
    if len({str(value) for value in values.values()}) > 1:
        raise ValueError(
            f"{' and '.join(values)}: contradict each other: {', '.join(map(str, values.values()))}"
        )
    return next(iter(values.values()), default)


def shown(text: dict, names: list[str]) -> str:
    """The name under which a field is there, or the first that it may have."""
    return next((name for name in names if text.get(name) is not None), names[0])


def wanted(text: dict, names: list[str], fits: bool, want: str) -> None:
    if not fits:
        raise ValueError(f"{shown(text, names)}: has {given(text, names)!r}, want {want}")


def whole(text: dict, names: list[str], default: int | None = None) -> int:
    value = given(text, names, default)
    if value is None:
        raise ValueError(
            f"{names[0]}: missing, and so is {', '.join(names[1:]) or 'any other name of it'}"
        )
    wanted(
        text,
        names,
        isinstance(value, int) and not isinstance(value, bool) and value > 0,
        "a whole number above 0",
    )
    return value


def stored(has: dict | None, expert_dtype: str | None) -> str:
    """What the weights are, in words. Raises ValueError for all but FP8 with a scale per block of
    128 x 128.
    """
    if not isinstance(has, dict):
        raise ValueError(
            f"quantization_config: missing, so weights are 16-bit; want {FP8}, or --fp8 to assume it"
        )
    method, block = has.get("quant_method"), has.get("weight_block_size")
    if method == "compressed-tensors":
        try:
            groups = [*has["config_groups"].values()]
            told = [str(group.get("targets")).replace("shared_experts", "") for group in groups]
            groups = [
                group for group, of in zip(groups, told, strict=True) if "experts" in of
            ] or groups
            weights, *others = [dict(group["weights"]) for group in groups]
            static = any(
                (group.get("input_activations") or {}).get("dynamic") is False for group in groups
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError("quantization_config.config_groups: names no weights") from error
        if any(other != weights for other in others):
            raise ValueError(
                "quantization_config.config_groups: several, and which one is of the experts is not said"
            )
        has = has | ({"activation_scheme": "static"} if static else {})
        kind = f"{weights.get('type')}{weights.get('num_bits')} by {weights.get('strategy')}"
        method, block = (
            "fp8" if kind == "float8 by block" else f"{method}, {kind}",
            weights.get("block_structure"),
        )
    if method != "fp8":
        method = " ".join(
            str(each) for each in (method, has.get("quant_algo"), has.get("bits")) if each
        )
        raise ValueError(f"quantization_config: has {method}, want {FP8}")
    if block != [BLOCK, BLOCK]:
        per = block or "none, so a scale per tensor or channel"
        raise ValueError(f"quantization_config.weight_block_size: has {per}, want {[BLOCK, BLOCK]}")
    for key, want in {"fmt": "e4m3", "activation_scheme": "dynamic", "expert_dtype": "fp8"}.items():
        other = {"expert_dtype": expert_dtype, **has}.get(key) or want
        if want not in str(other):  # fmt: float8_e4m3fn, too
            raise ValueError(f"{key}: has {other!r}, want {want!r}")
    return f"FP8 e4m3, scales per 128 x 128{', powers of two' if has.get('scale_fmt') == 'ue8m0' else ''}"


def routing(text: dict, implied: dict, num_groups: int) -> tuple[str, str]:
    """The key `routing` of layers.toml, and the router in words. Raises ValueError where
    config.json leaves it open.
    """
    scoring = given(text, FIELDS["scoring"], implied.get("scoring"))
    auxiliary = {"noaux_tc": True, "greedy": False, "group_limited_greedy": False}.get(
        str(text.get("topk_method"))
    )
    bias = given(text, FIELDS["bias"], implied.get("bias") if auxiliary is None else auxiliary)
    normalised = given(text, FIELDS["normalised"], implied.get("normalised"))
    for name, value in (("scoring", scoring), ("bias", bias), ("normalised", normalised)):
        if value is None:
            of = f"model_type {text.get('model_type')!r}"
            raise ValueError(f"{FIELDS[name][0]}: missing, and {of} is not known to imply it")
    groups = f", in {num_groups} groups" if num_groups > 1 else ""
    said = f"{scoring}{' with a bias' if bias else ''}{groups}{'' if normalised else ', not normalised'}"
    if scoring == "sigmoid" and bias and normalised:
        return "sigmoid-bias", said
    return (
        "renorm"
        if scoring == "softmax" and normalised and not bias and num_groups == 1
        else "given"
    ), said


def moe_layers(text: dict, implied: dict) -> list[int]:
    """Numbers of the layers that have experts."""
    total = whole(text, FIELDS["layers"])
    first = given(text, FIELDS["dense_layers"], implied.get("dense_layers", 0))
    kinds, every = text.get("mlp_layer_types"), given(text, FIELDS["every"], 1)
    wanted(text, FIELDS["dense_layers"], isinstance(first, int) and first >= 0, "a whole number")
    if listed := text.get("moe_layers_enum"):
        items = [
            str(at).strip()
            for at in (listed if isinstance(listed, list) else str(listed).split(","))
        ]
        wanted(
            text,
            ["moe_layers_enum"],
            all(at.isdecimal() for at in items if at),
            "numbers of layers",
        )
        found = {int(at) for at in items if at}
    elif isinstance(kinds, list):
        found = {at for at, kind in enumerate(kinds) if kind != "dense"}
    elif isinstance(every, list):
        found = {at for at, has in enumerate(every) if has}
    else:  # every second one: layers 1, 3, 5, counted from 0
        every = whole(text, FIELDS["every"], 1)
        dense = text.get("mlp_only_layers") or []
        wanted(text, ["mlp_only_layers"], isinstance(dense, list), "a list of layers")
        last = text.get("moe_layer_end_index")  # ERNIE's; -1: the last one
        wanted(
            text, ["moe_layer_end_index"], last is None or isinstance(last, int), "a whole number"
        )
        end = total if last in (None, -1) else min(total, last + 1)
        found = {at for at in range(first, end) if (at + 1) % every == 0 and at not in dense}
    if not (numbers := sorted(at for at in found if at < total)):
        raise ValueError(f"{shown(text, FIELDS['layers'])}: has {total}, of which none has experts")
    return numbers


def activation(text: dict, implied: dict, layers: list[int]) -> tuple[str, Counter]:
    """Its name in layers.toml, and limit of the clamp (0: none) -> how many of these layers have
    it.
    """
    name, alpha = given(text, FIELDS["activation"], "silu"), text.get("swiglu_alpha")
    wanted(text, FIELDS["activation"], name in ("silu", "swish", "swigluoai"), "silu or swigluoai")
    wanted(text, ["swiglu_alpha"], alpha in (None, 1, 1.702), "1 or 1.702")
    for cap in ("mlp_gate_softcap", "mlp_up_softcap"):
        wanted(text, [cap], not text.get(cap), "none")
    limits = text.get("swiglu_limits") or [text.get("swiglu_limit")] * (layers[-1] + 1)
    listed = limits if isinstance(limits, list) else [None]
    numbers = all(
        isinstance(each or 0, int | float) and 0 <= (each or 0) < math.inf for each in listed
    )
    names = ["swiglu_limits", "swiglu_limit"]
    fits = numbers and isinstance(limits, list) and len(limits) > layers[-1]
    wanted(text, names, fits, f"a number, 0 or more, for each of {layers[-1] + 1} layers")
    found = Counter(float(limits[at] or 0) for at in layers)
    kind = "swigluoai" if name == "swigluoai" or alpha == 1.702 else implied.get("swiglu", "silu")
    if kind == "swigluoai" and 0 in found:
        raise ValueError("swiglu_limit: missing, as activation swigluoai has one")
    return kind, found
