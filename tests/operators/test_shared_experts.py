"""Shared experts: the last of a rank's, which every token takes on one of the ranks."""

import pytest
import torch
from every_solution import relative_error
from layer_inputs import WEIGHTS_AND_SCALES, arguments, reference
from moebench.models.expected_bound import expected_bound
from moebench.models.layer import layer_of
from moebench.operators import catalogue, workloads
from moebench.operators.fp8.reference import dequantize, local_experts
from moebench.operators.layers import expert_ranks, routed_experts
from packed_sources import packed_texts

SHARED = {
    "deepseek-v3-ep8-shared": ("DeepSeek-V3 EP8 + shared", 8, 32),
    "deepseek-v3-tp8-shared": ("DeepSeek-V3 TP8 + shared", 1, 256),
}
TOKENS = 20
RANKS = 8


def inputs_of(layer_key):
    inputs = arguments(layer_key, TOKENS)
    del inputs["output"]
    return inputs


def shared_expert(inputs):
    """Return what the last expert alone makes of every token, [T, H] float32."""
    last = [inputs[name][-1:] for name in WEIGHTS_AND_SCALES]
    x = dequantize(inputs["hidden_states"], inputs["hidden_states_scale"].t(), 1)
    ones = torch.ones(TOKENS, 1, device=x.device)
    return local_experts(x, *last, local=torch.zeros_like(ones), weights=ones).float()


@pytest.mark.parametrize("key", SHARED)
def test_a_rank_has_the_shared_expert_behind_those_that_the_router_knows(key):
    name, ranks, num_routed = SHARED[key]
    sizes = catalogue.layer_sizes()[key]
    assert sizes["num_local_experts"] == num_routed + 1
    assert routed_experts(sizes) == num_routed
    assert expert_ranks(sizes) == ranks
    assert layer_of(key).name == name

    axes = catalogue.definition(key).axes
    assert axes["num_local_experts"].value == num_routed + 1
    assert axes["num_shared_experts"].value == 1
    assert axes["num_experts"].value == 256


def test_the_shared_expert_is_added_unscaled_for_the_ranks_own_tokens():
    """Beside what the layer without it computes, and scales."""
    inputs = inputs_of("small-shared") | {"routed_scaling_factor": 2.5}
    output = reference("small-shared").run(**inputs)

    shared_output = shared_expert(inputs)
    for name in WEIGHTS_AND_SCALES:
        inputs[name] = inputs[name][:-1]
    expected = reference("small").run(**inputs).float()
    rank = inputs["local_expert_offset"] // 32
    expected[rank::RANKS] += shared_output[rank::RANKS]
    assert relative_error(output, expected) < 5e-3


def test_ranks_outputs_add_up_to_one_shared_expert_of_every_token():
    inputs = inputs_of("small-shared") | {"routed_scaling_factor": 0.0}
    expected = shared_expert(inputs)
    total = torch.zeros_like(expected)
    for rank in range(RANKS):
        inputs["local_expert_offset"] = 32 * rank
        total += reference("small-shared").run(**inputs).float()
    assert relative_error(total, expected) < 1e-3


def test_a_gate_is_a_weight_of_the_last_slot():
    """Qwen3-Next's: one GPU has all of its part of the experts, so every token has a gate."""
    cases = catalogue.ROUTED.cases("qwen3-next-shared-routed")
    (case,) = [case for case in cases if case.seq_len == 64]
    tensors = catalogue.ROUTED.tensors(case)
    ones = torch.ones(case.seq_len)
    routed_ids, shared_ids = tensors["topk_ids"].split([10, 1], dim=1)
    weights, gate = tensors["topk_weights"].split([10, 1], dim=1)
    assert (routed_ids < 128).all()
    assert (shared_ids == 128).all()
    assert gate.min() > 0
    assert gate.max() < 1
    assert gate.std() > 0.1
    assert torch.allclose(weights.sum(1), ones)


def test_the_bound_grows_by_the_bytes_of_one_expert():
    sizes = catalogue.layer_sizes()
    bound = expected_bound(1, sizes["deepseek-v3-tp8-shared"])
    without = expected_bound(1, sizes["deepseek-v3-tp8"])
    assert bound.active == pytest.approx(without.active + 1)

    one_token, *_ = workloads.recorded_counts("deepseek-v3-ep8-shared").values()
    assert one_token.rows == one_token.active
    assert one_token.active >= 2


def test_kernels_get_the_number_as_a_constant():
    for key, number in (("deepseek-v3-ep8-shared", 1), ("full", 0)):
        texts = packed_texts("mma_fused", key)
        problem = texts["common/cuda/layer/problem.cuh"]
        assert f"kNumSharedExperts = {number};" in problem
        assert f"NUM_SHARED_EXPERTS = {number}\n" in texts["common/host/problem.py"]
