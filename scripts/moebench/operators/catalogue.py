"""The catalogue: all operators, and every layer by its key, "full", "glm-5-ep8", "bf16_small".

A layer has one definition, so a key stands for that, too: `definition("full")` is the FIB
Definition moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048. Whoever is not about one
operator alone asks here. Answers follow definitions/layers.toml as it was last read.
"""

from collections.abc import Callable

from flashinfer_bench import Definition

from moebench.core.errors import UserError
from moebench.core.names import unknown
from moebench.operators.fp8.layer import self_contained
from moebench.operators.fp8.mxfp4 import Mxfp4
from moebench.operators.fp8.renorm import Renorm
from moebench.operators.fp8.routed import Routed, routers
from moebench.operators.fp8.shared import SharedExperts
from moebench.operators.fp8.sigmoid_bias import SigmoidBias
from moebench.operators.layers import Layers, Sizes, cached, has_all_experts
from moebench.operators.moe_bf16 import MoeBf16
from moebench.operators.mxfp8_linear import Mxfp8Linear
from moebench.operators.operator import Operator

SIGMOID_BIAS = SigmoidBias()
RENORM = Renorm()
ROUTED = Routed()
SHARED_EXPERTS = SharedExperts()
MXFP4 = Mxfp4()
OPERATORS = (
    SIGMOID_BIAS,
    RENORM,
    MoeBf16(),
    Mxfp8Linear(),
    ROUTED,
    MXFP4,
    SHARED_EXPERTS,
)

# forms of an FP8 layer that are called with the experts of each token
TOP_K_GIVEN = ("routed", "mxfp4")


@cached
def layer_sizes() -> Layers:
    """Return layer key -> sizes, of every layer."""
    sizes = {}
    for family in OPERATORS:
        sizes |= family.layer_sizes()
    return sizes


@cached
def renorm() -> tuple[str, ...]:
    """Return the keys of FP8 layers with softmax routing inside."""
    return tuple(RENORM.layer_sizes())


@cached
def fp8_moe() -> tuple[str, ...]:
    """Return the keys of FP8 layers with the router inside."""
    return (*SIGMOID_BIAS.layer_sizes(), *renorm(), *SHARED_EXPERTS.layer_sizes())


@cached
def routed() -> tuple[str, ...]:
    """Return the keys of FP8 layers with top-k given."""
    return tuple(ROUTED.layer_sizes())


@cached
def mxfp4() -> tuple[str, ...]:
    """Return the keys of layers with MXFP4 experts and top-k given."""
    return tuple(MXFP4.layer_sizes())


@cached
def keys_for_gpu() -> tuple[str, ...]:
    """Return the keys of layers that need a GPU; the others are small."""
    keys = []
    for family in OPERATORS:
        small = family.small()
        keys += [key for key in family.layer_sizes() if key not in small]
    return tuple(keys)


@cached
def by_name() -> dict[str, str]:
    """Return definition's name -> layer key."""
    return {definition_name(layer_key): layer_key for layer_key in layer_sizes()}


@cached
def keys() -> dict[str, str]:
    """Return every name that a user may give -> layer key: keys, aliases, definitions' names."""
    names = {layer_key: layer_key for layer_key in layer_sizes()}
    # the first layer by the name that its model's other layers have, and its routed form by the
    # first one's old name
    names |= {"deepseek-v3-ep8": "full", "full-routed": "deepseek-v3-ep8-routed"}
    return names | by_name()


def operator(layer_key: str) -> Operator:
    """Return the operator that has this key."""
    return next(family for family in OPERATORS if layer_key in family.layer_sizes())


def form(layer_key: str) -> str | None:
    """Return the form of an FP8 layer: its routing, "sigmoid-bias" or "renorm", where the router is
    inside; "routed" where top-k is given; "mxfp4" for that with MXFP4 experts. None of a layer of
    another operator.
    """
    return operator(layer_key).form


def takes_top_k(layer_key: str) -> bool:
    """Whether an FP8 layer is called with the experts of each token, its router being outside."""
    return form(layer_key) in TOP_K_GIVEN


def names(sizes: Sizes, weights: str = "fp8") -> dict[str, str]:
    """Return form -> definition's name, for each form that a layer of these sizes has.

    weights: "fp8" or "mxfp4".
    """
    if weights == "mxfp4":
        return {"mxfp4": MXFP4.definition_name_of(sizes)}

    by_form = {}
    if sizes["routing"] == "sigmoid-bias":
        by_form["sigmoid-bias"] = SIGMOID_BIAS.definition_name_of(sizes)
    elif renorm_inside(sizes):
        by_form["renorm"] = RENORM.definition_name_of(sizes)
    by_form["routed"] = ROUTED.definition_name_of(sizes)
    return by_form


def renorm_inside(sizes: Sizes) -> bool:
    """Whether a layer of these sizes has a form with softmax routing inside."""
    is_renorm = sizes["routing"] == "renorm"
    return is_renorm and has_all_experts(sizes) and not sizes["num_shared_experts"]


def definition_name(layer_key: str) -> str:
    """Return the name of the FIB Definition of a key."""
    return operator(layer_key).definition_name(layer_key)


def definition(layer_key: str) -> Definition:
    """Return the FIB Definition of a key."""
    return operator(layer_key).definition(layer_key)


def router_sizes(layer_key: str) -> Sizes:
    """Return an FP8 layer's sizes as its router knows them, also where top-k is given."""
    return routers().get(layer_key) or layer_sizes()[layer_key]


@cached
def router(layer_key: str) -> Callable:
    """Return the router of a layer, the one before it where top-k is given: a function.

    It takes logits, and with sigmoid routing bias and scaling factor, and returns experts and
    weights, both [T, top_k].
    """
    sizes = router_sizes(layer_key)
    family = RENORM if sizes["routing"] == "renorm" else SIGMOID_BIAS

    scope = {}
    exec(self_contained(sizes, family.router_sizes, family.router_functions), scope)
    return scope["route"]


def layer_key_named(name: str) -> str:
    """Return the layer key that a user means, by one of `keys`. Raises UserError for
    another name.
    """
    if name not in keys():
        listed = ", ".join(layer_sizes())
        raise UserError(unknown("definition", name, list(keys()), listed))
    return keys()[name]


def definition_named(name: str) -> str:
    """Return the name of the definition that a user means; a name that is not in the catalogue, of
    another data set for instance, as it is.
    """
    return definition_name(keys()[name]) if name in keys() else name


def small_like(layer_key: str) -> str:
    """Return the key of the small layer that is most like this one: of the same operator, and if
    there is one with as many groups. A small layer's is its own.
    """
    small = operator(layer_key).small()
    if layer_key in small:
        return layer_key

    groups = layer_sizes()[layer_key].get("num_groups")
    for key in small:
        if layer_sizes()[key].get("num_groups") == groups:
            return key
    return small[0]
