"""Read how a checkpoint stores its experts' weights, layer by layer.

Definitions are of two kinds of storage: FP8 with a scale per block of 128 x 128, and MXFP4 beside
activations in FP8. Layers with another kind are left out, with a note; a checkpoint without any
layer of these kinds is refused. read.py calls `storage_of`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moebench.models.checkpoint.fields import Fields
from moebench.models.checkpoint.modules import layers_named
from moebench.models.checkpoint.schemes import (
    BLOCK_SIZE,
    FP8,
    INT4,
    MXFP4,
    NVFP4,
    PER_BLOCK,
    Scheme,
    scheme_by_layer,
)

# beside config.json; ModelOpt writes quantisation there
HF_QUANT = "hf_quant_config.json"
WANTED = 'quant_method "fp8" and weight_block_size [128, 128], or MXFP4 beside activations in FP8'
# Kind that no definition is of -> who has kernels for it, for messages
SERVED_ELSEWHERE = {
    NVFP4: "e2m1 with an e4m3 scale per 16: FlashInfer's or vLLM's NVFP4 kernels serve it on "
    "Blackwell, Marlin on Hopper",
    INT4: "4-bit integers: Marlin in vLLM and SGLang serves them",
}
WORDS = {
    FP8: "FP8 e4m3, scales per 128 x 128",
    MXFP4: "MXFP4, e2m1 with a power of two per 32",
}
NOTE_OF_KIND = {
    FP8: "",
    MXFP4: "as FP8, twice as large: --fp8; whether that is exact: --check-scales",
}
# Fields in which tools list the modules that stay in 16 bits
EXCLUDING = (
    "modules_to_not_convert",
    "ignored_layers",
    "ignore",
    "exclude_modules",
    "exclude",
)
# Fields that FP8 may have -> what their values have to contain
ELEMENTS = {"fmt": "e4m3", "activation_scheme": "dynamic", "expert_dtype": "fp8"}


@dataclass(frozen=True)
class Storage:
    """How experts are stored.

    kind: of weights, FP8 or MXFP4. words: "FP8 e4m3, scales per 128 x 128". layers: numbers of the
    layers whose experts are of this kind. notes: on other layers and on activations; "" is no note.
    """

    kind: str
    words: str
    layers: list[int]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Quantisation:
    """What a checkpoint says of quantisation. source: the field or file that says it."""

    source: str
    fields: dict


def storage_of(
    config: dict,
    fields: Fields,
    layers: list[int],
    num_experts: int,
    beside: dict | None,
    fp8_activations: bool,
) -> Storage:
    """Return how the experts of these layers are stored.

    config: content of config.json. beside: content of HF_QUANT, or None. fp8_activations: whether
    activations beside MXFP4 are taken for FP8, whatever is said of them. Raises ValueError, which
    names the field, where no layer has a kind that definitions are of.
    """
    quantisation = quantisation_of(config, fields, beside)
    source = quantisation.source
    schemes = scheme_by_layer(quantisation.fields, layers, num_experts)

    reasons = {}  # layer -> why it is left out
    for layer, scheme in schemes.items():
        reason = fault(scheme, source, fp8_activations)
        if reason:
            reasons[layer] = reason

    if len(reasons) == len(layers):
        raise ValueError(reasons[layers[0]])
    kinds = [schemes[layer].kind for layer in layers if layer not in reasons]
    kind = most_frequent(kinds)
    if kind == FP8:
        check_elements(quantisation.fields)

    reasons = layers_of_other_kinds(kind, schemes, source) | reasons
    reasons |= excluded_layers(quantisation.fields, layers, num_experts)
    good = [layer for layer in layers if layer not in reasons]
    note = note_on(reasons, layers)
    if not good:
        raise ValueError(f"{note}; want {WANTED} for them")

    scheme = schemes[good[0]]
    notes = [note, note_on_activations(scheme), NOTE_OF_KIND[kind]]
    return Storage(kind, words_of(scheme, quantisation.fields), good, notes)


def quantisation_of(config: dict, fields: Fields, beside: dict | None) -> Quantisation:
    """Return what config.json, or else hf_quant_config.json, says of quantisation.

    The modules that stay in 16 bits are taken from both, and expert_dtype from the model's fields
    if quantisation does not have it. Raises ValueError where neither file says anything.
    """
    in_hf_quant = hf_quantisation(beside)
    excluded = {key: in_hf_quant[key] for key in EXCLUDING if key in in_hf_quant}
    expert_dtype = {"expert_dtype": fields.values.get("expert_dtype")}
    for part in (fields.values, config):
        for name in ("quantization_config", "compression_config"):
            stated = part.get(name)
            if isinstance(stated, dict):
                return Quantisation(name, excluded | expert_dtype | stated)

    if in_hf_quant:
        stated = {"quant_method": "modelopt"} | expert_dtype | in_hf_quant
        return Quantisation(HF_QUANT, stated)
    raise ValueError(
        f"quantization_config: missing, and there is no {HF_QUANT} beside; want {WANTED}, or --fp8 "
        "to take the weights for it"
    )


def hf_quantisation(beside: object) -> dict:
    """Return the fields of a hf_quant_config.json with this content; {} for None."""
    if not isinstance(beside, dict):
        return {}
    inner = beside.get("quantization", beside)
    return inner if isinstance(inner, dict) else {}


def fault(scheme: Scheme | None, source: str, fp8_activations: bool) -> str:
    """Return why no definition is of experts that are stored by a scheme; "" if one is.

    scheme: None for 16 bits. source: the field or file that states it. fp8_activations: as in
    `storage_of`.
    """
    if scheme is None:
        return f"{source}.config_groups: no group's targets name the experts"
    if scheme.kind == MXFP4:
        return "" if fp8_activations else fault_of_activations(scheme, source)
    if scheme.kind in SERVED_ELSEWHERE:
        return f"{source}: has {scheme.words}, {SERVED_ELSEWHERE[scheme.kind]}; want {WANTED}"
    if scheme.kind != FP8:
        return f"{source}: has {scheme.words}, want {WANTED}"
    if scheme.block != BLOCK_SIZE:
        per = scheme.block or "none, so a scale per tensor or channel"
        return f"{source}.weight_block_size: has {per}, want {BLOCK_SIZE}"
    if scheme.static:
        return "activation_scheme: has 'static', want 'dynamic'"
    return ""


def fault_of_activations(scheme: Scheme, source: str) -> str:
    """Return why a scheme's activations are not those of definitions with MXFP4; "" if they are."""
    if scheme.activations.startswith("FP8"):
        return ""
    return (
        f"{source}: has {scheme.words} with activations in {scheme.activations}, want them in FP8; "
        "Marlin, triton_kernels and FlashInfer's mixed-input CUTLASS serve it as it is, "
        "--fp8-activations takes them for FP8"
    )


def layers_of_other_kinds(
    kind: str, schemes: dict[int, Scheme | None], source: str
) -> dict[int, str]:
    """Return layer -> why it is left out, for each layer whose experts are not of this kind."""
    reasons = {}
    for layer, scheme in schemes.items():
        if scheme is not None and scheme.kind != kind:
            reasons[layer] = f"{source}: has {scheme.words}"
    return reasons


def most_frequent(items: Iterable[str]) -> str:
    """Return the item that comes most often."""
    ((item, _),) = Counter(items).most_common(1)
    return item


def check_elements(quantisation_fields: dict) -> None:
    """Raise ValueError where FP8's elements are not e4m3, or activations' scales are stored."""
    for name, wanted in ELEMENTS.items():
        value = quantisation_fields.get(name) or wanted
        if wanted not in str(value):  # "float8_e4m3fn" is e4m3, too
            raise ValueError(f"{name}: has {value!r}, want {wanted!r}")


def excluded_layers(
    quantisation_fields: dict, layers: list[int], num_experts: int
) -> dict[int, str]:
    """Return layer -> which entry of which field keeps its experts in 16 bits."""
    excluded = {}
    for name in EXCLUDING:
        entries = quantisation_fields.get(name) or []
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
    """Return the most frequent reason why layers are left out, and how many are; "" if none is.

    reasons: layer -> why it is left out. layers: numbers of all layers with experts.
    """
    if not reasons:
        return ""
    reason = most_frequent(reasons.values())
    return f"{reason}, in {len(reasons)} of {len(layers)} layers"


def note_on_activations(scheme: Scheme) -> str:
    """Return how a definition's activations differ from the checkpoint's; "" if they do not."""
    if scheme.kind != MXFP4 or (scheme.activations == PER_BLOCK and not scheme.static):
        return ""
    stored = ", their scales stored" if scheme.static else ""
    return (
        f"activations: the checkpoint has {scheme.activations}{stored}; here FP8 with a scale per "
        f"{BLOCK_SIZE[1]} columns, computed"
    )


def words_of(scheme: Scheme, quantisation_fields: dict) -> str:
    """Return Storage.words."""
    words = WORDS[scheme.kind]
    if scheme.kind == FP8 and quantisation_fields.get("scale_fmt") == "ue8m0":
        return f"{words}, powers of two"
    return words
