"""Read how experts are stored from what quantisation tools write, and make a Scheme of it, the same
for all tools. storage.py calls `scheme_by_layer` with one of:

    {"quant_method": "fp8", "weight_block_size": [128, 128]}         DeepSeek and others
    {"quant_method": "modelopt", "quant_algo": "W4A8_MXFP4_FP8"}     ModelOpt, TensorRT-LLM
    {"quant_method": "compressed-tensors", "config_groups": {...}}   llm-compressor
    {"quant_method": "quark", "global_quant_config": {...}}          AMD's Quark

A tool states a scheme for all modules, or one for each of several lists of modules.
"""

from dataclasses import dataclass, field

from moebench.models.checkpoint.modules import layers_named
from moebench.operators.fp8.mxfp4 import GROUP
from moebench.operators.fp8.reference import BLOCK

FP8 = "fp8"
MXFP4 = "mxfp4"
NVFP4 = "nvfp4"
INT4 = "int4"
BLOCK_SIZE = [BLOCK, BLOCK]
# Activations
PER_BLOCK = "FP8"  # with a scale per token and 128 columns, as in every definition here
SIXTEEN_BITS = "16 bits"  # not quantised

# quant_algo of ModelOpt and TensorRT-LLM for FP8 with a scale per block of 128 x 128
BLOCK_ALGORITHMS = ("FP8_BLOCK_SCALES", "FP8_PB_WO")
# quant_algo of the same tools for MXFP4 -> the activations beside it
ACTIVATIONS_OF_MXFP4 = {
    "W4A8_MXFP4_FP8": "FP8 with a stored scale per tensor",
    "W4A8_MXFP4_MXFP8": "FP8 with a scale per 32 columns",
    "W4A16_MXFP4": SIXTEEN_BITS,
    "MXFP4": "FP4",
}
# Tools that store 4-bit integers have one of these in their quant_method.
INT4_METHODS = ("awq", "gptq", "w4afp8", "int4")
# Fields by which checkpoints with quant_method "fp8", DeepSeek-V4's and MiMo's, say that their
# experts are in FP4 all the same
FP4_FIELDS = {"expert_dtype": "fp4", "store_dtype": "mxfp4"}


@dataclass(frozen=True)
class Scheme:
    """How the weights of a module are stored, and the activations beside them.

    kind: FP8, MXFP4, NVFP4, INT4, or "" for any other. words: what the tool calls it, for messages.
    block: for FP8, the rows and columns with one scale. activations: PER_BLOCK, or in words.
    static: whether the activations' scales are stored.
    """

    kind: str
    words: str
    block: object = None
    activations: str = PER_BLOCK
    static: bool = False


@dataclass(frozen=True)
class Stated:
    """What a tool states. every: the scheme of all modules, None for 16 bits. named: entry -> the
    scheme, in place of `every`, of the modules that the entry names (modules.py).
    """

    every: Scheme | None
    named: dict[str, Scheme] = field(default_factory=dict)


def scheme_by_layer(
    quantisation: dict, layers: list[int], num_experts: int
) -> dict[int, Scheme | None]:
    """Return layer -> how its experts are stored, None for 16 bits.

    quantisation: the fields of quantization_config or the like. layers: numbers of those with
    experts. Raises ValueError where the fields name no weights, or contradict each other.
    """
    stated = stated_by(quantisation)
    by_layer = {}
    for entry, scheme in stated.named.items():
        for layer in layers_named([entry], layers, num_experts):
            earlier = by_layer.setdefault(layer, scheme)
            if earlier != scheme:
                raise ValueError(
                    f"quantization_config: several name the experts of layer {layer}, and differ: "
                    f"{earlier.words}, {scheme.words}"
                )
    return dict.fromkeys(layers, stated.every) | by_layer


def stated_by(quantisation: dict) -> Stated:
    """Return what a tool states. quantisation: the fields that it has written."""
    method = quantisation.get("quant_method")
    if method == "compressed-tensors":
        return stated_by_groups(quantisation)
    if method == "quark":
        every = scheme_of_quark(quantisation.get("global_quant_config"))
        by_module = object_in(quantisation, "layer_quant_config")
        named = {name: scheme_of_quark(entry) for name, entry in by_module.items()}
        return Stated(every, named)

    by_module = quantisation.get("quantized_layers")
    if isinstance(by_module, dict):
        named = {name: scheme_of_algorithm(entry) for name, entry in by_module.items()}
        return Stated(None, named)
    if quantisation.get("quant_algo"):
        return Stated(scheme_of_algorithm(quantisation))
    if method == "fp8":
        return Stated(scheme_of_fp8(quantisation))
    return Stated(scheme_of_method(str(method), quantisation.get("bits")))


def scheme_of_method(method: str, bits: object) -> Scheme:
    """Return the scheme of a tool that writes no more than its quant_method and bits."""
    words = f"{method} {bits}" if bits else method
    if method == "mxfp4":  # of gpt-oss; transformers leaves its activations in 16 bits
        return Scheme(MXFP4, words, activations=SIXTEEN_BITS)
    if "nvfp4" in method:
        return Scheme(NVFP4, words)
    if bits in (None, 4) and any(part in method for part in INT4_METHODS):
        return Scheme(INT4, words)
    return Scheme("", words)


def scheme_of_fp8(quantisation: dict) -> Scheme:
    """Return the scheme of quant_method "fp8"."""
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
    """Return the scheme of ModelOpt's quant_algo. entry: an object that has it."""
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


def stated_by_groups(quantisation: dict) -> Stated:
    """Return what the groups of compressed-tensors state.

    The target "Linear" means all modules. Raises ValueError where a group names no weights.
    """
    every = None
    named = {}
    try:
        for group in quantisation["config_groups"].values():
            scheme = scheme_of_group(group)
            for target in group.get("targets") or ["Linear"]:
                if target == "Linear":
                    every = every or scheme
                else:
                    add_target(named, str(target), scheme)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            "quantization_config.config_groups: names no weights"
        ) from error
    return Stated(every, named)


def add_target(named: dict[str, Scheme], target: str, scheme: Scheme) -> None:
    """Add a target and its scheme to `named`. Raises ValueError if it has another scheme there."""
    if named.setdefault(target, scheme) != scheme:
        raise ValueError(
            f"quantization_config.config_groups: several name {target}, and differ: "
            f"{named[target].words}, {scheme.words}"
        )


def scheme_of_group(group: dict) -> Scheme:
    """Return the scheme of one group of compressed-tensors."""
    weights = group["weights"]
    element = element_of(weights)
    strategy = weights.get("strategy")
    group_size = weights.get("group_size")
    words = f"compressed-tensors, {element} by {strategy}"
    inputs = group.get("input_activations") or {}
    static = inputs.get("dynamic") is False

    if element == "float8" and strategy == "block":
        return Scheme(FP8, words, weights.get("block_structure"), PER_BLOCK, static)
    if element == "int4":
        return Scheme(INT4, words)
    if element != "float4":
        return Scheme("", words)

    words = f"{words} of {group_size}"
    if group_size != GROUP:
        return Scheme(NVFP4, words)
    return Scheme(MXFP4, words, None, activations_of_group(inputs), static)


def element_of(part: dict) -> str:
    """Return the type of a group's weights or activations: "float8", "int4" and so on."""
    return f"{part.get('type')}{part.get('num_bits')}"


def activations_of_group(inputs: dict) -> str:
    """Return Scheme.activations for a group. inputs: the group's input_activations."""
    if not inputs:
        return SIXTEEN_BITS
    element = element_of(inputs)
    if element != "float8":
        return element

    strategy = inputs.get("strategy")
    size = inputs.get("group_size") or "all columns"
    if strategy == "group" and size == BLOCK:
        return PER_BLOCK
    return f"FP8 by {strategy} of {size}"


# ---- Quark ----


def object_in(part: object, name: str) -> dict:
    """Return the object under a name in a part of a config.json; {} for anything else."""
    value = part.get(name) if isinstance(part, dict) else None
    return value if isinstance(value, dict) else {}


def scheme_of_quark(entry: object) -> Scheme:
    """Return the scheme of one of Quark's configurations, of all modules or of some."""
    weight = object_in(entry, "weight")
    if not weight:
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

    inputs = object_in(entry, "input_tensors")
    static = inputs.get("is_dynamic") is False
    return Scheme(MXFP4, words, None, activations_of_quark(inputs), static)


def activations_of_quark(inputs: dict) -> str:
    """Return Scheme.activations for a configuration. inputs: the configuration's input_tensors."""
    element = str(inputs.get("dtype") or SIXTEEN_BITS)
    if element.startswith("fp8_e4m3"):
        return f"FP8 {inputs.get('qscheme')}"
    return element
