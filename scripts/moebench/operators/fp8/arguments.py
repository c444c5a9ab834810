"""The arguments of the FP8 layer: the one place where its interface is written.

The layer is called in four forms, each a tuple of arguments here:

    DS_ROUTING      DeepSeek-V3's router is inside
    RENORM_ROUTING  a softmax router is inside
    ROUTED          top-k ids and weights are arguments
    ROUTED_MXFP4    the same, with experts in MXFP4

The definitions' inputs and outputs are made from these tuples. tools/argument_tables.py makes from
them the tables by which solutions check their arguments, in Python and in C++.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from flashinfer_bench import AxisConst, AxisVar, TensorSpec

from moebench.operators.layers import Sizes
from moebench.operators.operator import const, tensor, var

# Axis of a definition -> its size, an expression in the sizes of a layer (operators/layers.py).
# The axis NUM_TOKENS is not among these: its size differs from call to call.
AXIS_SIZES = {
    "num_experts": "num_experts",
    "num_local_experts": "num_local_experts",
    "num_shared_experts": "num_shared_experts",
    "top_k": "top_k",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "gemm1_out_size": "2 * intermediate_size",
    "num_hidden_blocks": "hidden_size // 128",
    "num_intermediate_blocks": "intermediate_size // 128",
    "num_gemm1_out_blocks": "2 * intermediate_size // 128",
    "hidden_bytes": "hidden_size // 2",
    "intermediate_bytes": "intermediate_size // 2",
    "num_hidden_groups": "hidden_size // 32",
    "num_intermediate_groups": "intermediate_size // 32",
}
NUM_TOKENS = "seq_len"


@dataclass(frozen=True)
class Argument:
    """A tensor, or a number if `shape` is None.

    meaning: its description in definitions. optional: whether a call with bfloat16 tokens leaves it
    out. at_most: of an integer, its largest value, an expression in the sizes of a layer; the least
    is 0.
    """

    name: str
    dtype: str
    shape: tuple[str, ...] | None
    meaning: str
    optional: bool = False
    at_most: str = ""


HIDDEN_STATES = Argument(
    "hidden_states",
    "float8_e4m3fn",
    ("seq_len", "hidden_size"),
    "Quantised activations.",
)
HIDDEN_STATES_SCALE = Argument(
    "hidden_states_scale",
    "float32",
    ("num_hidden_blocks", "seq_len"),
    "One scale per token and 128 columns; note that the block axis comes first.",
    optional=True,
)
GEMM1_WEIGHTS = Argument(
    "gemm1_weights",
    "float8_e4m3fn",
    ("num_local_experts", "gemm1_out_size", "hidden_size"),
    "First projections: rows of `up`, then rows of `gate`.",
)
GEMM1_WEIGHTS_SCALE = Argument(
    "gemm1_weights_scale",
    "float32",
    ("num_local_experts", "num_gemm1_out_blocks", "num_hidden_blocks"),
    "One scale per 128 x 128 block; any sign.",
)
GEMM2_WEIGHTS = Argument(
    "gemm2_weights",
    "float8_e4m3fn",
    ("num_local_experts", "hidden_size", "intermediate_size"),
    "Second projection.",
)
GEMM2_WEIGHTS_SCALE = Argument(
    "gemm2_weights_scale",
    "float32",
    ("num_local_experts", "num_hidden_blocks", "num_intermediate_blocks"),
    "One scale per 128 x 128 block; any sign.",
)
LOCAL_EXPERT_OFFSET = Argument(
    "local_expert_offset",
    "int32",
    None,
    "Global index of this rank's first expert.",
    at_most="num_experts + num_shared_experts - num_local_experts",
)
OUTPUT = Argument(
    "output",
    "bfloat16",
    ("seq_len", "hidden_size"),
    "Weighted sum over local experts; zero where a token has none.",
)

TOKENS = (HIDDEN_STATES, HIDDEN_STATES_SCALE)
EXPERTS = (GEMM1_WEIGHTS, GEMM1_WEIGHTS_SCALE, GEMM2_WEIGHTS, GEMM2_WEIGHTS_SCALE)

DS_ROUTING = (
    Argument(
        "routing_logits",
        "float32",
        ("seq_len", "num_experts"),
        "Router output before the sigmoid.",
    ),
    Argument(
        "routing_bias",
        "bfloat16",
        ("num_experts",),
        "Added to the scores for selection only.",
    ),
    *TOKENS,
    *EXPERTS,
    LOCAL_EXPERT_OFFSET,
    Argument(
        "routed_scaling_factor",
        "float32",
        None,
        "Multiplies the normalised routing weights.",
    ),
    OUTPUT,
)

# Every expert is local here, hence logits for `num_local_experts`.
RENORM_ROUTING = (
    Argument(
        "routing_logits", "bfloat16", ("seq_len", "num_local_experts"), "Router output."
    ),
    *TOKENS,
    *EXPERTS,
    OUTPUT,
)

ROUTED_TOKENS = (
    HIDDEN_STATES,
    replace(
        HIDDEN_STATES_SCALE,
        shape=("seq_len", "num_hidden_blocks"),
        meaning="One scale per token and 128 columns, row-major.",
    ),
    Argument(
        "topk_ids",
        "int32",
        ("seq_len", "top_k"),
        "Global ids of a token's experts. Those that are not local, -1 and any other number "
        "cost nothing; an id that comes twice counts twice.",
    ),
    Argument(
        "topk_weights",
        "float32",
        ("seq_len", "top_k"),
        "Factors on the experts' results, with any scaling of the model's; not read where the "
        "id is not local.",
    ),
)
ROUTED_OFFSET = replace(
    LOCAL_EXPERT_OFFSET,
    meaning="Global id of this rank's first expert.",
    at_most="2147483647 - num_local_experts",  # ids are int32
)

ROUTED = (
    *ROUTED_TOKENS,
    replace(
        GEMM1_WEIGHTS, meaning="First projections: rows of `gate`, then rows of `up`."
    ),
    GEMM1_WEIGHTS_SCALE,
    GEMM2_WEIGHTS,
    GEMM2_WEIGHTS_SCALE,
    ROUTED_OFFSET,
    OUTPUT,
)

E2M1_CODES = "E2M1, two to a byte along K, the first in the low half"
E8M0_BITS = (
    "E8M0 bits: the byte, read as unsigned, less 127 is the exponent of two; 255 is NaN"
)

ROUTED_MXFP4 = (
    *ROUTED_TOKENS,
    Argument(
        "gemm1_weights",
        "int8",
        ("num_local_experts", "gemm1_out_size", "hidden_bytes"),
        f"First projections, rows of `gate`, then rows of `up`: {E2M1_CODES}.",
    ),
    Argument(
        "gemm1_weights_scale",
        "int8",
        ("num_local_experts", "gemm1_out_size", "num_hidden_groups"),
        f"Scales of groups of 32. {E8M0_BITS}.",
    ),
    Argument(
        "gemm2_weights",
        "int8",
        ("num_local_experts", "hidden_size", "intermediate_bytes"),
        f"Second projection: {E2M1_CODES}.",
    ),
    Argument(
        "gemm2_weights_scale",
        "int8",
        ("num_local_experts", "hidden_size", "num_intermediate_groups"),
        f"Scales of groups of 32. {E8M0_BITS}.",
    ),
    ROUTED_OFFSET,
    OUTPUT,
)

# Form, as solutions call it -> its arguments, in the order in which they are passed
ARGUMENTS = {
    "DS_ROUTING": DS_ROUTING,
    "RENORM_ROUTING": RENORM_ROUTING,
    "ROUTED": ROUTED,
    "ROUTED_MXFP4": ROUTED_MXFP4,
}


def axes(meanings: dict[str, str], sizes: Sizes) -> dict[str, AxisConst | AxisVar]:
    """Return a definition's axes, for a layer of these sizes. meanings: axis -> description."""
    specs = {NUM_TOKENS: var("Tokens in the batch; 0 is legal.")}
    for axis, meaning in meanings.items():
        size = eval(AXIS_SIZES[axis], {}, sizes)
        specs[axis] = const(size, meaning)
    return specs


def inputs(arguments: Iterable[Argument]) -> dict[str, TensorSpec]:
    """Return a definition's inputs, in their order: a form's arguments without `output`."""
    inputs = [argument for argument in arguments if argument is not OUTPUT]
    return {argument.name: spec(argument) for argument in inputs}


def outputs() -> dict[str, TensorSpec]:
    """Return the outputs of every definition of the layer."""
    return {OUTPUT.name: spec(OUTPUT)}


def spec(argument: Argument) -> TensorSpec:
    """Return an argument as FIB writes it in a definition."""
    shape = None if argument.shape is None else " ".join(argument.shape)
    return tensor(shape, argument.dtype, argument.meaning)
