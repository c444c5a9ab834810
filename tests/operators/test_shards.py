"""Tensor-parallel ranks: a slice of every expert is a layer like others."""

import tomllib

import pytest
import torch
from every_solution import relative_error
from moebench.models.layer import layer_of
from moebench.operators import catalogue
from moebench.operators.fp8.reference import local_experts
from moebench.operators.layers import Split

# a rank's width, by key: the model's, divided by its ranks
WIDTHS = {
    "deepseek-v3-tp8": 256,
    "deepseek-v3-tp4": 512,
    "kimi-k2-tp8": 256,
    "minimax-m2-tp4": 384,
    "glm-5.3-flash-tp4": 512,
    "qwen3-235b-tp4": 384,
    "qwen3.5-397b-tp8": 128,
    "qwen3-coder-480b-tp4": 640,
}


@pytest.mark.parametrize("key", WIDTHS)
def test_a_rank_has_all_experts_and_a_slice_of_each(key):
    sizes = catalogue.layer_sizes()[key]
    assert sizes["num_local_experts"] == sizes["num_experts"]
    assert sizes["intermediate_size"] == WIDTHS[key]
    assert layer_of(key).name.lower().replace(" ", "-") == key


@pytest.mark.parametrize(
    ("value", "split", "suffix", "words"),
    [
        (8, Split(8), "-ep8", "EP8"),
        (1, Split(), "", "EP1"),
        ({"tp": 4}, Split(1, 4), "-tp4", "TP4"),
        ({"ep": 2, "tp": 4}, Split(2, 4), "-ep2-tp4", "EP2 TP4"),
        ({"ep": 8, "shared": 1}, Split(8, 1, 1), "-ep8-shared", "EP8 + shared"),
        ({"shared": 1}, Split(1, 1, 1), "-shared", "EP1 + shared"),
    ],
)
def test_how_ranks_share_a_layer_is_written_as_it_is_read(value, split, suffix, words):
    assert Split.of_table(value) == split
    assert tomllib.loads(f"split = {split.in_table()}") == {"split": value}
    assert split.suffix() == suffix
    assert split.words() == words


def rank_of(experts, rank, ranks):
    """Return the weights and scales that a rank has of these experts', by columns of h."""
    part = {}
    for name in ("w13", "w13_scale"):
        up, gate = experts[name].chunk(2, dim=1)
        slices = [half.chunk(ranks, dim=1)[rank] for half in (up, gate)]
        part[name] = torch.cat(slices, dim=1)
    for name in ("w2", "w2_scale"):
        part[name] = experts[name].chunk(ranks, dim=2)[rank]
    return part


def test_the_slices_outputs_add_up_to_the_layers():
    """Each rank has its columns of gate, up and down, and the scales of their blocks."""
    torch.manual_seed(0)
    experts = {
        "w13": torch.randn(3, 1024, 256).to(torch.float8_e4m3fn),
        "w13_scale": torch.rand(3, 8, 2),
        "w2": torch.randn(3, 256, 512).to(torch.float8_e4m3fn),
        "w2_scale": torch.rand(3, 2, 4),
    }
    tokens = {
        "x": torch.randn(5, 256),
        "local": torch.randint(0, 3, (5, 1)),
        "weights": torch.ones(5, 1),
    }
    whole = local_experts(**tokens, **experts)

    total = torch.zeros(5, 256)
    for rank in range(4):
        part = local_experts(**tokens, **rank_of(experts, rank, 4))
        total += part.float()
    assert relative_error(total, whole) < 1e-2
