"""MXFP4 experts: the reference, the sizes and the workloads."""

import committed_workloads
import pytest
import torch
from every_solution import expected_output, relative_error
from layer_inputs import arguments
from moebench.operators import catalogue, workloads
from moebench.operators.fp8 import mxfp4 as family

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
    """Halves of a byte exchanged, or a scale that is off by one."""
    packed = torch.arange(256, dtype=torch.uint8).view(torch.int8)
    low_and_high = [[e2m1_by_hand(byte & 15), e2m1_by_hand(byte >> 4)] for byte in range(256)]
    codes = torch.tensor(low_and_high, dtype=torch.float64).flatten()

    bytes_of_scales = torch.arange(256, dtype=torch.uint8).unsqueeze(1)
    scales = bytes_of_scales.repeat(1, len(codes) // 32).view(torch.int8)
    values = family.dequantize_mxfp4(packed.repeat(256, 1), scales)

    powers = 2 ** (torch.arange(255, dtype=torch.float64) - 127)
    expected = powers.unsqueeze(1) * codes
    assert torch.equal(values[:255], expected.float())
    assert values[255].isnan().all()


def row_of(x, inputs, expert):
    """Return an expert's row for one token, straight from the description, in fp64."""
    matrices = {}
    for name in ("gemm1_weights", "gemm2_weights"):
        scales = inputs[f"{name}_scale"][expert]
        matrices[name] = family.dequantize_mxfp4(inputs[name][expert], scales).double()

    gate, up = (matrices["gemm1_weights"] @ x).chunk(2)
    gate = gate.clamp(max=10)
    up = up.clamp(-10, 10)
    h = gate * torch.sigmoid(gate) * up
    return matrices["gemm2_weights"] @ h


def test_it_computes_what_the_definition_describes():
    """Gate and up exchanged, a clamp left out, a scale of another group."""
    inputs = arguments(SMALL, 5, "cpu", offset=16)
    scales = inputs["hidden_states_scale"].double().repeat_interleave(128, 1)
    x = inputs["hidden_states"].double() * scales

    expected = torch.zeros_like(x)
    local = inputs["topk_ids"] - 16
    for token, slot in ((local >= 0) & (local < 16)).nonzero():
        row = row_of(x[token], inputs, local[token, slot])
        expected[token] += inputs["topk_weights"][token, slot] * row

    assert expected.any()
    assert relative_error(expected_output(SMALL, inputs), expected) < 4e-3


# ---- sizes ----


def test_sizes_are_the_models_and_its_shards():
    prefix = "moe_mxfp4_fp8_block_scale_routed_"
    sizes = {key: catalogue.definition_name(key).removeprefix(prefix) for key in catalogue.mxfp4()}
    assert sizes == {
        "deepseek-v4-flash-mxfp4": "topk6_e256_h4096_i2048_clamp10",
        "deepseek-v4-flash-ep8-mxfp4": "topk6_e32_h4096_i2048_clamp10",
        "deepseek-v4-flash-tp4-mxfp4": "topk6_e256_h4096_i512_clamp10",
        "deepseek-v4-pro-ep8-mxfp4": "topk6_e48_h7168_i3072_clamp10",
        SMALL: "topk6_e16_h640_i384_clamp10",
    }


# ---- workloads ----


def test_typical_scales_lie_in_one_file():
    """200 MB a workload, or scales that differ from workload to workload."""
    recorded = workloads.recorded(FLASH)
    for name in family.SCALES:
        assert len(files_with(name, recorded)) == 1
    assert len(files_with("topk_ids", recorded)) == len(recorded)


def files_with(name, recorded):
    """Return the files that have an input of these workloads."""
    return {workload.inputs[name].path for workload in recorded}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Case name -> its stored tensors, generated anew and checked against the committed sums."""
    root = committed_workloads.make_below(tmp_path_factory.mktemp("data_set"), SMALL)
    cases = workloads.cases_by_uuid(SMALL)
    tensors = {}
    for workload in workloads.recorded(SMALL):
        case = cases[workload.uuid]
        tensors[case.name] = workloads.stored_tensors(workload, root)
    return tensors


def test_hard_cases_are_as_hard_as_they_say(stored):
    harsh = stored["harsh-scales"]["gemm1_weights_scale"].view(torch.uint8).int()
    by_block = harsh.unfold(-1, 4, 4)
    spans = by_block.amax(-1) - by_block.amin(-1)
    assert spans.max() > 14
    assert harsh.min() == 0

    typical = stored["odd-length"]["gemm1_weights_scale"].view(torch.uint8)
    assert typical.unique().tolist() == [120, 121, 122]

    ids = stored["slots-without-expert"]["topk_ids"]
    assert (ids == -1).any()
    assert (ids == 32).any()
    assert ids[2, 0] == ids[2, -1]


def test_bound_is_half_a_byte_and_a_scale_for_each_weight():
    (case,) = [case for case in catalogue.MXFP4.cases(FLASH) if case.seq_len == 64]
    bound = committed_workloads.bound(FLASH, case.uuid)
    weights = 3 * 2048 * 4096
    assert bound.bytes == pytest.approx(bound.active * weights * 17 / 32, rel=1e-3)
    assert bound.flops == 2 * 6 * 64 * weights
