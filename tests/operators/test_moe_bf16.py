"""The bf16 layer's definition and workloads, and that they are kept apart from the FP8 layer's."""

import committed_workloads
import numpy as np
import pytest
import torch
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

    error = (moe_bf16.run(**arguments).double() - wanted).norm() / wanted.norm()
    assert error < 4e-3  # bf16 rounds to 2^-9


# ---- one harness for several operators ----


def test_solutions_go_with_their_operator():
    bf16 = set(manifest.solutions_of(moe_bf16.layer_sizes()))
    fp8 = set(manifest.solutions_of(catalogue.SIGMOID_BIAS.layer_sizes()))
    assert set(SOLUTIONS) <= bf16
    assert not bf16 & fp8

    fp8_layers = {*catalogue.fp8_moe(), *catalogue.routed(), *catalogue.mxfp4()}
    assert set(manifest.read_manifest("triton_fused_v2").definitions) <= fp8_layers
    packed = {solution.definition for solution in pack.pack(SOLUTIONS[0]).values()}
    assert packed == {moe_bf16.definition_name(key) for key in moe_bf16.layer_sizes()}


# ---- workloads ----


def expected_active(seq_len):
    """Active experts if all were equally popular: an upper bound on the average of any routing."""
    missed_by_a_token = 1 - 8 / 128
    missed_by_all = missed_by_a_token**seq_len
    return 128 * (1 - missed_by_all)


@pytest.mark.parametrize(
    "case", workloads.cases_by_uuid("bf16").values(), ids=lambda case: case.name
)
def test_routing_is_a_trained_routers(case):
    """Distinct experts, and weights that sum to one, the largest first."""
    ids, weights = moe_bf16.tensors(case).values()
    in_order, _ = ids.sort(1)
    assert (in_order.diff(dim=1) > 0).all()
    assert in_order.min() >= 0
    assert in_order.max() < 128

    assert torch.allclose(weights.sum(1), torch.ones(len(weights)), atol=1e-6)
    assert weights.min() > 0
    assert weights.diff(dim=1).max() <= 0

    active = len(ids.unique())
    assert 0.75 * expected_active(case.seq_len) <= active <= 128


def test_experts_differ_in_popularity():
    cases = [case for case in moe_bf16.cases("bf16") if case.seq_len >= 1024]
    assert cases
    for case in cases:
        ids, _ = moe_bf16.tensors(case).values()
        rows = np.bincount(ids.numpy().ravel(), minlength=128)
        load = rows / (case.seq_len * 8 / 128)
        low, high = np.quantile(load, [0.05, 0.95])
        assert 0.05 < low < 0.5
        assert 1.8 < high < 4


def test_bound_is_the_weights_up_to_many_tokens():
    """The figure that every ratio to the bound hangs on: 9.4 MB an active expert, 780 TFLOP/s."""
    for case in workloads.cases_by_uuid("bf16").values():
        least = committed_workloads.bound("bf16", case.uuid)
        expert = 3 * 768 * 2048
        assert least.flops == 2 * 8 * case.seq_len * expert
        if case.seq_len <= 512:
            weights = least.active * expert * 2
            seconds = weights / CEILINGS[MEASURED_ON]["bytes"]
            assert least.ms == pytest.approx(1e3 * seconds, rel=0.02)
    assert least.ms == least.flops / 780e12 * 1e3


def test_counts_name_ids_of_the_wrong_width():
    with pytest.raises(ValueError, match=r"expert_ids: got shape \(3, 4\), want \[T, 8\]"):
        moe_bf16.counts(None, {"expert_ids": torch.zeros(3, 4, dtype=torch.int32)}, "bf16")
