"""mma_fused's one launch on the host: a whole grid as fibers, each architecture's instructions
modelled.
"""

from dataclasses import dataclass

import mma_host
import mma_small_layer as small
import pytest
import stage_inputs
import torch
from random_values import Draw

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
            programs[key] = mma_host.build(
                texts, mma_host.LAYER, configuration, build_folder
            )
        launch = mma_host.launch(programs[key], layer, arguments, ctas, folder)
        assert launch.process.returncode == 0, launch.process.stderr
        return launch

    return get


@dataclass(frozen=True)
class Case:
    """A grid's run of a layer: 10 column tiles are alone and shared by two, shared, or one each."""

    layer: str
    configuration: tuple
    ctas: int
    num_tokens: int
    splits: int = 0  # split-K tiles

    def __str__(self):
        names = [self.layer, *map(str, self.configuration)]
        return "-".join([*names, str(self.ctas), str(self.num_tokens)])


# All three clamped activations; with 4 warps "ds" has two K blocks of gemm2 for a warp
CASES = [
    Case("ds", (227, 1, 1), 7, 5),
    Case("ds", (163, 0, 0), 3, 40),
    Case("ds", (99, 0, 1), 20, 12),
    Case("renorm", (99, 1, 1), 5, 33),
    Case("renorm", (99, 0, 0), 2, 1),
    Case("routed", (227, 1, 1), 4, 17),
    Case("shared", (99, 0, 1), 3, 33),
    Case("mxfp4", (227, 1, 1), 7, 5),
    Case("mxfp4", (163, 0, 0), 3, 40),
    Case("mxfp4", (99, 0, 1), 20, 12),
    Case("split-k-mxfp4", (227, 1, 1), 16, 5, splits=4),
    Case("split-k-mxfp4", (163, 0, 0), 20, 3, splits=6),
    Case("split-k", (227, 1, 1), 20, 12, splits=6),
    Case("split-k", (163, 0, 0), 20, 17, splits=5),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_stage_is_right(run, case):
    layer = small.LAYERS[case.layer]
    arguments = small.inputs(layer, case.num_tokens, seed=case.num_tokens)
    launch = run(case.layer, case.configuration, arguments, case.ctas)
    fault = launch.first_fault(layer, arguments)
    assert fault is None, fault
    assert launch.split_tiles == case.splits


def test_m_blocks_of_every_size(run):
    """An expert has more rows than an m_block, or than a tile of 8."""
    layer = small.LAYERS["ds"]
    arguments = small.inputs(layer, 40, seed=1)
    popularity = 4 * Draw("cpu", 1).uniform(layer["num_experts"])
    logits = arguments["routing_logits"] + popularity
    arguments["routing_logits"] = logits
    assert stage_inputs.is_clear(layer, logits, arguments["routing_bias"]).all()
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
