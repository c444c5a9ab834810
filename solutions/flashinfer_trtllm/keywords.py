"""keywords: the arguments for FlashInfer's trtllm_fp8_block_scale_moe, by name.

main.py calls these functions. Positions and optional arguments changed between versions, so all are
passed by name, and the installed function's signature decides which. Layouts need no conversion: in
our definitions and in FlashInfer the activations' scales are [H / 128, T], weights are K-major and
unshuffled, and of gemm1's rows the first half is `up`, the second `gate`.
"""

# values of FlashInfer's enum RoutingMethodType, which has moved within the package
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
    """Raise ImportError unless the installed function can be called with our arguments.

    parameters: name -> inspect.Parameter of it.
    """
    required = {name for name, p in parameters.items() if p.default is p.empty}
    unknown = sorted(required - _ALWAYS - {"tile_tokens_dim"})
    if unknown:
        names = ", ".join(unknown)
        raise ImportError(
            f"FlashInfer's trtllm_fp8_block_scale_moe wants {names}, unknown here"
        )

    gone = sorted(_ALWAYS - parameters.keys())
    if gone:
        names = ", ".join(gone)
        raise ImportError(
            f"FlashInfer's trtllm_fp8_block_scale_moe no longer takes {names}"
        )


def keywords(parameters, problem, args):
    """Return name -> value of the arguments of a call.

    Args:
        parameters: name -> inspect.Parameter of the installed function.
        problem: the module common/host/problem.py.
        args: the layer's arguments, as `check_arguments` returns them.

    Returns:
        name -> value; `output` only where the function takes it.
    """
    num_tokens, num_experts = args.routing_logits.shape
    values = {name: getattr(args, name) for name in _INPUTS}
    values |= {
        "num_experts": num_experts,
        "top_k": problem.TOP_K,
        "n_group": None if problem.RENORM else problem.NUM_GROUPS,
        "topk_group": None if problem.RENORM else problem.KEPT_GROUPS,
        "intermediate_size": problem.INTERMEDIATE_SIZE,
        "local_num_experts": problem.NUM_LOCAL_EXPERTS,
        "routed_scaling_factor": float(args.routed_scaling_factor),
        "routing_method_type": RENORMALIZE if problem.RENORM else DEEPSEEK_V3,
        "use_shuffled_weight": False,
        "weight_layout": K_MAJOR,
    }
    if "output" in parameters:  # from 0.7 on
        values["output"] = args.output

    tile_parameter = parameters.get("tile_tokens_dim")
    # required before 0.5, None later
    if tile_parameter is not None and tile_parameter.default is not None:
        values["tile_tokens_dim"] = tile_tokens(num_tokens * problem.TOP_K, num_experts)
    return values


def tile_tokens(num_pairs, num_experts):
    """Return the tokens of a tile, for versions of FlashInfer that do not choose it themselves.

    It is the power of two above the mean number of tokens of an expert, 8 to 64.
    """
    mean = num_pairs // num_experts
    return min(max(1 << mean.bit_length(), 8), 64)
