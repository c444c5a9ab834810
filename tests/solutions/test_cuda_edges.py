"""The CUDA solutions where the choice of experts is not clear, on two host threads, and beyond a
limit.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from unittest import mock

import hopper_stages as stages
import pytest
import torch
from flashinfer_bench.compile import BuilderRegistry
from moebench.judging.tolerances import TOLERANCES, matched_ratios
from moebench.operators import catalogue, swiglu
from moebench.operators import moe_fp8_block_scale as moe
from moebench.packing import eligibility, pack

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
DS, RENORM = (
    ("full", "kimi-k2-ep8", "glm-5.3-flash-ep8"),
    ("qwen3-next",),
)  # eight groups, one; all experts local
CLAMPED = ("glm-5.3-flash-ep8", "step-3.5-flash-ep8-routed", "minimax-m3-ep8")
# One launch without and with a grid barrier, four launches; of mma_fused the one launch alone.
COUNTS = {"hopper_fused": (5, 60, 300), "mma_fused": (5, 60, 256)}
TOGETHER = {"hopper_fused": ((300, 300), (80, 80), (80, 300)), "mma_fused": ((5, 80), (80, 80))}
SOLUTIONS = pytest.mark.parametrize("solution", COUNTS)
WEIGHTS = ("gemm1_weights", "gemm1_weights_scale", "gemm2_weights", "gemm2_weights_scale")


@cache
def built(geometry, solution="hopper_fused"):
    """What FIB builds of the packed solution."""
    if reason := eligibility.why_skipped(
        packed := pack.pack(solution)[geometry], eligibility.here()
    ):
        pytest.skip(reason)
    return BuilderRegistry.get_instance().build(catalogue.definition(geometry), packed)


def drawn(geometry, num_tokens, seed=0):
    """Random arguments; the rank has the first experts, which win ties."""
    of = stages.sizes(geometry)
    arguments = stages.tokens(of, num_tokens, DEVICE, seed) | stages.weights(of, DEVICE, seed)
    return of, arguments | {"local_expert_offset": 0}


def run(layer, of, arguments, output=None):
    if output is None:
        output = torch.full_like(arguments["hidden_states"], torch.nan, dtype=torch.bfloat16)
    layer(*(arguments[name] for name in stages.names(of)), output)
    return output


def first_of_equals(values, count):
    """[..., count] indices of the largest values; of equal ones the first, and NaN before all."""
    return values.sort(dim=-1, descending=True, stable=True).indices[..., :count]


def lower_wins(of, arguments):
    """The layer's output where of equal groups and of equal experts the lower one is chosen."""
    logits = arguments["routing_logits"].float()
    if of["renorm"]:
        experts = first_of_equals(logits, of["top_k"])
        weights = logits.gather(1, experts).softmax(-1)
    else:
        scores = torch.sigmoid(logits)
        groups = (scores + arguments["routing_bias"].float()).unflatten(1, (of["num_groups"], -1))
        kept = first_of_equals(groups.topk(2, dim=-1).values.sum(-1), of["kept_groups"])
        closed = torch.ones(groups.shape[:2], dtype=torch.bool, device=DEVICE).scatter_(
            1, kept, False
        )
        experts = first_of_equals(
            groups.masked_fill(closed[..., None], -torch.inf).flatten(1), of["top_k"]
        )
        weights = scores.gather(1, experts)
        weights = (
            weights / (weights.sum(-1, keepdim=True) + 1e-20) * arguments["routed_scaling_factor"]
        )
    x = moe.dequantize(
        arguments["hidden_states"], arguments["hidden_states_scale"].t(), row_block=1
    )
    local = experts - arguments["local_expert_offset"]
    with (
        mock.patch.object(swiglu, "LIMIT", of["swiglu_limit"]),
        mock.patch.object(moe, "swiglu", swiglu.function_of(of)),
    ):
        return moe.local_experts(x, *(arguments[name] for name in WEIGHTS), local, weights)


def assert_close(output, wanted, of=""):
    assert torch.isfinite(output).all()
    ratios = matched_ratios(output, wanted)
    for name in ("relaxed", "contest"):
        assert ratios[name] >= TOLERANCES[name].ratio, f"{of}: {ratios}"


def all_equal(logits, bias):
    logits.zero_()
    bias.zero_()


def equal_pairs(logits, bias):
    logits[:, 1::2] = logits[:, ::2]
    logits[:, 0] = 8  # alone, so that one of a pair is the last to be chosen
    bias.zero_()


def bias_undoes_a_difference(logits, bias):
    """Sigmoids of 0.5, 1 and 0 with a bias of 0.5, 0 and 1: every expert's choice is 1, and their
    weights differ.
    """
    for first, (logit, added) in enumerate(((0.0, 0.5), (torch.inf, 0.0), (-torch.inf, 1.0))):
        logits[:, first::3] = logit
        bias[first::3] = added


def infinite_logits(logits, bias):
    logits[0] = torch.inf
    logits[1] = -torch.inf
    logits[2, ::2] = -torch.inf
    logits[3, 1::2] = torch.inf


TIES = [
    (geometry, spoil)
    for geometry in DS
    for spoil in (all_equal, equal_pairs, bias_undoes_a_difference)
]
TIES += [(geometry, infinite_logits) for geometry in DS]
TIES += [(geometry, spoil) for geometry in RENORM for spoil in (all_equal, equal_pairs)]


@SOLUTIONS
@pytest.mark.parametrize(("geometry", "spoil"), TIES)
def test_the_lower_of_equal_experts_is_chosen(geometry, spoil, solution):
    """A token with an expert fewer or one twice, where logits are equal, as in
    padding.
    """
    for num_tokens in COUNTS[solution]:
        of, arguments = drawn(geometry, num_tokens)
        spoil(arguments["routing_logits"], arguments["routing_bias"])
        output = run(built(geometry, solution), of, arguments)
        assert_close(output, lower_wins(of, arguments), of=f"T={num_tokens}")


@SOLUTIONS
@pytest.mark.parametrize("geometry", (*DS, *RENORM))
def test_nan_logits_spoil_their_token_only(geometry, solution):
    """A hang, reads out of bounds or wrong rows of other tokens, after one bad
    router output.
    """
    for num_tokens in COUNTS[solution]:
        of, arguments = drawn(geometry, num_tokens)
        arguments["routing_logits"][1, 3] = torch.nan
        arguments["routing_logits"][2] = torch.nan
        if of["renorm"]:
            arguments["routing_logits"][3, 4] = torch.inf  # the softmax of an infinite logit is NaN
        output, wanted = run(built(geometry, solution), of, arguments), lower_wins(of, arguments)
        others = torch.ones(num_tokens, dtype=torch.bool, device=DEVICE)
        others[1 : 4 if of["renorm"] else 3] = False
        assert_close(output[others], wanted[others], of=f"T={num_tokens}")
        bad = output[~others].isnan()
        assert (bad.all(1) | ~bad.any(1)).all(), "part of a row is NaN"
        if of["num_groups"] == 1:  # else a group that has a NaN need not be kept
            assert bad.all()


@SOLUTIONS
@pytest.mark.parametrize("geometry", CLAMPED)
def test_nan_passes_the_clamp(geometry, solution):
    """A NaN that becomes the limit, and with it a wrong token that looks
    right.
    """
    for num_tokens in COUNTS[solution]:
        of, arguments = drawn(geometry, num_tokens)
        stages.token_scales(of, arguments)[1] = torch.nan
        output, (chosen, _) = (
            run(built(geometry, solution), of, arguments),
            stages.reference_choice(of, arguments),
        )
        wrong = output.isnan()
        assert wrong[1].all() == chosen[1].any() and not wrong[0].any() and not wrong[2:].any()


@pytest.mark.parametrize(("solution", "together"), TOGETHER.items(), ids=COUNTS)
@pytest.mark.parametrize("shared", [False, True], ids=["two streams", "one stream"])
@pytest.mark.parametrize("geometry", ("full", "qwen3-next"))
def test_two_host_threads(geometry, shared, solution, together):
    """Wrong sums when launches of two threads mix, as calls do not hold Python's
    lock.
    """
    layer, turns = built(geometry, solution), 30
    streams = [torch.cuda.Stream()] * 2 if shared else [torch.cuda.Stream() for _ in range(2)]
    of, weights = stages.sizes(geometry), stages.weights(stages.sizes(geometry), DEVICE)
    for counts in together:
        calls = [
            stages.tokens(of, count, DEVICE, seed) | weights for seed, count in enumerate(counts)
        ]
        wanted = [run(layer, of, arguments) for arguments in calls]
        outputs = [[torch.full_like(one, torch.nan) for _ in range(turns)] for one in wanted]
        ready = threading.Barrier(2)
        torch.cuda.synchronize()

        def work(who, calls=calls, outputs=outputs, ready=ready):
            ready.wait()
            with torch.cuda.stream(streams[who]):
                for output in outputs[who]:
                    run(layer, of, calls[who], output)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, range(2)))
        torch.cuda.synchronize()
        for who, (of_thread, one) in enumerate(zip(outputs, wanted, strict=True)):
            wrong = [turn for turn, output in enumerate(of_thread) if not torch.equal(output, one)]
            assert not wrong, f"T={counts}: thread {who}, turns {wrong}"


def test_more_tokens_than_the_limit_are_refused():
    """Shared memory or 32-bit offsets that overflow, with experts and widths of
    another model.
    """
    of = stages.sizes("qwen3-next")
    arguments = stages.tokens(of, 131_073, DEVICE) | stages.weights(of, DEVICE)
    output = torch.full_like(arguments["hidden_states"], 7, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="^routing_logits: .*131073"):
        run(built("qwen3-next"), of, arguments, output)
    assert (output == 7).all()


@pytest.mark.parametrize(
    ("solution", "option"), [("hopper_fused", 3), ("mma_fused", -1), ("mma_fused", 2**32 + 1)]
)
def test_an_option_out_of_range_is_refused(solution, option):
    """Kernels for h in two parts without their scales, or a grid cut to 32
    bits.
    """
    of, arguments = drawn("full", 300 if solution == "hopper_fused" else 5)
    kernels = sys.modules[built("full", solution)._callable.__module__]._kernels
    with pytest.raises(ValueError, match=str(option)):
        run(lambda *given: kernels.run_layer(*given, option), of, arguments)


@SOLUTIONS
@pytest.mark.parametrize("counts", [(5, 60), (60, 300), (300, 5)])
def test_layers_of_one_graph_behind_other_kernels(counts, solution):
    """Layers of a captured model that share counters, or that read before others
    wrote.

    Programmatic dependent launch lets a layer begin before the kernel in front of it has ended.
    """
    layer = built("full", solution)
    layers = [drawn("full", num_tokens, seed) for seed, num_tokens in enumerate(counts)]
    want = [run(layer, of, arguments) for of, arguments in layers]
    sources = [arguments["routing_logits"].clone() for _, arguments in layers]
    outputs = [torch.empty_like(output) for output in want]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for (of, arguments), source, output in zip(layers, sources, outputs, strict=True):
            output.fill_(torch.nan)
            arguments["routing_logits"].copy_(source)
            run(layer, of, arguments, output)
    for replay in range(20):
        for _, arguments in layers:
            arguments["routing_logits"].fill_(torch.nan)
        graph.replay()
        for output, right in zip(outputs, want, strict=True):
            assert torch.equal(output, right), f"replay {replay}"
