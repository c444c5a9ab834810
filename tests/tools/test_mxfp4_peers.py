"""tools/mxfp4_peers, which times FP8 solutions beside MXFP4 ones: they get the same weights and the
same sizes.
"""

import importlib.util
from argparse import Namespace

import pytest
import torch
from layer_inputs import reference
from moebench.core import paths
from moebench.judging.calling import seeded_inputs
from moebench.operators import catalogue
from moebench.operators.fp8 import mxfp4
from moebench.operators.fp8.reference import dequantize
from moebench.reports import layer_times

spec = importlib.util.spec_from_file_location(
    "mxfp4_peers", paths.ROOT / "tools/mxfp4_peers.py"
)
peers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(peers)

SMALL = "small-mxfp4"


def inputs_of(case):
    """Return name -> input of a case, with the weights' scales, whichever case's file has them."""
    stored = catalogue.MXFP4.tensors(case)
    with_scales = catalogue.MXFP4.case_with_scales(case)
    stored |= mxfp4.weight_scales(with_scales, catalogue.MXFP4.layer_sizes()[SMALL])
    full = catalogue.definition(SMALL)
    workload = catalogue.MXFP4.record(case).workload
    (values,) = seeded_inputs(full, workload, 1, "cpu", stored)
    return dict(zip(full.inputs, values, strict=True))


def test_weights_with_typical_scales_are_exact_in_fp8():
    cases = {case.name: case for case in catalogue.MXFP4.cases(SMALL)}
    case = cases["odd-length"]
    inputs = inputs_of(case)
    converted = peers.as_fp8(inputs)

    dequantize_mxfp4 = reference(SMALL).dequantize_mxfp4
    for gemm in ("gemm1_weights", "gemm2_weights"):
        values = dequantize(converted[gemm], converted[f"{gemm}_scale"], row_block=128)
        for expert in range(len(values)):
            scales = inputs[f"{gemm}_scale"][expert]
            expected = dequantize_mxfp4(inputs[gemm][expert], scales)
            assert torch.equal(values[expert], expected)


def test_scales_too_far_apart_for_an_fp8_block_are_refused():
    case = next(each for each in catalogue.MXFP4.cases(SMALL) if each.scales == "harsh")
    with pytest.raises(ValueError, match="expert 0, gemm1_weights: block"):
        peers.as_fp8(inputs_of(case))


def test_the_fp8_layer_is_the_one_of_the_same_sizes_if_there_is_one():
    assert peers.fp8_key_of("deepseek-v4-flash-mxfp4") == "deepseek-v4-flash-routed"
    assert peers.fp8_key_of("deepseek-v4-pro-ep8-mxfp4") == "deepseek-v4-pro-ep8-routed"
    assert peers.fp8_key_of("deepseek-v4-flash-tp4-mxfp4") is None


def point(peer, relaxed):
    return layer_times.PeerPoint(
        gpu="NVIDIA H200",
        card=1,
        driver="580",
        torch="2.11.0",
        triton="3.6.0",
        date="2026-11-27",
        definition=SMALL,
        tokens=8,
        peer=peer,
        us=12.5,
        prepared_ms=0.0,
        matched={"relaxed": relaxed},
    )


def test_every_peer_that_runs_is_recorded_and_wrong_ones_are_counted(
    monkeypatch, tmp_path, capsys
):
    def fails():
        raise RuntimeError("out of memory\nmore")

    makers = {
        "right": lambda: point("right", 1.0),
        "fails": fails,
        "wrong": lambda: point("wrong", 0.5),
        "not asked for": lambda: point("not asked for", 1.0),
    }
    monkeypatch.setattr(peers, "batch_of", lambda *_: None)
    monkeypatch.setattr(peers, "peer_makers", lambda *_: makers)
    monkeypatch.setattr(peers, "point_of", lambda peer, *_: peer)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    record = tmp_path / "record.jsonl"
    names = ["right", "fails", "wrong"]

    arguments = Namespace(peers=names, card=1, record=record)
    assert peers.time_all(SMALL, 8, arguments) == 1

    kept = layer_times.read_lines(record, layer_times.PeerPoint)
    assert [each.peer for each in kept] == ["right", "wrong"]
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == names
    assert [line.endswith("WRONG") for line in lines] == [False, False, True]
