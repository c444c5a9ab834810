"""Read a checkpoint's router: how it chooses experts and weighs them. read.py calls `router_of`.

In layers.toml `routing` is one of three kinds:
"sigmoid-bias"   sigmoid scores, to which a bias is added for the choice alone; normalised weights
"renorm"         a softmax over the chosen logits
"given"          any other, so that a definition of the layer takes top-k as given
"""

from dataclasses import dataclass

from moebench.models.checkpoint.fields import Fields

# DeepSeek's name for a way to choose -> whether it has a bias
BIAS_OF_METHOD = {"noaux_tc": True, "greedy": False, "group_limited_greedy": False}


@dataclass(frozen=True)
class Router:
    """A checkpoint's router.

    routing: the kind in layers.toml. words: "sigmoid with a bias, in 8 groups, times 2.5".
    scaling_factor: of the routing weights. notes: what a caller of a layer with top-k given has to
    do beside routing.
    """

    routing: str
    words: str
    scaling_factor: float
    notes: tuple[str, ...]


def router_of(fields: Fields, top_k: int, num_groups: int) -> Router:
    """Return a checkpoint's router.

    Raises ValueError where config.json does not say how it routes, and for a router that changes
    what the experts compute.
    """
    scoring = required(fields, "scoring", fields.get("scoring"))
    bias = required(fields, "bias", has_bias(fields))
    normalised = required(fields, "normalised", is_normalised(fields))
    factor = scaling_factor(fields)
    softcap = fields.number("logit_softcap", 0)
    notes = (*weights_on_input(fields, top_k), *zero_experts(fields))

    words = str(scoring)
    if softcap:
        words += f" of logits capped at {softcap:g} ({fields.name('logit_softcap')})"
    if bias:
        words += " with a bias"
    if num_groups > 1:
        words += f", in {num_groups} groups"
    if not normalised:
        words += ", not normalised"
    if factor != 1:
        words += f", times {factor:g}"

    routing = "given"
    if normalised and not softcap and not notes:
        routing = routing_inside(scoring, bias, num_groups, factor)
    return Router(routing, words, factor, notes)


def routing_inside(scoring: str, bias: bool, num_groups: int, factor: float) -> str:
    """Return the kind in layers.toml of a router whose weights are normalised."""
    if scoring == "sigmoid" and bias:
        return "sigmoid-bias"
    if scoring == "softmax" and not bias and num_groups == 1 and factor == 1:
        return "renorm"
    return "given"


def required(fields: Fields, key: str, value: object) -> object:
    """Return a field's value. Raises ValueError where it is None, as nothing states it."""
    if value is None:
        model = f"model_type {fields.values.get('model_type')!r}"
        raise ValueError(
            f"{fields.names[key][0]}: missing, and {model} is not known to imply it"
        )
    return value


def is_normalised(fields: Fields) -> bool | None:
    """Return whether the weights sum to one before they are scaled; None if nothing states it."""
    if fields.values.get("expert_selection_fn") == "softmax":
        return True  # over the chosen logits alone
    return fields.get("normalised")


def has_bias(fields: Fields) -> bool | None:
    """Return whether a bias is added for the choice; None if nothing states it."""
    if fields.present("bias"):
        return fields.get("bias")
    method = str(fields.values.get("topk_method"))
    return BIAS_OF_METHOD.get(method, fields.implied.get("bias"))


def scaling_factor(fields: Fields) -> float:
    """Return the factor by which the routing weights are multiplied, by default 1."""
    factor = fields.number("routed_scaling_factor", 1)
    return factor or 1.0


def weights_on_input(fields: Fields, top_k: int) -> list[str]:
    """Return a note if the routing weight multiplies an expert's input and not its output; else [].

    Raises ValueError where a token has several experts, as their inputs then differ.
    """
    if not fields.get("weights_on_input", False):
        return []
    if top_k > 1:
        raise ValueError(
            f"{fields.name('weights_on_input')}: has true, want false where a token has {top_k} "
            "experts: SwiGLU makes weights on the input another layer"
        )
    return ["the routing weight is on the input: scale it, and give weights of 1"]


def zero_experts(fields: Fields) -> list[str]:
    """Return a note if some of the router's choices are no experts; else []."""
    count = fields.get("zero_experts", 0)
    if not count:
        return []
    name = fields.name("zero_experts")
    return [f"{count} more choices are identities, which the caller adds ({name})"]
