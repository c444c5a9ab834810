"""MXFP4 experts: the reference, the sizes and the workloads."""

import committed_workloads
import pytest
import torch
from every_solution import expected_output, relative_error
from layer_inputs import arguments
from moebench.operators import catalogue
from moebench.operators.fp8 import mxfp4 as family

SMALL = "small-mxfp4"  # a rank with 16 of 32 experts
NUM_LOCAL_EXPERTS = 16
FIRST_EXPERT = 16
FLASH = "deepseek-v4-flash-mxfp4"


def e2m1_by_hand(code):
    """Return the value of a 4-bit code by E2M1's rule: bias 1, one bit of mantissa, subnormals."""
    sign = -1.0 if code & 8 else 1.0
    exponent = code >> 1 & 3
    mantissa = code & 1
    if exponent == 0:
        return sign * mantissa / 2
    return sign * (1 + mantissa / 2) * 2.0 ** (exponent - 1)


# ---- the reference ----


def test_every_code_is_dequantised_right_at_every_scale():
    """Catches halves of a byte exchanged, and a scale that is off by one power."""
    codes = []
    for byte in range(256):
        low = e2m1_by_hand(byte & 15)
        high = e2m1_by_hand(byte >> 4)
        codes += [low, high]

    # row n has all codes, and the scale byte n in each of its groups of 32
    all_bytes = torch.arange(256, dtype=torch.uint8).view(torch.int8)
    packed = all_bytes.repeat(256, 1)
    groups = len(codes) // 32
    scales = all_bytes.unsqueeze(1).repeat(1, groups)
    values = family.dequantize_mxfp4(packed, scales)

    exponents = torch.arange(-127, 128, dtype=torch.float64)
    expected = exponents.exp2().outer(torch.tensor(codes).double())
    *finite, stands_for_nan = values
    assert torch.equal(torch.stack(finite), expected.float())
    assert stands_for_nan.isnan().all()


def expert_output(x, inputs, expert):
    """Return what an expert makes of one token x [H] by the definition's description, in fp64."""
    matrices = {}
    for name in ("gemm1_weights", "gemm2_weights"):
        scales = inputs[f"{name}_scale"][expert]
        matrices[name] = family.dequantize_mxfp4(inputs[name][expert], scales).double()

    gate, up = (matrices["gemm1_weights"] @ x).chunk(2)
    gate = gate.clamp(max=10)
    up = up.clamp(-10, 10)
    h = gate * torch.sigmoid(gate) * up
    return matrices["gemm2_weights"] @ h


def test_the_reference_computes_what_the_definition_describes():
    """Catches gate and up exchanged, a clamp left out, and a scale of another group."""
    inputs = arguments(SMALL, 5, "cpu", offset=FIRST_EXPERT)
    scales = inputs["hidden_states_scale"].double().repeat_interleave(128, 1)
    x = inputs["hidden_states"].double() * scales

    expected = torch.zeros_like(x)
    local = inputs["topk_ids"] - FIRST_EXPERT
    is_local = (local >= 0) & (local < NUM_LOCAL_EXPERTS)
    for token, slot in is_local.nonzero():
        row = expert_output(x[token], inputs, local[token, slot])
        expected[token] += inputs["topk_weights"][token, slot] * row

    assert expected.any()
    assert relative_error(expected_output(SMALL, inputs), expected) < 4e-3


# ---- sizes ----


# ---- workloads ----


def test_bound_counts_half_a_byte_a_weight_and_a_byte_of_scale_for_32():
    num_tokens = 64
    cases = {case.seq_len: case for case in catalogue.MXFP4.cases(FLASH)}
    bound = committed_workloads.bound(FLASH, cases[num_tokens].uuid)

    weights = 3 * 2048 * 4096  # of an expert
    expert_bytes = weights / 2 + weights / 32
    pairs = 6 * num_tokens  # of a token and one of its experts
    assert bound.bytes == pytest.approx(bound.active * expert_bytes, rel=1e-3)
    assert bound.flops == 2 * pairs * weights
