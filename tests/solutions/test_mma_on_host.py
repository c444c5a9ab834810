"""mma_fused's kernel on the host: a whole grid as fibers, each architecture's instructions modelled."""

import subprocess

import hopper_stages as stages
import mma_small_layer as small
import pytest
import torch

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("mma on host")]  # one worker builds the programs


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Layer and configuration -> the program."""
    built = {}

    def get(layer, configuration):
        if (layer, configuration) not in built:
            folder = tmp_path_factory.mktemp(layer)
            for name, text in small.host_sources(small.LAYERS[layer]).items():
                (folder / name).write_text(text)
            command = ["c++", "-std=c++20", "-O1", "-w", f"-I{folder}", *small.flags(configuration)]
            subprocess.run([*command, small.SAMPLES / "mma_layer.cc", "-o", folder / "layer"], check=True)
            built[layer, configuration] = folder / "layer"
        return built[layer, configuration]

    return get


def run(program, of, arguments, ctas, folder):
    """output, h and h_scale of the layer."""
    (folder / "in").write_bytes(small.to_bytes(of, arguments))
    scalars = (arguments["local_expert_offset"], arguments.get("routed_scaling_factor", 1.0))
    num_tokens = len(arguments["hidden_states"])
    command = [program, folder / "in", folder / "out", ctas, num_tokens, *scalars]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return small.from_bytes((folder / "out").read_bytes(), of, num_tokens)


# layer, configuration, CTAs (10 column tiles: alone and shared by two; shared by two; one each), tokens
CASES = [
    ("ds", (227, 1, 1), 7, 5),
    ("ds", (163, 0, 0), 3, 40),
    ("ds", (99, 0, 1), 20, 12),
    ("renorm", (99, 1, 1), 5, 33),
    ("renorm", (99, 0, 0), 2, 1),
    ("routed", (227, 1, 1), 4, 17),
]


@pytest.mark.parametrize(("layer", "configuration", "ctas", "num_tokens"), CASES)
def test_every_stage_is_right(program, layer, configuration, ctas, num_tokens, tmp_path):
    """A user would miss: an architecture that nobody here can run, with weights, rows or sums in the wrong places."""
    of = small.LAYERS[layer]
    arguments = stages.tokens(of, num_tokens, "cpu", seed=num_tokens) | stages.weights(of, "cpu")
    output, h, scale = run(program(layer, configuration), of, arguments, ctas, tmp_path)
    assert (fault := small.first_fault(of, arguments, output, h, scale)) is None, fault


def test_chunks_of_every_size(program, tmp_path):
    """A user would miss: an expert with more rows than a chunk, or than one tile of 8, read or stored past its end."""
    of = small.LAYERS["ds"]
    arguments = stages.tokens(of, 40, "cpu", seed=1) | stages.weights(of, "cpu")
    popular = 4 * torch.rand(of["num_experts"], generator=torch.Generator().manual_seed(1))
    arguments["routing_logits"] = arguments["routing_logits"] + popular
    assert stages.is_clear(of, arguments["routing_logits"], arguments["routing_bias"]).all()
    chosen, _, _ = small.rows_of(of, arguments)
    assert {1, 2, 3, 4, 5} <= {-(-int(count) // 8) for count in chosen.sum(0)}
    output, h, scale = run(program("ds", (227, 1, 1)), of, arguments, 4, tmp_path)
    assert (fault := small.first_fault(of, arguments, output, h, scale)) is None, fault


def test_no_local_expert_gives_zeros(program, tmp_path):
    """A user would miss: garbage from a rank that has none of the tokens' experts."""
    of = small.LAYERS["ds"]
    arguments = stages.tokens(of, 3, "cpu") | stages.weights(of, "cpu")
    offset = arguments["local_expert_offset"]
    arguments["routing_logits"][:, offset : offset + of["num_local_experts"]] = -30
    output, _, _ = run(program("ds", (227, 1, 1)), of, arguments, 7, tmp_path)
    assert torch.equal(output, torch.zeros_like(output))
