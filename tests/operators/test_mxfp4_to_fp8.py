"""MXFP4 -> FP8 in blocks of 128 x 128: the same values to the last bit, or refused with the block;
and what the scales of a checkpoint say of it.
"""

import json
from pathlib import Path

import pytest
import torch
from moebench import cli
from moebench.models import mxfp4_to_fp8
from moebench.models.mxfp4_to_fp8 import (
    MOST_SPAN,
    NotExact,
    experts_to_fp8,
    spans,
    to_fp8,
)
from moebench.operators.fp8.mxfp4 import dequantize_mxfp4
from moebench.operators.fp8.reference import dequantize
from moebench.packing.references import outline
from random_values import Draw
from safetensors.torch import save_file

ROWS = 256
COLUMNS = 384


def random_matrix(seed, lowest, highest, rows=ROWS, columns=COLUMNS):
    """Return packed codes, and scales between two exponents that both occur in each block."""
    draw = Draw("cpu", seed)
    first = 127 + lowest
    last = 127 + highest
    packed = draw.integers(0, 256, rows, columns // 2, dtype=torch.uint8)
    scales = draw.integers(first, last + 1, rows, columns // 32, dtype=torch.uint8)
    scales[::128, ::4] = first
    scales[1::128, ::4] = last
    return packed, scales


def converted(packed, bytes_of_scales):
    """Check that values are the same to the last bit as FP8; return the FP8 matrix."""
    matrix = to_fp8(packed, bytes_of_scales)
    values = dequantize(matrix.weights, matrix.scales, row_block=128)
    expected = dequantize_mxfp4(packed, bytes_of_scales)
    assert torch.equal(values.view(torch.int32), expected.view(torch.int32))
    return matrix


@pytest.mark.parametrize("lowest", [-127, -7, 100])
@pytest.mark.parametrize("apart", [0, MOST_SPAN])
def test_values_are_the_same_to_the_last_bit(lowest, apart):
    packed, bytes_of_scales = random_matrix(1, lowest, lowest + apart)
    matrix = converted(packed, bytes_of_scales)
    smallest_normal = torch.finfo(torch.float32).tiny
    assert matrix.weights.dtype == torch.float8_e4m3fn
    assert matrix.scales.shape == (ROWS // 128, COLUMNS // 128)
    assert matrix.scales.min() >= smallest_normal


@pytest.mark.parametrize("apart", range(MOST_SPAN + 1))
def test_every_code_is_exact_at_both_ends_of_a_span(apart):
    packed = torch.arange(128 * 64).to(torch.uint8).reshape(128, 64)
    bytes_of_scales = torch.full((128, 4), 120, dtype=torch.uint8)
    bytes_of_scales[64:] += apart
    converted(packed, bytes_of_scales)


@pytest.mark.parametrize("scale_dtype", [torch.int8, torch.float8_e8m0fnu])
def test_bytes_may_go_by_any_name(scale_dtype):
    packed, bytes_of_scales = random_matrix(2, -3, 3)
    expected = to_fp8(packed, bytes_of_scales)
    matrix = to_fp8(packed.view(torch.int8), bytes_of_scales.view(scale_dtype))
    codes = matrix.weights.view(torch.uint8)
    assert torch.equal(codes, expected.weights.view(torch.uint8))
    assert torch.equal(matrix.scales, expected.scales)


def test_a_block_that_no_fp8_block_has_is_named_with_its_expert():
    good = random_matrix(3, -7, -5)
    packed, bytes_of_scales = random_matrix(4, -7, -5)
    packed[128:, 64:128] = 0x77  # 6 and 6
    bytes_of_scales[200, 5] = 127 - 30
    packed[200, 80:96] = 0x11  # 0.5 and 0.5

    with pytest.raises(NotExact) as caught:
        list(experts_to_fp8([good, good, (packed, bytes_of_scales)], "gemm2_weights"))
    message = str(caught.value)
    for part in (
        "expert 2",
        "gemm2_weights",
        "block (1, 1)",
        "2^-30",
        "2^-5",
        "25 powers",
    ):
        assert part in message


def test_experts_are_converted_as_they_are_asked_for():
    asked = []

    def read():
        for number in range(3):
            asked.append(number)
            yield random_matrix(number, -7, -5)

    matrices = experts_to_fp8(read())
    assert asked == []
    next(matrices)
    assert asked == [0]


def test_a_group_of_zeros_has_any_scale():
    packed, bytes_of_scales = random_matrix(5, -7, -5)
    bytes_of_scales[3, 2] = 0
    packed[3, 32:48] = 0x80  # 0 and -0
    converted(packed, bytes_of_scales)

    zeros = torch.zeros(128, 64, dtype=torch.uint8)
    of_zeros = to_fp8(zeros, bytes_of_scales[:128, :4])
    assert of_zeros.scales.item() == 1.0
    assert not of_zeros.weights.float().any()


def test_weights_that_leave_room_may_lie_further_apart():
    """Of 4 alone, scales may be smaller by three powers of two than those of 0.5."""
    packed = torch.full((128, 64), 0x66, dtype=torch.uint8)
    bytes_of_scales = torch.full((128, 4), 127, dtype=torch.uint8)
    bytes_of_scales[:, 0] -= MOST_SPAN + 3
    assert spans(bytes_of_scales).item() == MOST_SPAN + 3
    converted(packed, bytes_of_scales)

    bytes_of_scales[:, 0] -= 1
    with pytest.raises(NotExact):
        to_fp8(packed, bytes_of_scales)


def test_a_scale_that_is_no_number_is_refused():
    packed, bytes_of_scales = random_matrix(6, -7, -5)
    bytes_of_scales[10, 11] = 255
    assert spans(bytes_of_scales).tolist() == [[2, 2, -1], [2, 2, 2]]
    with pytest.raises(NotExact, match=r"block \(0, 2\)"):
        to_fp8(packed, bytes_of_scales)


@pytest.mark.parametrize(
    ("rows", "bytes_a_row", "scale_shape"),
    [(130, 64, (130, 4)), (128, 65, (128, 4)), (128, 64, (128, 8)), (128, 64, (1, 1))],
)
def test_other_shapes_are_refused(rows, bytes_a_row, scale_shape):
    packed = torch.zeros(rows, bytes_a_row, dtype=torch.uint8)
    with pytest.raises(ValueError, match="^weights: got"):
        to_fp8(packed, torch.zeros(scale_shape, dtype=torch.uint8))


def test_it_needs_torch_alone():
    """A loader of weights may take the file."""
    source = outline(Path(mxfp4_to_fp8.__file__).read_text(encoding="utf-8"))
    modules = {module for _, module in source.absolute_imports}
    assert modules == {"torch", "dataclasses", "collections.abc"}
    assert not source.relative_imports


CONFIG = {
    "model_type": "deepseek_v4",
    "hidden_size": 384,
    "moe_intermediate_size": 256,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "scoring_func": "sqrtsoftplus",
    "num_hidden_layers": 1,
    "expert_dtype": "fp4",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}


@pytest.fixture
def checkpoint_folder(tmp_path):
    """A function that writes a checkpoint with these tensors, a file each, beside others."""

    def written(tensors):
        (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        others = {
            "layers.0.ffn.shared_experts.w1.scale": torch.ones(2, 3),
            "layers.0.ffn.experts.0.w1.weight": torch.zeros(256, 192, dtype=torch.int8),
            "layers.0.ffn.experts.0.w1.input_scale": torch.ones(()),
        }
        save_file(others, tmp_path / "others.safetensors")
        for number, (name, tensor) in enumerate(tensors.items()):
            save_file({name: tensor}, tmp_path / f"model-{number}.safetensors")
        return str(tmp_path)

    return written


def typical(seed, shape=(256, 12)):
    """Return scales of this shape."""
    rows, groups = shape
    _, bytes_of_scales = random_matrix(seed, -7, -5, rows, 32 * groups)
    return bytes_of_scales


def checked(folder, capsys):
    """Return the exit status of --check-scales, and what it prints, in one line."""
    status = cli.main(["model", folder, "--check-scales"])
    words = capsys.readouterr().out.split()
    return status, " ".join(words)


@pytest.fixture
def refused(refusal):
    """A function that returns the line by which --check-scales refuses a checkpoint."""

    def line_of(folder):
        status, line = refusal("model", folder, "--check-scales")
        assert status == 2
        return line

    return line_of


def test_scales_of_a_checkpoint_are_counted(checkpoint_folder, capsys):
    wide = typical(1)
    wide[130, 1] = 127 - 40
    both = torch.stack([typical(3, (512, 12)), typical(4, (512, 12))])
    folder = checkpoint_folder(
        {
            "layers.0.ffn.experts.0.w1.scale": typical(0).view(torch.float8_e8m0fnu),
            "layers.0.ffn.experts.0.w3.scale": wide,
            "layers.0.ffn.experts.0.w2.weight_scale": typical(2, (384, 8)),
            "model.layers.1.mlp.experts.gate_up_proj_scales": both,
        }
    )
    status, shown = checked(folder, capsys)
    assert status == 1
    blocks = 6 + 6 + 6 + 2 * 12
    assert f"{blocks}, of which {blocks - 1} are exact" in shown
    assert "w3.scale, block (1, 0)" in shown


def test_a_checkpoint_whose_blocks_are_all_exact_is_one(checkpoint_folder, capsys):
    folder = checkpoint_folder({"layers.0.ffn.experts.0.w1.scale": typical(0)})
    status, shown = checked(folder, capsys)
    assert status == 0
    assert "6, of which 6 are exact" in shown


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ({}, "no .safetensors file"),
        (
            {"layers.0.ffn.experts.0.w1.scale": torch.zeros(2, 3, dtype=torch.uint8)},
            "[2, 3]",
        ),
        ({"layers.0.ffn.experts.0.w1.scale": torch.zeros(256, 12)}, "torch.float32"),
    ],
)
def test_what_are_no_scales_of_mxfp4_gets_one_line(
    checkpoint_folder, refused, tensors, named
):
    assert named in refused(checkpoint_folder(tensors))


def test_a_file_that_is_no_safetensors_gets_one_line(
    checkpoint_folder, refused, tmp_path
):
    folder = checkpoint_folder({})
    (tmp_path / "broken.safetensors").write_bytes(b"not one")
    assert "broken.safetensors" in refused(folder)


def test_weights_in_fp8_have_no_such_scales(checkpoint_folder, refused, tmp_path):
    folder = checkpoint_folder({})
    config = CONFIG | {"expert_dtype": "fp8"}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert "--check-scales" in refused(folder)
