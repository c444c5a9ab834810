"""The bf16 layer's reference, and the bound of its workloads."""

import committed_workloads
import numpy as np
import pytest
import torch
from every_solution import relative_error
from layer_inputs import arguments
from moebench.operators import catalogue, moe_bf16, workloads
from moebench.operators.roofline import CEILINGS, MEASURED_ON

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

# ---- workloads ----


CASES = workloads.cases_by_uuid("bf16").values()


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
