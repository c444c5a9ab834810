"""How each quantisation tool says that experts are stored, in the same words for all of them."""

from dataclasses import dataclass

from moebench.models.checkpoint.modules import layers_named
from moebench.operators.fp8.mxfp4 import GROUP
from moebench.operators.fp8.reference import BLOCK

FP8 = "fp8"
MXFP4 = "mxfp4"
NVFP4 = "nvfp4"
INT4 = "int4"
BLOCK_SIZE = [BLOCK, BLOCK]
PER_BLOCK = (
    "FP8"  # activations as every definition here has them: a scale per token and 128 columns
)
SIXTEEN_BITS = "16 bits"

# ModelOpt's and TensorRT-LLM's names for FP8 with a scale per block of 128 x 128, and for MXFP4
# with the activations that go with it.
BLOCK_ALGORITHMS = ("FP8_BLOCK_SCALES", "FP8_PB_WO")
ACTIVATIONS_OF_MXFP4 = {
    "W4A8_MXFP4_FP8": "FP8 with a stored scale per tensor",
    "W4A8_MXFP4_MXFP8": "FP8 with a scale per 32 columns",
    "W4A16_MXFP4": SIXTEEN_BITS,
    "MXFP4": "FP4",
}
# A part of the quant_method of every tool that stores 4-bit integers.
INT4_METHODS = ("awq", "gptq", "w4afp8", "int4")
# The fields by which checkpoints in FP8 say that their experts are in FP4: DeepSeek-V4's, MiMo's.
FP4_FIELDS = {"expert_dtype": "fp4", "store_dtype": "mxfp4"}


@dataclass(frozen=True)
class Scheme:
    """How experts are stored.

    kind: FP8, MXFP4, NVFP4, INT4 or "" for another one. words: as the tool says it. block: of FP8.
    activations: PER_BLOCK, or words for another way. static: whether their scales are stored.
    """

    kind: str
    words: str
    block: object = None
    activations: str = PER_BLOCK
    static: bool = False


def scheme_by_layer(
    quantisation: dict, layers: list[int], num_experts: int
) -> dict[int, Scheme | None]:
    """Return layer -> how its experts are stored, None for 16 bits.

    quantisation: what a config.json says of it. layers: those with experts. Raises ValueError where
    it names no weights, or contradicts itself.
    """
    method = quantisation.get("quant_method")
    if method == "compressed-tensors":
        return schemes_of_groups(quantisation, layers, num_experts)
    if method == "quark":
        return schemes_of_quark(quantisation, layers, num_experts)

    by_module = quantisation.get("quantized_layers")
    if isinstance(by_module, dict):
        named = {name: scheme_of_algorithm(entry) for name, entry in by_module.items()}
        return with_named(dict.fromkeys(layers), named, num_experts)

    if quantisation.get("quant_algo"):
        scheme = scheme_of_algorithm(quantisation)
    elif method == "fp8":
        scheme = scheme_of_fp8(quantisation)
    else:
        scheme = scheme_of_method(str(method), quantisation.get("bits"))
    return dict.fromkeys(layers, scheme)


def with_named(
    schemes: dict[int, Scheme | None], named: dict[str, Scheme], num_experts: int
) -> dict[int, Scheme | None]:
    """Return layer -> scheme, where what an entry names has the entry's.

    Raises ValueError where two entries name the same layer's experts and differ.
    """
    by_layer = {}
    for entry, scheme in named.items():
        for layer in layers_named([entry], list(schemes), num_experts):
            earlier = by_layer.setdefault(layer, scheme)
            if earlier != scheme:
                raise ValueError(
                    f"quantization_config: several name the experts of layer {layer}, and differ: "
                    f"{earlier.words}, {scheme.words}"
                )
    return schemes | by_layer


def scheme_of_method(method: str, bits: object) -> Scheme:
    """Return the scheme of a quant_method that says all."""
    words = f"{method} {bits}" if bits else method
    if method == "mxfp4":  # gpt-oss': of activations nothing is said, and transformers leaves them
        return Scheme(MXFP4, words, activations=SIXTEEN_BITS)
    if "nvfp4" in method:
        return Scheme(NVFP4, words)
    if bits in (None, 4) and any(part in method for part in INT4_METHODS):
        return Scheme(INT4, words)
    return Scheme("", words)


def scheme_of_fp8(quantisation: dict) -> Scheme:
    """Return the scheme of quant_method "fp8", whose experts may be in FP4 all the same."""
    block = quantisation.get("weight_block_size")
    static = quantisation.get("activation_scheme") == "static"
    for name, value in FP4_FIELDS.items():
        if quantisation.get(name) != value:
            continue
        activations = PER_BLOCK
        if block not in (None, BLOCK_SIZE):
            activations = f"FP8 beside weights in blocks of {block}"
        return Scheme(MXFP4, f"{name} {value}", None, activations, static)
    return Scheme(FP8, "fp8", block, PER_BLOCK, static)


def scheme_of_algorithm(entry: object) -> Scheme:
    """Return the scheme of ModelOpt's quant_algo. entry: what has it."""
    algorithm = str(entry.get("quant_algo")) if isinstance(entry, dict) else ""
    words = f"modelopt {algorithm}"
    if algorithm in BLOCK_ALGORITHMS:
        return Scheme(FP8, words, BLOCK_SIZE)
    if algorithm in ACTIVATIONS_OF_MXFP4:
        activations = ACTIVATIONS_OF_MXFP4[algorithm]
        return Scheme(MXFP4, words, None, activations, "stored" in activations)
    if "NVFP4" in algorithm:
        return Scheme(NVFP4, words)
    if algorithm.startswith("W4A"):
        return Scheme(INT4, words)
    return Scheme("", words)


# ---- compressed-tensors ----


def schemes_of_groups(
    quantisation: dict, layers: list[int], num_experts: int
) -> dict[int, Scheme | None]:
    """Return layer -> scheme, by the groups of compressed-tensors.

    A group that names the experts goes before one that names all linear layers.
    """
    schemes = dict.fromkeys(layers)
    named = {}
    try:
        for group in quantisation["config_groups"].values():
            scheme = scheme_of_group(group)
            for target in group.get("targets") or ["Linear"]:
                if target != "Linear":
                    add_target(named, str(target), scheme)
                    continue
                for layer in layers:
                    schemes[layer] = schemes[layer] or scheme
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("quantization_config.config_groups: names no weights") from error
    return with_named(schemes, named, num_experts)


def add_target(named: dict[str, Scheme], target: str, scheme: Scheme) -> None:
    """Note the scheme of a target. Raises ValueError if it has another one already."""
    if named.setdefault(target, scheme) != scheme:
        raise ValueError(
            f"quantization_config.config_groups: several name {target}, and differ: "
            f"{named[target].words}, {scheme.words}"
        )


def scheme_of_group(group: dict) -> Scheme:
    """Return the scheme of one group of compressed-tensors."""
    weights = group["weights"]
    element = f"{weights.get('type')}{weights.get('num_bits')}"
    strategy = weights.get("strategy")
    group_size = weights.get("group_size")
    words = f"compressed-tensors, {element} by {strategy}"
    inputs = group.get("input_activations") or {}
    static = inputs.get("dynamic") is False

    if element == "float8" and strategy == "block":
        return Scheme(FP8, words, weights.get("block_structure"), PER_BLOCK, static)
    if element == "float4" and group_size == GROUP:
        activations = activations_of_group(inputs)
        return Scheme(MXFP4, f"{words} of {group_size}", None, activations, static)
    if element == "float4":
        return Scheme(NVFP4, f"{words} of {group_size}")
    return Scheme(INT4 if element == "int4" else "", words)


def activations_of_group(inputs: dict) -> str:
    """Return how activations are stored beside weights in MXFP4."""
    if not inputs:
        return SIXTEEN_BITS
    size = inputs.get("group_size")
    if inputs.get("type") != "float" or inputs.get("num_bits") != 8:
        return f"{inputs.get('type')}{inputs.get('num_bits')}"
    if inputs.get("strategy") == "group" and size == BLOCK:
        return PER_BLOCK
    return f"FP8 by {inputs.get('strategy')} of {size or 'all columns'}"


# ---- Quark ----


def schemes_of_quark(
    quantisation: dict, layers: list[int], num_experts: int
) -> dict[int, Scheme | None]:
    """Return layer -> scheme, by Quark's for all layers and those for some."""
    whole = scheme_of_quark(quantisation.get("global_quant_config"))
    named = {}
    by_module = quantisation.get("layer_quant_config")
    if isinstance(by_module, dict):
        named = {name: scheme_of_quark(entry) for name, entry in by_module.items()}
    return with_named(dict.fromkeys(layers, whole), named, num_experts)


def scheme_of_quark(entry: object) -> Scheme:
    """Return the scheme of one of Quark's configurations."""
    weight = entry.get("weight") if isinstance(entry, dict) else None
    if not isinstance(weight, dict):
        return Scheme("", "quark")

    element = str(weight.get("dtype"))
    words = f"quark {element} {weight.get('qscheme')}"
    if element.startswith("fp8_e4m3") and "block" in words:
        return Scheme(FP8, words, weight.get("block_size") or weight.get("group_size"))
    if element in ("int4", "uint4"):
        return Scheme(INT4, words)
    if element != "fp4":
        return Scheme("", words)
    if weight.get("group_size") != GROUP or weight.get("scale_format") != "e8m0":
        return Scheme(NVFP4, words)

    inputs = entry.get("input_tensors") or {}
    static = inputs.get("is_dynamic") is False
    return Scheme(MXFP4, words, None, activations_of_quark(inputs), static)


def activations_of_quark(inputs: dict) -> str:
    """Return how activations are stored beside weights in MXFP4."""
    element = str(inputs.get("dtype") or SIXTEEN_BITS)
    if element.startswith("fp8_e4m3"):
        return f"FP8 {inputs.get('qscheme')}"
    return element
