"""Solutions that serve the layer behind a router: held against their form with the router inside,
and what they refuse. test_answers.py runs their workloads.
"""

import pytest
import torch
from every_solution import (
    FIRST_EXPERT,
    OUTPUT,
    assert_close,
    assert_same_bits,
    built,
    expected_output,
    in_bf16,
    run,
    serving,
)
from layer_inputs import DEVICE, halves_swapped
from layer_inputs import arguments as layer_arguments
from moebench.judging.calling import random_fp8
from moebench.judging.tolerances import matched_ratios
from moebench.operators import catalogue
from random_values import Draw

from solutions.common.triton.rows.quantise_tokens import quantise_tokens_ref
from solutions.common.triton.rows.route import route

# the router inside
LAYERS = {"deepseek-v3-ep8-routed": "full", "small-routed": "small"}
WHOLE = "deepseek-v3-ep1-routed"  # every expert is local
LOCAL = 32
NUM_EXPERTS = 256
TOP_K = 8
FACTOR = 2.5

routed = serving(*LAYERS)
some_tokens = pytest.mark.parametrize(
    "num_tokens", [2] if DEVICE == "cpu" else [1, 7, 80, 300, 1100]
)


def normal(shape, seed):
    return Draw(DEVICE, seed).normal(*shape)


# ---- right answers ----


def with_router_inside(arguments, logits, form):
    """Return the arguments of the same layer for the form that routes, by these logits."""
    bias = torch.zeros(NUM_EXPERTS, dtype=torch.bfloat16, device=DEVICE)
    inside = arguments | {
        "routing_logits": logits,
        "routing_bias": bias,
        "hidden_states_scale": arguments["hidden_states_scale"].t().contiguous(),
        "gemm1_weights": halves_swapped(arguments["gemm1_weights"]),
        "gemm1_weights_scale": halves_swapped(arguments["gemm1_weights_scale"]),
        "routed_scaling_factor": FACTOR,
    }
    names = [*catalogue.definition(form).inputs, OUTPUT]
    return {name: inside[name] for name in names}


@routed
@some_tokens
def test_both_forms_agree(layer, solution, layer_key, num_tokens):
    """Catches an answer that depends on who routes. Of triton_fused_v2 bit for bit."""
    form = LAYERS[layer_key]
    arguments = layer_arguments(layer_key, num_tokens)
    logits = normal((num_tokens, NUM_EXPERTS), seed=1)
    logits[:, FIRST_EXPERT : FIRST_EXPERT + LOCAL] += 1.5
    inside = with_router_inside(arguments, logits, form)
    expert, weight = route(logits, inside["routing_bias"], FIRST_EXPERT, FACTOR, LOCAL)
    arguments["topk_ids"] = torch.where(expert < 0, -1, expert + FIRST_EXPERT)
    arguments["topk_weights"] = weight

    output = run(layer, arguments)
    expected = run(built(solution, form), inside)

    assert expected.any()
    if solution == "triton_fused_v2":
        assert_same_bits(output, expected)
    else:  # the order of a token's rows is another
        assert matched_ratios(output, expected)["contest"] > 0.999


def assert_bf16_is_quantised_per_128(layer, arguments, by_block):
    """Check tokens in bf16 against the same ones as `quantise_tokens` quantises them.

    by_block: whether the layer wants scales with the blocks first.
    """
    x = normal(arguments["hidden_states"].shape, seed=2).bfloat16()
    x[0, :128] = 0
    values, scale = quantise_tokens_ref(x)
    scale = scale.t().contiguous() if by_block else scale
    in_fp8 = {"hidden_states": values, "hidden_states_scale": scale}
    expected = run(layer, arguments | in_fp8)

    in_place = arguments | {"hidden_states": x}
    del in_place["hidden_states_scale"]
    output = run(in_bf16(layer), in_place)

    assert expected.any()
    assert torch.equal(output, expected)


@routed
@some_tokens
def test_tokens_in_bf16_are_quantised_per_128(layer, layer_key, num_tokens):
    """Catches a quantisation that differs from the engines' own."""
    arguments = layer_arguments(layer_key, num_tokens)
    assert_bf16_is_quantised_per_128(layer, arguments, False)


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [1, 3, 8, 9, 80, 300])
@pytest.mark.parametrize("layer_key", ["full", "qwen3.5-35b"])
def test_tokens_in_bf16_with_the_router_inside(layer_key, num_tokens):
    """Catches other answers where the one launch quantises, up to 6 and 8 tokens of these."""
    layer = built("hopper_fused", layer_key)
    arguments = layer_arguments(layer_key, num_tokens)
    assert_bf16_is_quantised_per_128(layer, arguments, True)


@routed
@some_tokens
def test_rows_of_no_token_are_zero_and_read_nothing(layer, layer_key, num_tokens):
    """Catches NaN from the padding of a captured batch, or old memory in its rows."""
    arguments = layer_arguments(layer_key, num_tokens)
    padding = slice(num_tokens * 2 // 3, None)
    arguments["topk_ids"][padding] = -1
    arguments["topk_weights"][padding] = torch.nan
    arguments["hidden_states"].view(torch.uint8)[padding] = 0x7F
    arguments["hidden_states_scale"][padding] = torch.nan

    output = run(layer, arguments)

    assert (output[padding] == 0).all()
    assert torch.isfinite(output).all()


# ---- what is refused ----


@routed
def test_tokens_in_fp8_are_not_taken_for_bf16(layer, layer_key):
    """Catches bytes of one format read as the other."""
    arguments = layer_arguments(layer_key, 3)
    del arguments["hidden_states_scale"]
    with pytest.raises(ValueError, match="^hidden_states: .*float8_e4m3fn"):
        in_bf16(layer)(*arguments.values())


# ---- on the device ----


@serving("deepseek-v3-ep8-routed")
@some_tokens
def test_random_ids_of_a_trial_run(layer, layer_key, num_tokens):
    """Engines measure their memory with random ids, in which an expert comes twice."""
    arguments = layer_arguments(layer_key, num_tokens)
    generator = torch.Generator(DEVICE).manual_seed(3)
    arguments["topk_ids"].random_(
        FIRST_EXPERT, FIRST_EXPERT + LOCAL // 4, generator=generator
    )
    assert_close(run(layer, arguments), expected_output(layer_key, arguments))


@pytest.fixture(scope="module")
def whole_weights():
    """Weights of a whole layer by name, 11.3 GB, as a call takes them."""
    sizes = catalogue.layer_sizes()[WHOLE]
    experts = sizes["num_local_experts"]
    hidden = sizes["hidden_size"]
    inter = sizes["intermediate_size"]
    draw = Draw(DEVICE)

    weights = {}
    for gemm, rows, columns in (("gemm1", 2 * inter, hidden), ("gemm2", hidden, inter)):
        shape = (experts, rows, columns)
        scale = 0.03 * draw.uniform(experts, rows // 128, columns // 128)
        weights[f"{gemm}_weights"] = random_fp8(shape, DEVICE, draw.generator)
        weights[f"{gemm}_weights_scale"] = scale
    return weights


def whole_arguments(num_tokens, weights):
    """Return arguments in bf16, in the order of a call."""
    draw = Draw(DEVICE, num_tokens)
    x = draw.normal(num_tokens, weights["gemm1_weights"].shape[2]).bfloat16()
    order = draw.order(num_tokens, NUM_EXPERTS)
    ids = order[:, :TOP_K].to(torch.int32).contiguous()
    factors = draw.uniform(num_tokens, TOP_K)
    return [x, ids, factors, *weights.values(), 0, torch.empty_like(x)]


@serving(WHOLE)
@pytest.mark.parametrize("num_tokens", [8, 32])
def test_calls_and_replays_of_a_whole_layer_have_the_same_bits(
    layer, num_tokens, whole_weights
):
    """Catches a layer that is a bit off in some runs: the next router sends a token elsewhere."""
    layer_in_bf16 = in_bf16(layer)
    arguments = whole_arguments(num_tokens, whole_weights)
    output = arguments[-1]
    layer_in_bf16(*arguments)
    expected = output.clone()
    assert torch.isfinite(expected).all()
    assert expected.any()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer_in_bf16(*arguments)

    for number in range(100):
        output.fill_(torch.nan)
        layer_in_bf16(*arguments)
        assert_same_bits(output, expected, f"call {number}")

        output.fill_(torch.nan)
        graph.replay()
        assert_same_bits(output, expected, f"replay {number}")
