"""Tensor-parallel ranks: a slice of every expert is a layer like others."""

import tomllib

import pytest
import torch
from moebench.models.layer import layers
from moebench.operators import catalogue, fp8_layer
from moebench.operators.layers import Split

SHARDS = {
    "deepseek-v3-tp8": ("DeepSeek-V3 TP8", 256, 256),
    "deepseek-v3-tp4": ("DeepSeek-V3 TP4", 256, 512),
    "kimi-k2-tp8": ("Kimi-K2 TP8", 384, 256),
    "minimax-m2-tp4": ("MiniMax-M2 TP4", 256, 384),
    "glm-5.3-flash-tp4": ("GLM-5.3-Flash TP4", 288, 512),
    "qwen3-235b-tp4": ("Qwen3-235B TP4", 128, 384),
    "qwen3.5-397b-tp8": ("Qwen3.5-397B TP8", 512, 128),
    "qwen3-coder-480b-tp4": ("Qwen3-Coder-480B TP4", 160, 640),
}


@pytest.mark.parametrize("key", SHARDS)
def test_a_rank_has_all_experts_and_a_slice_of_each(key):
    name, experts, width = SHARDS[key]
    sizes = catalogue.layer_sizes()[key]
    assert (sizes["num_experts"], sizes["num_local_experts"]) == (experts, experts)
    assert sizes["intermediate_size"] == width
    assert [layer.name for layer in layers() if layer.key == key] == [name]


@pytest.mark.parametrize("key", [*SHARDS, *(f"{key}-routed" for key in SHARDS)])
def test_a_definition_of_a_slice_says_so(key):
    definition = catalogue.definition(key)
    ranks = key.removesuffix("-routed").rpartition("-tp")[2]
    assert f"parallelism:tp{ranks}" in definition.tags
    assert f"one of {ranks} slices" in definition.description


@pytest.mark.parametrize(
    ("value", "split", "suffix", "words"),
    [
        (8, Split(8), "-ep8", "EP8"),
        (1, Split(), "", "EP1"),
        ({"tp": 4}, Split(1, 4), "-tp4", "TP4"),
        ({"ep": 2, "tp": 4}, Split(2, 4), "-ep2-tp4", "EP2 TP4"),
    ],
)
def test_how_ranks_share_a_layer_is_written_as_it_is_read(value, split, suffix, words):
    assert Split.of_table(value) == split
    assert tomllib.loads(f"split = {split.in_table()}") == {"split": value}
    assert (split.suffix(), split.words()) == (suffix, words)


def test_the_slices_outputs_add_up_to_the_layers():
    """Each rank has its columns of gate, up and down, and the scales of their blocks."""
    torch.manual_seed(0)
    hidden, inter, ranks, experts = 256, 512, 4, 3
    width = inter // ranks
    w13 = torch.randn(experts, 2 * inter, hidden).to(torch.float8_e4m3fn)
    w13_scale = torch.rand(experts, 2 * inter // 128, hidden // 128)
    w2 = torch.randn(experts, hidden, inter).to(torch.float8_e4m3fn)
    w2_scale = torch.rand(experts, hidden // 128, inter // 128)
    x = torch.randn(5, hidden)
    local = torch.randint(0, experts, (5, 1))
    weights = torch.ones(5, 1)
    whole = fp8_layer.local_experts(x, w13, w13_scale, w2, w2_scale, local, weights)

    total = torch.zeros(5, hidden)
    for rank in range(ranks):
        rows = slice(rank * width, (rank + 1) * width)
        blocks = slice(rows.start // 128, rows.stop // 128)
        up, gate = w13.chunk(2, dim=1)
        up_scale, gate_scale = w13_scale.chunk(2, dim=1)
        part = fp8_layer.local_experts(
            x,
            torch.cat([up[:, rows], gate[:, rows]], dim=1),
            torch.cat([up_scale[:, blocks], gate_scale[:, blocks]], dim=1),
            w2[:, :, rows],
            w2_scale[:, :, blocks],
            local,
            weights,
        )
        total += part.float()
    assert (total - whole.float()).norm() / whole.float().norm() < 1e-2
