"""Two ranks of vLLM's own MoE layer on a CPU, where it has no experts of its own for such weights:
no other kernel can have answered.
"""

import os
from pathlib import Path

import pytest
import torch
import vllm_environment
from installed_plugin import install
from moebench.core import paths
from moebench.operators import catalogue
from rank_programs import run_ranks
from two_ranks import RANKS, two_ranks

# one worker installs vLLM, which is kept, and runs these tests
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("vllm")]
PROGRAM = paths.ROOT / "tests" / "support" / "engines" / "vllm_layer.py"
SLICES = "small-renorm-routed"
MXFP4 = "small-mxfp4"
FAULTS = {
    "sizes": {"hidden_size": 512},
    "intermediate_size": {"intermediate_size": 320},
    "swiglu_limit": {"swiglu_limit": 3.0},
}


@pytest.fixture(scope="module", params=[vllm_environment.OLDER, vllm_environment.VERSION])
def in_reach(request):
    """Folders of this release."""
    is_older = request.param == vllm_environment.OLDER
    return [vllm_environment.older()] if is_older else []


def environment_of(package, in_reach):
    search_path = [*in_reach, package.parent, paths.ROOT / "scripts"]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, search_path)),
        "VLLM_DIST_IDENT": "moebench",
        "VLLM_HOST_IP": "127.0.0.1",
        "CUDA_VISIBLE_DEVICES": "",
    }


def request_of(layer, folder: Path):
    """Return what vllm_layer.py reads."""
    is_mxfp4 = layer.layer_key in catalogue.mxfp4()
    checkpoint = layer.checkpoint()
    if is_mxfp4:
        checkpoint = {name: tensor.view(torch.uint8) for name, tensor in checkpoint.items()}
    scales = "weight_scale" if is_mxfp4 else "weight_scale_inv"
    return checkpoint | {
        "x": layer.x,
        "topk_ids": layer.ranks[0]["topk_ids"],
        "topk_weights": layer.ranks[0]["topk_weights"],
        "layer": layer.layer,
        "names": {"weights": "weight", "weights_scale": scales},
        "quantisation": "deepseek_v4_fp8" if is_mxfp4 else "fp8",
        "expert_parallel": not layer.has_slices,
        "can_sum": layer.has_slices,
        "model": str(folder),
        "rendezvous": str(folder / "rendezvous"),
        "faults": FAULTS,
    }


@pytest.mark.parametrize("layer_key", [SLICES, MXFP4])
def test_the_sum_of_two_ranks_is_the_layer(in_reach, layer_key, tmp_path):
    """A rank that computes another one's slice or experts, or a sum that is made twice or not."""
    layer = two_ranks(layer_key)
    package = install("triton_fused_v2", layer_key, tmp_path / "package")
    request = request_of(layer, tmp_path) | {"package": package.name}

    command = [vllm_environment.python(), PROGRAM]
    environment = environment_of(package, in_reach)
    first, second = run_ranks(command, request, range(RANKS), tmp_path, environment)

    outputs = ["output", "summed", "summed_by_vllm"] if layer.has_slices else ["output"]
    for name in outputs:
        assert torch.equal(first[name], second[name])
        # FP8 has 3 bits beside the leading one: x and h are off by 0.026 each in the mean
        assert 0.01 < layer.error(first[name]) < 0.06
    if layer.has_slices:
        assert first["summed_calls"] == 1
        assert first["summed_by_vllm_calls"] == 0
    assert "MoE backend" in first["alone"]  # vLLM has none
    for name in FAULTS:
        assert first[name].startswith(f"{name}: got "), first[name]
