"""Solutions that serve the layer behind a router: held against their form with the router inside,
and what they refuse.

tests/solutions/test_solution.py runs their workloads.
"""

import sys

import pytest
import torch
from flashinfer_bench.compile import BuilderRegistry
from layer_inputs import DEVICE, arguments, wanted
from moebench.judging.calling import random_fp8
from moebench.judging.tolerances import TOLERANCES, matched_ratios
from moebench.operators import catalogue
from moebench.packing import eligibility, manifest, pack

from solutions.common.triton.quantise_tokens import quantise_tokens_ref
from solutions.common.triton.route import route

GEOMETRY, INSIDE = (
    ("deepseek-v3-ep8-routed", "full") if DEVICE == "cuda" else ("small-routed", "small")
)
SERVING = [
    name
    for name in manifest.solution_names()
    if GEOMETRY in manifest.read_manifest(name).definitions
]
OFFSET, LOCAL, EXPERTS, TOP_K = 64, 32, 256, 8
WHOLE = "deepseek-v3-ep1-routed"  # every expert is local
SERVING_WHOLE = [
    name for name in manifest.solution_names() if WHOLE in manifest.read_manifest(name).definitions
]


def built(solution, geometry):
    packed = pack.pack(solution)[geometry]
    if reason := eligibility.why_skipped(packed, eligibility.here()):
        pytest.skip(f"{solution} {reason}")
    return BuilderRegistry.get_instance().build(catalogue.definition(geometry), packed)


@pytest.fixture(params=SERVING)
def layer(request):
    return built(request.param, GEOMETRY)


def in_bf16(layer):
    """The function of a built solution for tokens in bf16."""
    function = getattr(
        sys.modules[layer._callable.__module__], f"{layer._callable.__name__}_bf16", None
    )
    return function or pytest.skip("takes no tokens in bf16")


def call(function, given):
    output = torch.full_like(given["output"], torch.nan)
    function(*(given | {"output": output}).values())
    return output


def assert_close(output, given):
    ratio = matched_ratios(output, wanted(GEOMETRY, given))["relaxed"]
    assert torch.isfinite(output).all() and ratio >= TOLERANCES["relaxed"].ratio, ratio


def up_first(half):
    gate, up = half.view(torch.uint8).chunk(2, 1)
    return torch.cat([up, gate], 1).view(half.dtype)


# ---- right answers ----


@pytest.mark.parametrize("num_tokens", [2] if DEVICE == "cpu" else [1, 7, 80, 300, 1100, 9000])
@pytest.mark.parametrize("solution", SERVING)
def test_both_forms_agree(solution, num_tokens):
    """Two answers for one layer, depending on who routes. Of triton_fused_v2 bit
    for bit.
    """
    given = arguments(GEOMETRY, num_tokens)
    logits = torch.randn(
        num_tokens, EXPERTS, generator=torch.Generator(DEVICE).manual_seed(1), device=DEVICE
    )
    logits[:, OFFSET : OFFSET + LOCAL] += 1.5
    bias = torch.zeros(EXPERTS, dtype=torch.bfloat16, device=DEVICE)
    expert, weight = route(logits, bias, OFFSET, 2.5, LOCAL)
    given |= {"topk_ids": torch.where(expert < 0, -1, expert + OFFSET), "topk_weights": weight}
    got = call(built(solution, GEOMETRY), given)
    inside = given | {"routing_logits": logits, "routing_bias": bias, "routed_scaling_factor": 2.5}
    inside |= {name: up_first(given[name]) for name in ("gemm1_weights", "gemm1_weights_scale")}
    inside["hidden_states_scale"] = given["hidden_states_scale"].t().contiguous()
    inside = {name: inside[name] for name in (*catalogue.definition(INSIDE).inputs, "output")}
    want = call(built(solution, INSIDE), inside)
    if solution == "triton_fused_v2":
        assert torch.equal(got, want)
    else:  # the order of a token's rows is another
        assert matched_ratios(got, want)["contest"] > 0.999
    assert want.any()


@pytest.mark.parametrize("num_tokens", [2] if DEVICE == "cpu" else [1, 80, 300, 1100])
def test_tokens_in_bf16_are_quantised_per_128(layer, num_tokens):
    """An engine's own quantisation and ours that differ by more than a
    rounding.
    """
    given = arguments(GEOMETRY, num_tokens)
    x = torch.randn(
        given["hidden_states"].shape,
        generator=torch.Generator(DEVICE).manual_seed(2),
        device=DEVICE,
    )
    x = x.bfloat16()
    x[0, :128] = 0
    tokens, scale = quantise_tokens_ref(x)
    others = {name: given[name] for name in list(given)[2:]}
    got = call(in_bf16(layer), {"hidden_states": x} | others)
    want = call(layer, {"hidden_states": tokens, "hidden_states_scale": scale} | others)
    assert want.any() and torch.equal(got, want)


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [1, 3, 8, 9, 80, 300])
@pytest.mark.parametrize("geometry", ["full", "qwen3.5-35b"])
def test_tokens_in_bf16_with_the_router_inside(geometry, num_tokens):
    """Other answers where the layer's one launch quantises, up to 6 and 8 tokens
    of these.
    """
    layer, given = built("hopper_fused", geometry), arguments(geometry, num_tokens)
    x = torch.randn(
        given["hidden_states"].shape,
        generator=torch.Generator(DEVICE).manual_seed(2),
        device=DEVICE,
    )
    tokens, scale = quantise_tokens_ref(x.bfloat16())
    want = call(
        layer, given | {"hidden_states": tokens, "hidden_states_scale": scale.t().contiguous()}
    )
    del given["hidden_states_scale"]
    assert want.any() and torch.equal(
        call(in_bf16(layer), given | {"hidden_states": x.bfloat16()}), want
    )


@pytest.mark.parametrize("num_tokens", [2] if DEVICE == "cpu" else [1, 80, 300, 1100])
def test_rows_of_no_token_are_zero_and_read_nothing(layer, num_tokens):
    """NaN from the padding of a captured batch, or old memory in its rows."""
    given = arguments(GEOMETRY, num_tokens)
    padding = slice(num_tokens * 2 // 3, None)
    given["topk_ids"][padding] = -1
    given["topk_weights"][padding] = torch.nan
    given["hidden_states"].view(torch.uint8)[padding] = 0x7F
    given["hidden_states_scale"][padding] = torch.nan
    output = call(layer, given)
    assert (output[padding] == 0).all() and torch.isfinite(output).all()


# ---- what is refused ----

FAULTS = {
    "hidden_states": lambda t: t.to(torch.float16),
    "hidden_states_scale": lambda t: t.t().contiguous(),
    "topk_ids": lambda t: t.long(),
    "topk_weights": lambda t: t[:, :4].contiguous(),
    "gemm1_weights": lambda t: t[:-1],
    "output": lambda t: t.float(),
    "local_expert_offset": lambda n: -1,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_argument_is_named(layer, name):
    """A wrong answer, or a crash in the GPU, instead of a line that says why."""
    given = arguments(GEOMETRY, 3)
    with pytest.raises(ValueError, match=f"^{name}: "):
        layer(*(given | {name: FAULTS[name](given[name])}).values())


def test_tokens_in_fp8_are_not_taken_for_bf16(layer):
    """Bytes of one format read as the other."""
    given = arguments(GEOMETRY, 3)
    del given["hidden_states_scale"]
    with pytest.raises(ValueError, match="^hidden_states: .*float8_e4m3fn"):
        in_bf16(layer)(*given.values())


# ---- on the device ----


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [7, 80, 300, 1100])
def test_cuda_graph(layer, num_tokens):
    """A graph that keeps the routing it was captured with."""
    given = arguments(GEOMETRY, num_tokens)
    output = torch.full_like(given["output"], torch.nan)
    call(layer, given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer(*(given | {"output": output}).values())
    for seed in (1, 2):
        other = arguments(GEOMETRY, num_tokens, seed=seed)
        for name in ("hidden_states", "hidden_states_scale", "topk_ids", "topk_weights"):
            given[name].copy_(other[name])
        graph.replay()
        assert torch.equal(output, call(layer, given)), f"replay {seed}"
    assert_close(output, given)


@pytest.fixture(scope="module")
def whole_weights():
    """W13, W2 and their scales of a whole layer, 11.3 GB, as a call takes them."""
    of, random = catalogue.GEOMETRIES[WHOLE], torch.Generator(DEVICE).manual_seed(0)
    experts, hidden, inter = of["num_local_experts"], of["hidden_size"], of["intermediate_size"]

    def with_scale(rows, columns):
        weight = random_fp8((experts, rows, columns), DEVICE, random)
        return weight, 0.03 * torch.rand(
            experts, rows // 128, columns // 128, generator=random, device=DEVICE
        )

    return *with_scale(2 * inter, hidden), *with_scale(hidden, inter)


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [8, 32])
@pytest.mark.parametrize("solution", SERVING_WHOLE)
def test_calls_and_replays_of_a_whole_layer_have_the_same_bits(solution, num_tokens, whole_weights):
    """A token that the next router sends elsewhere in some runs, as this layer
    is a bit off.
    """
    run = in_bf16(built(solution, WHOLE))
    random = torch.Generator(DEVICE).manual_seed(num_tokens)
    x = torch.randn(
        num_tokens, whole_weights[0].shape[2], generator=random, device=DEVICE
    ).bfloat16()
    order = torch.rand(num_tokens, EXPERTS, generator=random, device=DEVICE).argsort(1)
    factors = torch.rand(num_tokens, TOP_K, generator=random, device=DEVICE)
    output = torch.empty_like(x)
    arguments = (
        x,
        order[:, :TOP_K].to(torch.int32).contiguous(),
        factors,
        *whole_weights,
        0,
        output,
    )
    run(*arguments)
    first, graph = output.clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(*arguments)
    assert torch.isfinite(first).all() and first.any()
    for turn in range(100):
        for one, again in (("call", lambda: run(*arguments)), ("replay", graph.replay)):
            output.fill_(torch.nan)
            again()
            rows = (output != first).any(1).nonzero().flatten().tolist()
            assert not rows, f"{one} {turn}: rows {rows}"


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [7, 80, 300, 1100])
def test_random_ids_of_a_trial_run(layer, num_tokens):
    """Engines measure their memory with random ids, in which an expert comes
    twice.
    """
    given = arguments(GEOMETRY, num_tokens)
    generator = torch.Generator(DEVICE).manual_seed(3)
    given["topk_ids"] = torch.randint(
        OFFSET,
        OFFSET + LOCAL // 4,
        given["topk_ids"].shape,
        generator=generator,
        device=DEVICE,
        dtype=torch.int32,
    )
    assert_close(call(layer, given), given)
