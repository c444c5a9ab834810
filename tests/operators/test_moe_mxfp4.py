"""MXFP4 experts: the reference, the sizes and the workloads."""

import math

import committed_workloads
import pytest
import torch
from every_solution import expected_output
from layer_inputs import arguments
from moebench.operators import catalogue, workloads
from moebench.operators import moe_mxfp4_fp8_routed as family

SMALL = "small-mxfp4"
FLASH = "deepseek-v4-flash-mxfp4"


def e2m1_by_hand(code):
    """A value of E2M1 by the format's rule: bias 1, one bit of mantissa, subnormals."""
    sign = -1.0 if code & 8 else 1.0
    exponent = code >> 1 & 3
    mantissa = code & 1
    if exponent == 0:
        return sign * mantissa / 2
    return sign * (1 + mantissa / 2) * 2.0 ** (exponent - 1)


# ---- the reference ----


def test_every_code_at_every_scale():
    """A user would miss: halves of a byte exchanged, or a scale that is off by one."""
    packed = torch.arange(256, dtype=torch.uint8).view(16, 16)
    values = torch.tensor([e2m1_by_hand(b & 15) for b in range(256)])
    highs = torch.tensor([e2m1_by_hand(b >> 4) for b in range(256)])
    pairs = torch.stack([values, highs], 1).view(16, 32).double()
    for byte in range(255):
        scales = torch.full((16, 1), byte, dtype=torch.uint8).view(torch.int8)
        got = family.dequantize_mxfp4(packed.view(torch.int8), scales)
        assert torch.equal(got, (pairs * 2.0 ** (byte - 127)).float()), byte
    assert family.dequantize_mxfp4(packed, torch.full((16, 1), 255).byte()).isnan().all()


def test_it_computes_what_the_definition_describes():
    """A user would miss: gate and up exchanged, a clamp left out, a scale of another group."""
    given = arguments(SMALL, 5, "cpu", offset=16)
    x = given["hidden_states"].double()
    x *= given["hidden_states_scale"].double().repeat_interleave(128, 1)
    inter = catalogue.layer_sizes()[SMALL]["intermediate_size"]
    expected = torch.zeros_like(x)
    for token in range(len(x)):
        for slot, expert in enumerate(given["topk_ids"][token].long() - 16):
            if not 0 <= expert < 16:
                continue
            first, second = (
                family.dequantize_mxfp4(
                    given[name][expert], given[f"{name}_scale"][expert]
                ).double()
                for name in ("gemm1_weights", "gemm2_weights")
            )
            gate = (first[:inter] @ x[token]).clamp(max=10)
            up = (first[inter:] @ x[token]).clamp(-10, 10)
            row = second @ (gate * torch.sigmoid(gate) * up)
            expected[token] += given["topk_weights"][token, slot] * row
    output = expected_output(SMALL, given).double()
    assert expected.any() and (output - expected).norm() / expected.norm() < 4e-3


# ---- sizes ----


def test_sizes_are_the_models_and_its_shards():
    named = {key: catalogue.definition_name(key).split("_routed_")[1] for key in catalogue.mxfp4()}
    assert named == {
        "deepseek-v4-flash-mxfp4": "topk6_e256_h4096_i2048_clamp10",
        "deepseek-v4-flash-ep8-mxfp4": "topk6_e32_h4096_i2048_clamp10",
        "deepseek-v4-flash-tp4-mxfp4": "topk6_e256_h4096_i512_clamp10",
        "deepseek-v4-pro-ep8-mxfp4": "topk6_e48_h7168_i3072_clamp10",
        SMALL: "topk6_e16_h640_i384_clamp10",
    }


# ---- workloads ----


def test_typical_scales_lie_in_one_file():
    """A user would miss: 200 MB a workload, or scales that differ from workload to workload."""
    recorded = workloads.recorded(FLASH)
    for name in family.SCALES:
        assert len({workload.inputs[name].path for workload in recorded}) == 1
    assert len({workload.inputs["topk_ids"].path for workload in recorded}) == len(recorded)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Case name -> its stored tensors, generated anew and checked against the committed sums."""
    root = committed_workloads.make_below(tmp_path_factory.mktemp("data_set"), SMALL)
    names = {case.uuid: case.name for case in family.cases(SMALL)}
    return {
        names[workload.uuid]: workloads.stored_tensors(workload, root)
        for workload in workloads.recorded(SMALL)
    }


def test_hard_cases_are_as_hard_as_they_say(stored):
    harsh = stored["harsh-scales"]["gemm1_weights_scale"].view(torch.uint8).int()
    by_block = harsh.unfold(-1, 4, 4)
    assert (by_block.amax(-1) - by_block.amin(-1) > 13).any() and (harsh == 0).any()
    typical = stored["odd-length"]["gemm1_weights_scale"].view(torch.uint8)
    assert typical.unique().tolist() == [120, 121, 122]
    ids = stored["slots-without-expert"]["topk_ids"]
    assert (ids == -1).any() and (ids == 32).any() and (ids[2, 0] == ids[2, -1])


def test_bound_is_half_a_byte_and_a_scale_for_each_weight():
    case = next(case for case in family.cases(FLASH) if case.seq_len == 64)
    least = committed_workloads.bound(FLASH, case.uuid)
    weights = least.active * 3 * 2048 * 4096
    assert math.isclose(least.bytes, weights * 17 / 32, rel_tol=1e-3)
    assert least.flops == 2 * 6 * 64 * 3 * 2048 * 4096
