"""mma_fused's one launch on the host: a whole grid as fibers, each architecture's instructions
modelled.
"""

import mma_host
import mma_small_layer as small
import pytest
import stage_inputs
import torch

# One worker builds the programs.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("mma on host")]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A function of a layer's name, configuration, arguments and CTAs that returns a Launch; each
    program is built once.
    """
    programs = {}
    folder = tmp_path_factory.mktemp("run")

    def get(name, configuration, arguments, ctas):
        layer = small.LAYERS[name]
        key = (name, configuration)
        if key not in programs:
            texts = mma_host.sources(layer)
            build_folder = tmp_path_factory.mktemp(name)
            programs[key] = mma_host.build(texts, mma_host.LAYER, configuration, build_folder)
        launch = mma_host.launch(programs[key], layer, arguments, ctas, folder)
        assert launch.process.returncode == 0, launch.process.stderr
        return launch

    return get


# layer, configuration, CTAs (10 column tiles: alone and shared by two; shared by two; one each),
# tokens, split-K tiles. All three clamped activations; with 4 warps "ds" has two K blocks of gemm2
# for a warp
CASES = [
    ("ds", (227, 1, 1), 7, 5, 0),
    ("ds", (163, 0, 0), 3, 40, 0),
    ("ds", (99, 0, 1), 20, 12, 0),
    ("renorm", (99, 1, 1), 5, 33, 0),
    ("renorm", (99, 0, 0), 2, 1, 0),
    ("routed", (227, 1, 1), 4, 17, 0),
    ("shared", (227, 1, 1), 4, 17, 0),
    ("shared", (99, 0, 1), 3, 33, 0),
    ("mxfp4", (227, 1, 1), 7, 5, 0),
    ("mxfp4", (163, 0, 0), 3, 40, 0),
    ("mxfp4", (99, 0, 1), 20, 12, 0),
    ("mxfp4", (99, 1, 1), 5, 1, 0),
    ("split-k-mxfp4", (227, 1, 1), 16, 5, 4),
    ("split-k-mxfp4", (163, 0, 0), 20, 3, 6),
    ("split-k", (227, 1, 1), 20, 12, 6),
    ("split-k", (163, 0, 0), 20, 17, 5),
    ("split-k", (99, 1, 1), 20, 33, 6),
]


@pytest.mark.parametrize(("name", "configuration", "ctas", "num_tokens", "splits"), CASES)
def test_every_stage_is_right(run, name, configuration, ctas, num_tokens, splits):
    layer = small.LAYERS[name]
    arguments = small.inputs(layer, num_tokens, seed=num_tokens)
    launch = run(name, configuration, arguments, ctas)
    fault = launch.first_fault(layer, arguments)
    assert fault is None, fault
    assert launch.split_tiles == splits


def test_m_blocks_of_every_size(run):
    """An expert has more rows than an m_block, or than a tile of 8."""
    layer = small.LAYERS["ds"]
    arguments = small.inputs(layer, 40, seed=1)
    popular = 4 * torch.rand(layer["num_experts"], generator=torch.Generator().manual_seed(1))
    arguments["routing_logits"] = arguments["routing_logits"] + popular
    assert stage_inputs.is_clear(
        layer, arguments["routing_logits"], arguments["routing_bias"]
    ).all()
    chosen, _, _ = small.rows_of(layer, arguments)
    tiles = {-(-count // 8) for count in chosen.sum(0).tolist()}
    assert {1, 2, 3, 4, 5} <= tiles

    fault = run("ds", (227, 1, 1), arguments, 4).first_fault(layer, arguments)
    assert fault is None, fault


def test_no_local_expert_gives_zeros(run):
    layer = small.LAYERS["ds"]
    arguments = small.inputs(layer, 3)
    offset = arguments["local_expert_offset"]
    arguments["routing_logits"][:, offset : offset + layer["num_local_experts"]] = -30
    output = run("ds", (227, 1, 1), arguments, 7).output
    assert torch.equal(output, torch.zeros_like(output))


def test_no_local_expert_gives_zeros_with_mxfp4(run):
    arguments = small.inputs(small.LAYERS["mxfp4"], 3)
    arguments["topk_ids"][:] = arguments["local_expert_offset"] - 1
    output = run("mxfp4", (227, 1, 1), arguments, 7).output
    assert torch.equal(output, torch.zeros_like(output))


def test_a_scale_of_nan_spoils_its_column_alone(run):
    """A column of the output is NaN where one of its scales is, and where W13 has one, all are."""
    layer = small.LAYERS["mxfp4"]
    arguments = small.inputs(layer, 3)
    arguments["topk_ids"][:] = arguments["local_expert_offset"]
    arguments["topk_weights"][:] = 0.5
    arguments["gemm2_weights_scale"][0, 5, 1] = -1  # 255
    output = run("mxfp4", (227, 1, 1), arguments, 7).output
    columns = output.isnan().any(0).nonzero().flatten()
    assert columns.tolist() == [5]

    arguments["gemm1_weights_scale"][0, 7, 2] = -1
    assert run("mxfp4", (227, 1, 1), arguments, 7).output.isnan().all()
