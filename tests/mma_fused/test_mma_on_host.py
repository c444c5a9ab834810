"""mma_fused's one launch on the host: a whole grid as fibers, each architecture's instructions
modelled.
"""

import hopper_stages as stages
import mma_host
import mma_small_layer as small
import pytest
import torch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("mma on host"),
]  # one worker builds the programs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Layer, configuration, arguments and CTAs -> output, h, h_scale and split-K tiles; each
    program is built once.
    """
    programs, folder = {}, tmp_path_factory.mktemp("run")

    def get(layer, configuration, arguments, ctas):
        of = small.LAYERS[layer]
        if (layer, configuration) not in programs:
            made = tmp_path_factory.mktemp(layer)
            programs[layer, configuration] = mma_host.build(
                mma_host.sources(of), mma_host.LAYER, configuration, made
            )
        done, found = mma_host.launch(programs[layer, configuration], of, arguments, ctas, folder)
        assert done.returncode == 0, done.stderr
        return *found, int(done.stdout)

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
    ("split-k", (227, 1, 1), 20, 12, 6),
    ("split-k", (163, 0, 0), 20, 17, 5),
    ("split-k", (99, 1, 1), 20, 33, 6),
]


@pytest.mark.parametrize(("layer", "configuration", "ctas", "num_tokens", "splits"), CASES)
def test_every_stage_is_right(run, layer, configuration, ctas, num_tokens, splits):
    """A user would miss: an architecture that nobody here can run, with weights, rows or sums in
    the wrong places.
    """
    of = small.LAYERS[layer]
    arguments = stages.tokens(of, num_tokens, "cpu", seed=num_tokens) | stages.weights(of, "cpu")
    *found, split = run(layer, configuration, arguments, ctas)
    fault = small.first_fault(of, arguments, *found)
    assert fault is None, fault
    assert split == splits


def test_m_blocks_of_every_size(run):
    """A user would miss: an expert with more rows than an m_block, or than a tile of 8, read or
    stored past its end.
    """
    of = small.LAYERS["ds"]
    arguments = stages.tokens(of, 40, "cpu", seed=1) | stages.weights(of, "cpu")
    popular = 4 * torch.rand(of["num_experts"], generator=torch.Generator().manual_seed(1))
    arguments["routing_logits"] = arguments["routing_logits"] + popular
    assert stages.is_clear(of, arguments["routing_logits"], arguments["routing_bias"]).all()
    chosen, _, _ = small.rows_of(of, arguments)
    assert {1, 2, 3, 4, 5} <= {-(-int(count) // 8) for count in chosen.sum(0)}
    fault = small.first_fault(of, arguments, *run("ds", (227, 1, 1), arguments, 4)[:3])
    assert fault is None, fault


def test_no_local_expert_gives_zeros(run):
    """A user would miss: garbage from a rank that has none of the tokens' experts."""
    of = small.LAYERS["ds"]
    arguments = stages.tokens(of, 3, "cpu") | stages.weights(of, "cpu")
    offset = arguments["local_expert_offset"]
    arguments["routing_logits"][:, offset : offset + of["num_local_experts"]] = -30
    output, *_ = run("ds", (227, 1, 1), arguments, 7)
    assert torch.equal(output, torch.zeros_like(output))
