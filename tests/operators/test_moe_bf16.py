"""The bf16 layer's definition and workloads, and that they are kept apart from the FP8 layer's."""

import committed_workloads
import numpy as np
import pytest
import torch
from every_solution import relative_error
from layer_inputs import arguments as layer_arguments
from moebench.operators import catalogue, moe_bf16, workloads
from moebench.operators.roofline import CEILINGS, MEASURED_ON
from moebench.packing import manifest, pack

SOLUTIONS = ("align_fused_bf16", "gather_scatter_bf16", "torch_grouped_bf16")

# ---- the definition ----


def test_reference_computes_what_the_definition_describes():
    arguments = layer_arguments("bf16_small", 5, "cpu")
    del arguments["output"]
    x, ids, weights, w13, w2 = (tensor.double() for tensor in arguments.values())
    inter = w2.shape[2]

    wanted = torch.zeros_like(x)
    for token in range(len(x)):
        for slot, expert in enumerate(ids[token].long()):
            gate, up = (w13[expert] @ x[token]).split(inter)
            rows = w2[expert] @ (gate * torch.sigmoid(gate) * up)
            wanted[token] += weights[token, slot] * rows

    assert relative_error(moe_bf16.run(**arguments), wanted) < 4e-3  # bf16 rounds to 2^-9


LAYER = catalogue.operator("bf16")

# ---- one harness for several operators ----


def test_solutions_go_with_their_operator():
    bf16 = set(manifest.solutions_of(moe_bf16.LAYER_SIZES))
    fp8 = set(manifest.solutions_of(catalogue.SIGMOID_BIAS.layer_sizes()))
    assert set(SOLUTIONS) <= bf16
    assert not bf16 & fp8

    of_fp8_layers = {*catalogue.fp8_moe(), *catalogue.routed(), *catalogue.mxfp4()}
    assert set(manifest.read_manifest("triton_fused_v2").definitions) <= of_fp8_layers
    packed = {solution.definition for solution in pack.pack(SOLUTIONS[0]).values()}
    assert packed == {LAYER.definition_name(key) for key in moe_bf16.LAYER_SIZES}


# ---- workloads ----


def expected_active(seq_len):
    """Active experts if all were equally popular: an upper bound on the average of any routing."""
    sizes = moe_bf16.LAYER_SIZES["bf16"]
    return sizes["num_experts"] * (1 - (1 - sizes["top_k"] / sizes["num_experts"]) ** seq_len)


CASES = workloads.cases_by_uuid("bf16").values()
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@each_case
def test_each_token_has_distinct_experts_and_weights_that_sum_to_one(case):
    ids, weights = (tensor.numpy() for tensor in LAYER.tensors(case).values())
    assert (np.diff(np.sort(ids, axis=1), axis=1) > 0).all()
    assert ids.min() >= 0
    assert ids.max() < 128
    assert np.allclose(weights.sum(1), 1, atol=1e-6)
    assert (weights > 0).all()
    assert (np.diff(weights, axis=1) <= 0).all()


@each_case
def test_experts_differ_in_popularity_as_a_trained_routers(case):
    ids, _ = (tensor.numpy() for tensor in LAYER.tensors(case).values())
    active = len(np.unique(ids))
    assert 0.75 * expected_active(case.seq_len) <= active <= 128
    if case.seq_len >= 1024:
        load = np.bincount(ids.ravel(), minlength=128) / (case.seq_len / 16)
        low, high = np.quantile(load, [0.05, 0.95])
        assert 0.05 < low < 0.5
        assert 1.8 < high < 4


def test_bound_is_the_weights_up_to_many_tokens():
    """The figure that every ratio to the bound hangs on: 9.4 MB an active expert, and the FLOPs."""
    for case in CASES:
        least = committed_workloads.bound("bf16", case.uuid)
        weights = least.active * 3 * 768 * 2048 * 2
        assert least.flops == 2 * 8 * case.seq_len * 3 * 768 * 2048
        if case.seq_len <= 512:
            assert least.ms == pytest.approx(
                1e3 * weights / CEILINGS[MEASURED_ON]["bytes"], rel=0.02
            )
    assert least.ms == least.flops / CEILINGS[MEASURED_ON]["bf16"] * 1e3


def test_counts_name_ids_of_the_wrong_width():
    with pytest.raises(ValueError, match=r"expert_ids: got shape \(3, 4\), want \[T, 8\]"):
        LAYER.counts(None, {"expert_ids": torch.zeros(3, 4, dtype=torch.int32)}, "bf16")
