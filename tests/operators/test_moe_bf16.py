"""The bf16 layer's definition and workloads, and that they are kept apart from the FP8 layer's."""

import committed_workloads
import numpy as np
import pytest
import torch
from every_solution import relative_error
from layer_inputs import arguments
from moebench.operators import catalogue, moe_bf16, workloads
from moebench.operators.roofline import CEILINGS, MEASURED_ON
from moebench.packing import manifest, pack

SOLUTIONS = ("align_fused_bf16", "gather_scatter_bf16", "torch_grouped_bf16")

# ---- the definition ----


def test_reference_computes_what_the_definition_describes():
    inputs = arguments("bf16_small", 5, "cpu")
    del inputs["output"]
    x, ids, *others = inputs.values()
    x = x.double()
    weights, w13, w2 = (tensor.double() for tensor in others)

    expected = torch.zeros_like(x)
    for token, slot in np.ndindex(*ids.shape):
        expert = ids[token, slot]
        gate, up = (w13[expert] @ x[token]).chunk(2)
        h = gate * torch.sigmoid(gate) * up
        y = w2[expert] @ h
        expected[token] += weights[token, slot] * y

    # bf16 rounds to 2^-9
    assert relative_error(moe_bf16.run(**inputs), expected) < 4e-3


LAYER = catalogue.operator("bf16")

# ---- one harness for several operators ----


def test_solutions_go_with_their_operator():
    bf16 = set(manifest.solutions_of(moe_bf16.LAYER_SIZES))
    fp8_keys = {*catalogue.fp8_moe(), *catalogue.routed(), *catalogue.mxfp4()}
    assert bf16.issuperset(SOLUTIONS)
    assert bf16.isdisjoint(manifest.solutions_of(fp8_keys))
    assert fp8_keys.issuperset(manifest.read_manifest("triton_fused_v2").definitions)
    assert set(pack.pack(SOLUTIONS[0])) == set(moe_bf16.LAYER_SIZES)


# ---- workloads ----


def expected_active(seq_len):
    """Active experts if all were equally popular: an upper bound on the average of any routing."""
    share_without = (1 - 8 / 128) ** seq_len
    return 128 * (1 - share_without)


CASES = workloads.cases_by_uuid("bf16").values()
NAMES = [case.name for case in CASES]
each_case = pytest.mark.parametrize("case", CASES, ids=NAMES)


def routing_of(case):
    """Return a workload's ids and weights, [T, 8]."""
    ids, weights = LAYER.tensors(case).values()
    return ids.numpy(), weights.numpy()


@each_case
def test_each_token_has_distinct_experts_and_weights_that_sum_to_one(case):
    ids, weights = routing_of(case)
    in_order = np.sort(ids)
    distances = np.diff(in_order)
    assert distances.min() > 0
    assert ids.min() >= 0
    assert ids.max() < 128

    increases = np.diff(weights)
    assert np.allclose(weights.sum(1), 1, atol=1e-6)
    assert weights.min() > 0
    assert increases.max() <= 0


@each_case
def test_experts_differ_in_popularity_as_a_trained_routers(case):
    ids, _ = routing_of(case)
    rows = np.bincount(ids.ravel(), minlength=128)
    num_active = np.count_nonzero(rows)
    assert len(rows) == 128
    assert num_active >= 0.75 * expected_active(case.seq_len)
    if case.seq_len >= 1024:
        popularity = rows / rows.mean()
        low, high = np.quantile(popularity, [0.05, 0.95])
        assert 0.05 < low < 0.5
        assert 1.8 < high < 4


def test_bound_is_the_weights_up_to_many_tokens():
    """The figure that every ratio to the bound hangs on: 9.4 MB an active expert, and the FLOPs."""
    weights = 3 * 768 * 2048  # of an expert
    rates = CEILINGS[MEASURED_ON]
    for case in CASES:
        bound = committed_workloads.bound("bf16", case.uuid)
        pairs = 8 * case.seq_len
        assert bound.flops == 2 * pairs * weights
        if case.seq_len <= 512:
            weight_bytes = 2 * bound.active * weights
            read_ms = weight_bytes / rates["bytes"] * 1e3
            assert bound.ms == pytest.approx(read_ms, rel=0.02)
    assert bound.ms == bound.flops / rates["bf16"] * 1e3


def test_counts_name_ids_of_the_wrong_width():
    line = r"expert_ids: got shape \(3, 4\), want \[T, 8\]"
    with pytest.raises(ValueError, match=line):
        LAYER.counts(None, {"expert_ids": torch.zeros(3, 4, dtype=torch.int32)}, "bf16")
