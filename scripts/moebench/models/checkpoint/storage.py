"""How a checkpoint stores the experts' weights: FP8 with a scale per block of 128 x 128, in which
layers, or why not.
"""

from collections import Counter
from dataclasses import dataclass

from moebench.models.checkpoint.fields import Fields
from moebench.models.checkpoint.modules import layers_named
from moebench.operators.fp8.reference import BLOCK

WANTED = 'quant_method "fp8" and weight_block_size [128, 128]'
BLOCK_SIZE = [BLOCK, BLOCK]
HF_QUANT = "hf_quant_config.json"
# What lists the modules that stay in 16 bits, of all tools.
EXCLUDING = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "exclude")
ELEMENTS = {"fmt": "e4m3", "activation_scheme": "dynamic", "expert_dtype": "fp8"}
# ModelOpt's and TensorRT-LLM's names for FP8 with a scale per block of 128 x 128.
BLOCK_ALGORITHMS = ("FP8_BLOCK_SCALES", "FP8_PB_WO")


@dataclass(frozen=True)
class Scheme:
    """How a tool says that weights are stored. method, block: "fp8" and [128, 128] is wanted."""

    method: str
    block: object
    static: bool = False  # whether activations' scales are in the checkpoint


@dataclass(frozen=True)
class Storage:
    """words: for a table. layers: those whose experts are FP8. note: on the others, or ""."""

    words: str
    layers: list[int]
    note: str = ""


def storage_of(
    config: dict, fields: Fields, layers: list[int], num_experts: int, beside: dict | None
) -> Storage:
    """Return how the experts of these layers are stored.

    beside: content of hf_quant_config.json. Raises ValueError, naming the field, where no layer has
    FP8 with a scale per block.
    """
    quantisation = quantisation_of(config, fields, beside)

    reasons = {}  # layer -> why its experts are not FP8
    for layer, scheme in scheme_by_layer(quantisation, layers, num_experts).items():
        reason = fault(scheme, quantisation["file"])
        if reason:
            reasons[layer] = reason
    if len(reasons) == len(layers):
        raise ValueError(reasons[layers[0]])
    check_elements(quantisation, fields)

    reasons |= excluded_layers(quantisation, layers, num_experts)
    note = note_on(reasons, layers) if reasons else ""
    good = [layer for layer in layers if layer not in reasons]
    if not good:
        raise ValueError(f"{note}; want {WANTED} for them")

    words = "FP8 e4m3, scales per 128 x 128"
    if quantisation.get("scale_fmt") == "ue8m0":
        words += ", powers of two"
    return Storage(words, good, note)


def quantisation_of(config: dict, fields: Fields, beside: dict | None) -> dict:
    """Return what config.json, or else hf_quant_config.json, says of quantisation.

    file: which of them. The modules that stay in 16 bits are taken from both. Raises ValueError
    where neither says anything.
    """
    in_hf_quant = hf_quantisation(beside)
    for part in (fields.values, config):
        for name in ("quantization_config", "compression_config"):
            if isinstance(part.get(name), dict):
                excluding = {key: in_hf_quant[key] for key in EXCLUDING if key in in_hf_quant}
                return excluding | {"file": name} | part[name]

    if in_hf_quant:
        return {"quant_method": "modelopt", "file": HF_QUANT} | in_hf_quant
    raise ValueError(
        f"quantization_config: missing, and there is no {HF_QUANT} beside; want {WANTED}, or --fp8 "
        "to take the weights for it"
    )


def hf_quantisation(beside: object) -> dict:
    """Return what a hf_quant_config.json with this content says; {} without one."""
    if not isinstance(beside, dict):
        return {}
    inner = beside.get("quantization", beside)
    return inner if isinstance(inner, dict) else {}


def scheme_by_layer(
    quantisation: dict, layers: list[int], num_experts: int
) -> dict[int, Scheme | None]:
    """Return layer -> how its experts are stored, None for 16 bits."""
    method = quantisation.get("quant_method")
    if method == "compressed-tensors":
        return schemes_of_groups(quantisation, layers, num_experts)
    if method == "quark":
        scheme = scheme_of_quark(quantisation)
    elif quantisation.get("quant_algo") in BLOCK_ALGORITHMS:
        scheme = Scheme("fp8", BLOCK_SIZE)
    elif method == "fp8":
        scheme = Scheme("fp8", quantisation.get("weight_block_size"))
    else:
        parts = (method, quantisation.get("quant_algo"), quantisation.get("bits"))
        scheme = Scheme(" ".join(str(part) for part in parts if part), None)
    return dict.fromkeys(layers, scheme)


def schemes_of_groups(
    quantisation: dict, layers: list[int], num_experts: int
) -> dict[int, Scheme | None]:
    """Return layer -> scheme, by the groups of compressed-tensors. A group that names the experts
    goes before one that names all linear layers.
    """
    schemes = dict.fromkeys(layers)
    named = {}
    try:
        groups = [*quantisation["config_groups"].values()]
        for group in groups:
            targets = [str(target) for target in group.get("targets") or ["Linear"]]
            general = [target for target in targets if target == "Linear"]
            special = [target for target in targets if target != "Linear"]
            scheme = scheme_of_group(group)
            for layer in layers_named(general, layers, num_experts):
                schemes[layer] = schemes[layer] or scheme
            for layer in layers_named(special, layers, num_experts):
                if named.setdefault(layer, scheme) != scheme:
                    raise ValueError(
                        "quantization_config.config_groups: several name the experts, and differ"
                    )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("quantization_config.config_groups: names no weights") from error
    return schemes | named


def scheme_of_group(group: dict) -> Scheme:
    """Return the scheme of one group of compressed-tensors."""
    weights = group["weights"]
    kind = f"{weights.get('type')}{weights.get('num_bits')} by {weights.get('strategy')}"
    method = "fp8" if kind == "float8 by block" else f"compressed-tensors, {kind}"
    static = (group.get("input_activations") or {}).get("dynamic") is False
    return Scheme(method, weights.get("block_structure"), static)


def scheme_of_quark(quantisation: dict) -> Scheme:
    """Return the scheme that Quark has for all layers."""
    whole = quantisation.get("global_quant_config")
    weight = whole.get("weight") if isinstance(whole, dict) else None
    if not isinstance(weight, dict):
        return Scheme("quark", None)
    kind = f"{weight.get('dtype')} {weight.get('qscheme')}"
    if kind.startswith("fp8_e4m3") and "block" in kind:
        return Scheme("fp8", weight.get("block_size") or weight.get("group_size"))
    return Scheme(f"quark {kind}", None)


def fault(scheme: Scheme | None, file: str) -> str:
    """Return what stands against a scheme, "" if nothing does. file: or field that has it."""
    if scheme is None:
        return f"{file}.config_groups: no group's targets name the experts"
    if scheme.method != "fp8":
        return f"{file}: has {scheme.method}, want {WANTED}"
    if scheme.block != BLOCK_SIZE:
        per = scheme.block or "none, so a scale per tensor or channel"
        return f"{file}.weight_block_size: has {per}, want {BLOCK_SIZE}"
    if scheme.static:
        return "activation_scheme: has 'static', want 'dynamic'"
    return ""


def check_elements(quantisation: dict, fields: Fields) -> None:
    """Raise ValueError where elements are no e4m3, or activations' scales are stored."""
    has = {"expert_dtype": fields.values.get("expert_dtype")} | quantisation
    for name, wanted in ELEMENTS.items():
        value = has.get(name) or wanted
        if wanted not in str(value):  # fmt: float8_e4m3fn, too
            raise ValueError(f"{name}: has {value!r}, want {wanted!r}")


def excluded_layers(quantisation: dict, layers: list[int], num_experts: int) -> dict[int, str]:
    """Return layer -> why its experts stay in 16 bits, naming the field and its entry."""
    excluded = {}
    for name in EXCLUDING:
        entries = quantisation.get(name) or []
        if isinstance(entries, str):
            entries = [entries]
        if not isinstance(entries, list | tuple):
            raise ValueError(f"{name}: has {entries!r}, want a list of modules")
        try:
            named = layers_named(entries, layers, num_experts)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        for layer, entry in named.items():
            reason = f"{name}: has {entry!r}, which keeps experts in 16 bits"
            excluded.setdefault(layer, reason)
    return excluded


def note_on(reasons: dict[int, str], layers: list[int]) -> str:
    """Return how many layers are not FP8, and why most of them are not."""
    reason, _ = Counter(reasons.values()).most_common(1)[0]
    return f"{reason}, in {len(reasons)} of {len(layers)} layers"
