"""keywords: the definition's inputs as keywords of FlashInfer's trtllm_fp8_block_scale_moe.

Positions and optional arguments changed between versions, so everything goes by name and is chosen
by the installed function's signature. Layouts need no conversion: activations' scales are [H / 128,
T] on both sides, weights are K-major and unshuffled, and gemm1's first half of rows is `up`, its
second half `gate`, here and there.
"""

# of RoutingMethodType; the enum's place in the package moved, its values did not
RENORMALIZE = 1
DEEPSEEK_V3 = 2
K_MAJOR = 0  # WeightLayout.MajorK

_INPUTS = (
    "routing_logits",
    "routing_bias",
    "hidden_states",
    "hidden_states_scale",
    "gemm1_weights",
    "gemm1_weights_scale",
    "gemm2_weights",
    "gemm2_weights_scale",
    "local_expert_offset",
)
_ALWAYS = {
    *_INPUTS,
    "num_experts",
    "top_k",
    "n_group",
    "topk_group",
    "intermediate_size",
    "local_num_experts",
    "routed_scaling_factor",
    "routing_method_type",
    "use_shuffled_weight",
    "weight_layout",
}


def check_signature(parameters):
    """Raise ImportError unless a call with our keywords can fit a signature.

    parameters: of inspect.Signature.
    """
    required = {name for name, p in parameters.items() if p.default is p.empty}
    unknown = sorted(required - _ALWAYS - {"tile_tokens_dim"})
    if unknown:
        names = ", ".join(unknown)
        raise ImportError(f"FlashInfer's trtllm_fp8_block_scale_moe wants {names}, unknown here")

    gone = sorted(_ALWAYS - parameters.keys())
    if gone:
        names = ", ".join(gone)
        raise ImportError(f"FlashInfer's trtllm_fp8_block_scale_moe no longer takes {names}")


def keywords(parameters, problem, given):
    """Return the keywords of one call.

    Args:
        parameters: name -> inspect.Parameter of the installed function.
        problem: the module of the definition's sizes and routing.
        given: what check_arguments returns.

    Returns:
        name -> value; `output` only where the function takes it.
    """
    num_tokens, num_experts = given.routing_logits.shape
    values = {name: getattr(given, name) for name in _INPUTS}
    values |= {
        "num_experts": num_experts,
        "top_k": problem.TOP_K,
        "n_group": None if problem.RENORM else problem.NUM_GROUPS,
        "topk_group": None if problem.RENORM else problem.KEPT_GROUPS,
        "intermediate_size": problem.INTERMEDIATE_SIZE,
        "local_num_experts": problem.NUM_LOCAL_EXPERTS,
        "routed_scaling_factor": float(given.routed_scaling_factor),
        "routing_method_type": RENORMALIZE if problem.RENORM else DEEPSEEK_V3,
        "use_shuffled_weight": False,
        "weight_layout": K_MAJOR,
    }
    if "output" in parameters:  # from 0.7 on
        values["output"] = given.output

    tile_parameter = parameters.get("tile_tokens_dim")
    # required before 0.5, None later
    if tile_parameter is not None and tile_parameter.default is not None:
        values["tile_tokens_dim"] = tile_tokens(num_tokens * problem.TOP_K, num_experts)
    return values


def tile_tokens(num_pairs, num_experts):
    """Return the tokens of a tile, for versions that do not choose themselves: the power of two
    above the mean of tokens an expert, 8 to 64.
    """
    mean = num_pairs // num_experts
    return min(max(1 << mean.bit_length(), 8), 64)
