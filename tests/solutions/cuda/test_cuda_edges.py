"""The CUDA solutions where the choice of experts is not clear, on two host threads, and beyond a
limit.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import product

import pytest
import stage_inputs
import stage_references
import torch
from every_solution import assert_close, assert_same_bits, built
from layer_inputs import WEIGHTS_AND_SCALES, reference

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
# eight groups, one; all experts local
DS = ("full", "kimi-k2-ep8", "glm-5.3-flash-ep8")
RENORM = ("qwen3-next",)
CLAMPED = ("glm-5.3-flash-ep8", "step-3.5-flash-ep8-routed", "minimax-m3-ep8")

# One launch without and with a grid barrier, four launches; of mma_fused the one launch alone.
REGIMES = [
    ("hopper_fused", 5),
    ("hopper_fused", 60),
    ("hopper_fused", 300),
    ("mma_fused", 5),
    ("mma_fused", 60),
    ("mma_fused", 256),
]
every_regime = pytest.mark.parametrize(("solution", "num_tokens"), REGIMES)


@cache
def layer_of(layer_key, solution="hopper_fused"):
    return built(solution, layer_key)


def random_arguments(sizes, num_tokens, seed=0):
    """Return random arguments by name; the rank has the first experts, which win ties."""
    arguments = stage_inputs.tokens(sizes, num_tokens, DEVICE, seed)
    arguments |= stage_inputs.weights(sizes, DEVICE, seed)
    return arguments | {"local_expert_offset": 0}


def run(layer, sizes, arguments, output=None):
    if output is None:
        output = torch.full_like(
            arguments["hidden_states"], torch.nan, dtype=torch.bfloat16
        )
    values = [arguments[name] for name in stage_inputs.names(sizes)]
    layer(*values, output)
    return output


# ---- the choice of experts ----


def first_of_equals(values, count):
    """Return [..., count] indices of the largest; of equal ones the first, and NaN before all."""
    order = values.sort(dim=-1, descending=True, stable=True).indices
    return order[..., :count]


def choose_renorm(sizes, arguments):
    """Return experts and weights, [T, top_k]; of equal experts the lower one."""
    logits = arguments["routing_logits"].float()
    experts = first_of_equals(logits, sizes["top_k"])
    return experts, logits.gather(1, experts).softmax(-1)


def choose_by_groups(sizes, arguments):
    """Return experts and weights, [T, top_k]; of equal groups and experts the lower one."""
    scores = torch.sigmoid(arguments["routing_logits"].float())
    choice = scores + arguments["routing_bias"].float()
    open_choice = choice.masked_fill(in_closed_groups(sizes, choice), -torch.inf)
    experts = first_of_equals(open_choice, sizes["top_k"])

    weights = scores.gather(1, experts)
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return experts, weights * arguments["routed_scaling_factor"]


def in_closed_groups(sizes, choice):
    """Return [T, experts] bool: which experts are in no group that is kept."""
    groups = choice.unflatten(1, (sizes["num_groups"], -1))
    scores = groups.topk(2, dim=-1).values.sum(-1)
    kept = first_of_equals(scores, sizes["kept_groups"])
    closed = torch.ones_like(scores, dtype=torch.bool).scatter(1, kept, False)
    return closed.repeat_interleave(groups.shape[-1], 1)


def expected_output(layer_key, sizes, arguments):
    """Return the layer's output where of equal groups and of equal experts the lower one is
    chosen.
    """
    definition = reference(layer_key)
    choose = choose_renorm if sizes["renorm"] else choose_by_groups
    experts, weights = choose(sizes, arguments)
    local = experts - arguments["local_expert_offset"]
    x_scale = arguments["hidden_states_scale"].t()
    x = definition.dequantize(arguments["hidden_states"], x_scale, row_block=1)
    operands = [arguments[name] for name in WEIGHTS_AND_SCALES]
    return definition.local_experts(x, *operands, local, weights)


def all_equal(logits, bias):
    logits.zero_()
    bias.zero_()


def equal_pairs(logits, bias):
    logits[:, 1::2] = logits[:, ::2]
    logits[:, 0] = 8  # alone, so that one of a pair is the last to be chosen
    bias.zero_()


def bias_undoes_a_difference(logits, bias):
    """Make sigmoids 0.5, 1 and 0 with a bias of 0.5, 0 and 1: every expert's choice is 1, and their
    weights differ.
    """
    logits[:, 0::3] = 0.0
    logits[:, 1::3] = torch.inf
    logits[:, 2::3] = -torch.inf
    bias[0::3] = 0.5
    bias[1::3] = 0.0
    bias[2::3] = 1.0


def infinite_logits(logits, bias):
    logits[0] = torch.inf
    logits[1] = -torch.inf
    logits[2, ::2] = -torch.inf
    logits[3, 1::2] = torch.inf


SPOILT_LOGITS = [all_equal, equal_pairs]
SPOILT_BY_GROUPS = [*SPOILT_LOGITS, bias_undoes_a_difference, infinite_logits]
TIES = [*product(RENORM, SPOILT_LOGITS), *product(DS, SPOILT_BY_GROUPS)]


@every_regime
@pytest.mark.parametrize(("layer_key", "spoil"), TIES)
def test_the_lower_of_equal_experts_is_chosen(layer_key, spoil, solution, num_tokens):
    """Catches a token with an expert fewer or one twice, where logits are equal, as in padding."""
    sizes = stage_inputs.sizes(layer_key)
    arguments = random_arguments(sizes, num_tokens)
    spoil(arguments["routing_logits"], arguments["routing_bias"])

    output = run(layer_of(layer_key, solution), sizes, arguments)

    assert_close(output, expected_output(layer_key, sizes, arguments))


@every_regime
@pytest.mark.parametrize("layer_key", [*DS, *RENORM])
def test_nan_logits_spoil_their_token_only(layer_key, solution, num_tokens):
    """Catches a hang, reads out of bounds or wrong other tokens after one bad router output."""
    sizes = stage_inputs.sizes(layer_key)
    arguments = random_arguments(sizes, num_tokens)
    logits = arguments["routing_logits"]
    spoilt = torch.zeros(num_tokens, dtype=torch.bool, device=DEVICE)
    logits[1, 3] = torch.nan
    logits[2] = torch.nan
    spoilt[1:3] = True
    if sizes["renorm"]:
        logits[3, 4] = torch.inf  # the softmax of an infinite logit is NaN
        spoilt[3] = True

    output = run(layer_of(layer_key, solution), sizes, arguments)

    expected = expected_output(layer_key, sizes, arguments)
    assert_close(output[~spoilt], expected[~spoilt])
    is_nan = output[spoilt].isnan()
    assert (is_nan.all(1) | ~is_nan.any(1)).all(), "part of a row is NaN"
    if sizes["num_groups"] == 1:  # else a group that has a NaN need not be kept
        assert is_nan.all()


@every_regime
@pytest.mark.parametrize("layer_key", CLAMPED)
def test_nan_passes_the_clamp(layer_key, solution, num_tokens):
    """Catches a NaN that becomes the limit, and with it a wrong token that looks right."""
    sizes = stage_inputs.sizes(layer_key)
    arguments = random_arguments(sizes, num_tokens)
    stage_inputs.token_scales(sizes, arguments)[1] = torch.nan
    chosen, _ = stage_references.reference_choice(sizes, arguments)

    is_nan = run(layer_of(layer_key, solution), sizes, arguments).isnan()

    assert is_nan[1].all() == chosen[1].any()
    assert not is_nan[0].any()
    assert not is_nan[2:].any()


# ---- threads and graphs ----

CALLS = 30
THREADS = [
    ("hopper_fused", (300, 300)),
    ("hopper_fused", (80, 80)),
    ("hopper_fused", (80, 300)),
    ("mma_fused", (5, 80)),
    ("mma_fused", (80, 80)),
]


class Caller:
    """Calls of a layer on a stream, whose outputs are kept."""

    def __init__(self, layer, sizes, arguments, stream):
        self.layer = layer
        self.sizes = sizes
        self.arguments = arguments
        self.stream = stream
        self.expected = run(layer, sizes, arguments)

    def call(self, ready):
        """Return the outputs of many calls, which begin as the other thread's do."""
        torch.cuda.synchronize()
        ready.wait()
        with torch.cuda.stream(self.stream):
            return [run(self.layer, self.sizes, self.arguments) for _ in range(CALLS)]


@pytest.mark.parametrize(("solution", "counts"), THREADS)
@pytest.mark.parametrize("shared", [False, True], ids=["two streams", "one stream"])
@pytest.mark.parametrize("layer_key", ["full", "qwen3-next"])
def test_two_host_threads(layer_key, shared, solution, counts):
    """Catches wrong sums when launches of two threads mix, as calls do not hold Python's lock."""
    layer = layer_of(layer_key, solution)
    sizes = stage_inputs.sizes(layer_key)
    weights = stage_inputs.weights(sizes, DEVICE)
    stream = torch.cuda.Stream()
    callers = []
    for seed, num_tokens in enumerate(counts):
        arguments = stage_inputs.tokens(sizes, num_tokens, DEVICE, seed) | weights
        callers.append(Caller(layer, sizes, arguments, stream))
        if not shared:
            stream = torch.cuda.Stream()

    ready = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        outputs = list(pool.map(lambda caller: caller.call(ready), callers))
    torch.cuda.synchronize()

    for caller, caller_outputs in zip(callers, outputs, strict=True):
        for number, output in enumerate(caller_outputs):
            assert_same_bits(output, caller.expected, f"T={len(output)}, call {number}")


@pytest.mark.parametrize("solution", ["hopper_fused", "mma_fused"])
@pytest.mark.parametrize("counts", [(5, 60), (60, 300), (300, 5)])
def test_layers_of_one_graph_behind_other_kernels(counts, solution):
    """Catches layers of a model's graph that share counters, or that read before others wrote.

    Programmatic dependent launch lets a layer begin before the kernel in front of it has ended.
    """
    layer = layer_of("full", solution)
    sizes = stage_inputs.sizes("full")
    calls = []
    for seed, num_tokens in enumerate(counts):
        arguments = random_arguments(sizes, num_tokens, seed)
        logits = arguments["routing_logits"].clone()
        expected = run(layer, sizes, arguments)
        calls.append(CapturedCall(arguments, logits, expected))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call.output.fill_(torch.nan)
            call.arguments["routing_logits"].copy_(call.logits)
            run(layer, sizes, call.arguments, call.output)

    for replay in range(20):
        for call in calls:
            call.arguments["routing_logits"].fill_(torch.nan)
        graph.replay()
        for call in calls:
            label = f"replay {replay}, T={len(call.output)}"
            assert_same_bits(call.output, call.expected, label)


@dataclass
class CapturedCall:
    """A layer of a graph: its logits are copied into its arguments just before it."""

    arguments: dict
    logits: torch.Tensor
    expected: torch.Tensor

    def __post_init__(self):
        self.output = torch.empty_like(self.expected)


# ---- what is refused ----


def test_more_tokens_than_the_limit_are_refused():
    """Catches shared memory or 32-bit offsets that overflow at another model's sizes."""
    sizes = stage_inputs.sizes("qwen3-next")
    arguments = random_arguments(sizes, 131_073)
    output = torch.full_like(arguments["hidden_states"], 7, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="^routing_logits: .*131073"):
        run(layer_of("qwen3-next"), sizes, arguments, output)
    assert (output == 7).all()


@pytest.mark.parametrize(
    ("solution", "num_tokens", "option"),
    [("hopper_fused", 300, 3), ("mma_fused", 5, -1), ("mma_fused", 5, 2**32 + 1)],
)
def test_an_option_out_of_range_is_refused(solution, num_tokens, option):
    """Catches kernels for h in two parts without their scales, or a grid cut to 32 bits."""
    sizes = stage_inputs.sizes("full")
    arguments = random_arguments(sizes, num_tokens)
    kernels = sys.modules[layer_of("full", solution)._callable.__module__]._kernels
    with pytest.raises(ValueError, match=str(option)):
        run(lambda *values: kernels.run_layer(*values, option), sizes, arguments)
