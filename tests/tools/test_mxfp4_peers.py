"""tools/mxfp4_peers: the FP8 layer that stands beside MXFP4 ones has the same weights."""

import importlib.util

import pytest
import torch
from layer_inputs import reference
from moebench.core import paths
from moebench.judging.calling import seeded_inputs
from moebench.operators import catalogue
from moebench.operators.fp8 import mxfp4
from moebench.operators.fp8.reference import dequantize

spec = importlib.util.spec_from_file_location("mxfp4_peers", paths.ROOT / "tools/mxfp4_peers.py")
peers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(peers)

SMALL = "small-mxfp4"


def inputs_of(case):
    stored = catalogue.MXFP4.tensors(case)
    with_scales = catalogue.MXFP4.case_with_scales(case)
    stored |= mxfp4.weight_scales(with_scales)
    full = catalogue.definition(SMALL)
    (values,) = seeded_inputs(full, catalogue.MXFP4.record(case).workload, 1, "cpu", stored)
    return dict(zip(full.inputs, values, strict=True))


def test_weights_of_the_workloads_are_exact_in_fp8():
    case = next(each for each in catalogue.MXFP4.cases(SMALL) if each.name == "odd-length")
    inputs = inputs_of(case)
    converted = peers.as_fp8(inputs)

    mxfp4 = reference(SMALL)
    for gemm in ("gemm1_weights", "gemm2_weights"):
        values = dequantize(converted[gemm], converted[f"{gemm}_scale"], row_block=128)
        for expert in range(len(values)):
            scales = inputs[f"{gemm}_scale"][expert]
            assert torch.equal(values[expert], mxfp4.dequantize_mxfp4(inputs[gemm][expert], scales))


def test_scales_that_no_fp8_block_holds_are_refused():
    case = next(each for each in catalogue.MXFP4.cases(SMALL) if each.scales == "harsh")
    with pytest.raises(ValueError, match="expert 0, gemm1_weights: block"):
        peers.as_fp8(inputs_of(case))


def test_the_fp8_layer_has_the_same_sizes():
    assert peers.fp8_key_of("deepseek-v4-flash-mxfp4") == "deepseek-v4-flash-routed"
    assert peers.fp8_key_of("deepseek-v4-pro-ep8-mxfp4") == "deepseek-v4-pro-ep8-routed"
    assert peers.fp8_key_of("deepseek-v4-flash-tp4-mxfp4") is None
