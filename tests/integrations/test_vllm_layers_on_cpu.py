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
LAYERS = (SLICES, "small-mxfp4")
FAULTS = {
    "sizes": {"hidden_size": 512},
    "intermediate_size": {"intermediate_size": 320},
    "swiglu_limit": {"swiglu_limit": 3.0},
    "apply_router_weight_on_input": {"apply_router_weight_on_input": True},
}
each_layer = pytest.mark.parametrize("layer_key", LAYERS)


def request_of(layer, package, folder: Path):
    """Return what vllm_layer.py reads of a layer."""
    is_mxfp4 = layer.layer_key in catalogue.mxfp4()
    checkpoint = layer.checkpoint()
    if is_mxfp4:
        checkpoint = {
            name: tensor.view(torch.uint8) for name, tensor in checkpoint.items()
        }
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
        "package": package.name,
        "faults": FAULTS,
    }


@pytest.fixture(
    scope="module", params=[vllm_environment.OLDER, vllm_environment.VERSION]
)
def answers(request, tmp_path_factory):
    """What vllm_layer.py answers with this release on each rank, by layer key."""
    folder = tmp_path_factory.mktemp("vllm")
    is_older = request.param == vllm_environment.OLDER
    search_path = [vllm_environment.older()] if is_older else []
    packages = install("triton_fused_v2", LAYERS, folder / "package")
    requests = {}
    for layer_key, package in zip(LAYERS, packages, strict=True):
        requests[layer_key] = request_of(two_ranks(layer_key), package, folder)

    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(
            map(str, [*search_path, folder / "package", paths.ROOT / "scripts"])
        ),
        "VLLM_DIST_IDENT": "moebench",
        "VLLM_HOST_IP": "127.0.0.1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [vllm_environment.python(), PROGRAM]
    whole = {"layers": requests, "rendezvous": str(folder / "rendezvous")}
    return run_ranks(command, whole, range(RANKS), folder, environment)


def check_sum(answers, layer_key, name, calls):
    """Check an output of both ranks, and how often the package was asked for the sum."""
    outputs = []
    for answer in answers:
        output, calls_of_rank = answer[layer_key][name]
        assert calls_of_rank == calls
        outputs.append(output)
    assert torch.equal(*outputs)
    # FP8 has 3 bits beside the leading one: x and h are off by 0.026 each in the mean
    assert 0.01 < two_ranks(layer_key).error(outputs[0]) < 0.06


@each_layer
def test_the_sum_of_two_ranks_is_the_layer(answers, layer_key):
    """A rank that computes another one's slice or experts."""
    check_sum(answers, layer_key, "output", calls=0)


@pytest.mark.parametrize(("name", "calls"), [("summed", 1), ("summed_by_vllm", 0)])
def test_ranks_sum_once_before_vllm_has_the_output_or_in_vllm(answers, name, calls):
    """A sum that is made twice or not."""
    check_sum(answers, SLICES, name, calls)


@each_layer
def test_vllm_alone_has_no_experts_for_it(answers, layer_key):
    assert "MoE backend" in answers[0][layer_key]["alone"]


@each_layer
@pytest.mark.parametrize("name", FAULTS)
def test_what_is_not_served_is_refused(answers, layer_key, name):
    assert answers[0][layer_key][name].startswith(f"{name}: got ")
