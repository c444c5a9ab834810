"""Shared experts: the last of a rank's, which every token takes on one of the ranks."""

import pytest
import torch
from every_solution import relative_error
from layer_inputs import arguments, halves_swapped, reference
from moebench.models.expected_bound import expected_bound
from moebench.models.layer import layers
from moebench.operators import catalogue
from moebench.operators.fp8.layer import append_shared_experts
from moebench.operators.fp8.reference import dequantize, local_experts
from moebench.operators.layers import expert_ranks, has_all_experts, routed_experts
from packed_sources import packed_texts

SHARED = {
    "deepseek-v3-ep8-shared": ("DeepSeek-V3 EP8 + shared", 8, 32),
    "deepseek-v3-tp8-shared": ("DeepSeek-V3 TP8 + shared", 1, 256),
}
EXPERT_INPUTS = ("gemm1_weights", "gemm1_weights_scale", "gemm2_weights", "gemm2_weights_scale")
TOKENS = 20
RANKS = 8
FACTOR = 2.5


def inputs_of(layer_key, offset=64):
    inputs = arguments(layer_key, TOKENS, offset=offset)
    del inputs["output"]
    return inputs


def shared_expert(inputs):
    """Return what the last expert alone makes of every token, [T, H] float32."""
    last = [inputs[name][-1:] for name in EXPERT_INPUTS]
    x = dequantize(inputs["hidden_states"], inputs["hidden_states_scale"].t(), 1)
    nothing_else = torch.zeros(TOKENS, 1, dtype=torch.int64, device=x.device)
    ones = torch.ones(TOKENS, 1, device=x.device)
    return local_experts(x, *last, nothing_else, ones).float()


@pytest.mark.parametrize("key", SHARED)
def test_a_rank_has_the_shared_expert_behind_those_that_the_router_knows(key):
    name, ranks, num_routed = SHARED[key]
    sizes = catalogue.layer_sizes()[key]
    assert (routed_experts(sizes), sizes["num_local_experts"]) == (num_routed, num_routed + 1)
    assert expert_ranks(sizes) == ranks
    assert has_all_experts(sizes) == (ranks == 1)
    assert [layer.name for layer in layers() if layer.key == key] == [name]

    definition = catalogue.definition(key)
    assert definition.axes["num_shared_experts"].value == 1
    assert definition.axes["num_experts"].value == 256
    shapes = definition.get_input_shapes({"seq_len": 1})
    assert dict(zip(definition.inputs, shapes, strict=True))["gemm2_weights"][0] == num_routed + 1


def test_the_arguments_are_those_of_the_layer_without():
    with_shared = catalogue.definition("small-shared")
    assert list(with_shared.inputs) == list(catalogue.definition("small").inputs)


@pytest.mark.parametrize("factor", [0.0, 1.0, FACTOR])
def test_the_shared_expert_is_added_unscaled_for_the_ranks_own_tokens(factor):
    """Beside what the layer without it computes."""
    inputs = inputs_of("small-shared") | {"routed_scaling_factor": factor}
    output = reference("small-shared").run(**inputs)

    without = inputs | {name: inputs[name][:-1] for name in EXPERT_INPUTS}
    expected = reference("small").run(**without).float()
    rank = inputs["local_expert_offset"] // 32
    expected[rank::RANKS] += shared_expert(inputs)[rank::RANKS]
    assert relative_error(output, expected) < 5e-3


def test_ranks_outputs_add_up_to_one_shared_expert_of_every_token():
    inputs = inputs_of("small-shared") | {"routed_scaling_factor": 0.0}
    total = torch.zeros(inputs["hidden_states"].shape, device=inputs["hidden_states"].device)
    for rank in range(RANKS):
        on_rank = inputs | {"local_expert_offset": 32 * rank}
        total += reference("small-shared").run(**on_rank).float()
    assert relative_error(total, shared_expert(inputs)) < 1e-3


@pytest.mark.parametrize("offset", [0, 77, 224])
def test_behind_a_router_it_is_a_layer_like_others(offset):
    """With one slot more, gate ahead of up, and scales row by row."""
    inputs = inputs_of("small-shared", offset)
    sizes = catalogue.layer_sizes()["small-shared"]
    logits = inputs.pop("routing_logits")
    bias = inputs.pop("routing_bias")
    ids, weights = catalogue.router("small-shared")(logits, bias, FACTOR)
    given = {"topk_ids": ids.int(), "topk_weights": weights}
    append_shared_experts(given, offset, sizes, "seed")
    assert given["topk_ids"].shape == given["topk_weights"].shape == (TOKENS, 9)

    expected = reference("small-shared").run(logits, bias, **inputs)
    del inputs["routed_scaling_factor"]
    turned = {}
    for name in ("gemm1_weights", "gemm1_weights_scale"):
        turned[name] = halves_swapped(inputs[name])
    turned["hidden_states_scale"] = inputs["hidden_states_scale"].t().contiguous()
    output = reference("small-shared-routed").run(**inputs | turned | given)
    assert relative_error(output, expected) < 5e-3


def test_a_gate_is_a_weight_of_the_last_slot():
    """Qwen3-Next's: one GPU has all of its part of the experts, so every token has a gate."""
    key = "qwen3-next-shared-routed"
    case = next(case for case in catalogue.ROUTED.cases(key) if case.seq_len == 64)
    tensors = catalogue.ROUTED.tensors(case)
    ids = tensors["topk_ids"]
    weights = tensors["topk_weights"]
    assert (ids[:, -1] == 128).all()
    assert (ids[:, :-1] < 128).all()

    gate = weights[:, -1]
    assert ((gate > 0) & (gate < 1)).all()
    assert gate.std() > 0.1
    assert torch.allclose(weights[:, :-1].sum(1), torch.ones(64))

    definition = catalogue.definition(key)
    assert (definition.axes["top_k"].value, definition.axes["num_local_experts"].value) == (11, 129)
    assert "num_shared_experts" not in definition.axes
    assert "qwen3-next-shared" not in catalogue.layer_sizes()  # a gate is no input beside a router


def test_the_bound_grows_by_the_bytes_of_one_expert():
    sizes = catalogue.layer_sizes()["deepseek-v3-tp8-shared"]
    without = catalogue.layer_sizes()["deepseek-v3-tp8"]
    more = expected_bound(1, sizes).active - expected_bound(1, without).active
    assert more == pytest.approx(1)

    operator = catalogue.operator("deepseek-v3-ep8-shared")
    case = operator.cases("deepseek-v3-ep8-shared")[0]
    counts = operator.counts(
        operator.record(case).workload, operator.tensors(case), "deepseek-v3-ep8-shared"
    )
    assert counts.active >= 2
    assert counts.rows == counts.active  # of one token


def test_kernels_get_the_number_as_a_constant():
    for key, number in (("deepseek-v3-ep8-shared", 1), ("full", 0)):
        texts = packed_texts("mma_fused", key)
        assert f"kNumSharedExperts = {number};" in texts["common/cuda/layer/problem.cuh"]
        assert f"NUM_SHARED_EXPERTS = {number}\n" in texts["common/host/problem.py"]
