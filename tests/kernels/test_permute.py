"""permute against its plain statement, for the experts and top-k of every operator that sorts
pairs.
"""

import pytest
import torch
from every_solution import slow
from layer_inputs import DEVICE
from random_values import Draw

from solutions.common.triton.rows.permute import GROUP, max_tiles, permute, permute_ref

PADDING = 70000  # not a pair of any case here

orders = pytest.mark.parametrize("padded", [True, False], ids=["padded", "dense"])
pytestmark = pytest.mark.usefixtures("poisoned_scratch")


def random_experts(num_tokens, num_local, top_k, share=1.0):
    """Return experts [T, top_k] int32, none twice for a token: about this share of them local, and
    -1 for another rank's.
    """
    num_experts = max(int(num_local / share), top_k)
    order = Draw("cpu", num_tokens).order(num_tokens, num_experts)
    expert = order[:, :top_k]
    expert = expert.where(expert < num_local, -1)
    return expert.to(DEVICE, torch.int32)


def same_expert(num_tokens, expert):
    """Return experts [T, 8] int32, all of them the same."""
    return torch.full((num_tokens, 8), expert, dtype=torch.int32, device=DEVICE)


def check(expert, num_local, block_m, padded=True, first_expert=0):
    """Compare all that is defined; return the result."""
    arguments = (expert, num_local, block_m, padded, PADDING, first_expert)
    expected = permute_ref(*arguments)
    num_tiles = int(expected.num_tiles)
    num_rows = int(expected.num_rows)

    output = permute(*arguments)

    assert int(output.num_tiles) == num_tiles
    assert int(output.num_rows) == num_rows
    assert len(output.tile_expert) == max_tiles(*expert.shape, num_local, block_m)
    assert torch.equal(output.row_of_pair, expected.row_of_pair)
    assert_same_start(output.tile_expert, expected.tile_expert, num_tiles)
    assert_same_start(output.pair_of_row, expected.pair_of_row, num_rows)
    if not padded:
        assert_same_start(output.tile_rows, expected.tile_rows, num_tiles)
    return output


def assert_same_start(output, expected, count):
    """Check that `count` values are there and equal; what follows is undefined."""
    assert len(output) >= count
    assert torch.equal(output[:count], expected[:count])


LAYERS = [  # local experts, top-k, share that is local
    (32, 8, 1 / 8),  # DeepSeek-V3 on 8 ranks
    (256, 8, 1),  # whole
    (384, 8, 1),  # Kimi-K2
    (48, 8, 1 / 8),
    (128, 10, 1),  # Qwen3-Next
    (40, 10, 1),
    (16, 4, 1),  # the small bf16 layer
    (36, 6, 1 / 8),
    (160, 8, 1),
    (512, 10, 1),
    (7, 16, 1 / 40),
    (1, 1, 1 / 8),
]


@orders
@pytest.mark.parametrize("num_tokens", [1, 40, slow(1100)])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_permute(layer, num_tokens, padded):
    num_local, top_k, share = layer
    block_m = 16 if num_tokens < 1000 else 64
    expert = random_experts(num_tokens, num_local, top_k, share)
    check(expert, num_local, block_m, padded)


@orders
@pytest.mark.parametrize("block_m", [32, 64, 128])
def test_every_tile_height(block_m, padded):
    """Padding may be more than a program writes at a time."""
    expert = random_experts(200, 128, 8)
    check(expert, 128, block_m, padded)


TOKENS_OF_A_GROUP = GROUP // 8


@orders
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("more_tokens", [-1, 0, 1])
def test_borders_of_groups(groups, more_tokens, padded):
    """Where counting by groups begins."""
    num_tokens = groups * TOKENS_OF_A_GROUP + more_tokens
    expert = random_experts(num_tokens, 32, 8, 0.5)
    check(expert, 32, 16, padded)


@pytest.mark.parametrize(
    ("num_local", "num_tokens"), [(384, 1200), slow(384, 8192), slow(32, 17000)]
)
def test_more_groups_than_are_summed_at_once(num_local, num_tokens):
    expert = random_experts(num_tokens, num_local, 8)
    check(expert, num_local, 64)


@orders
@pytest.mark.parametrize("num_tokens", [1, 40, 300])
def test_without_a_local_expert(num_tokens, padded):
    expert = same_expert(num_tokens, -1)
    output = check(expert, 32, 16, padded)
    assert int(output.num_tiles) == 0


@orders
@pytest.mark.parametrize("num_tokens", [1, 40, 300])
@pytest.mark.parametrize(("expert", "slot"), [(0, 0), (31, 7)])
def test_every_row_at_one_expert(num_tokens, expert, slot, padded):
    experts = same_expert(num_tokens, -1)
    experts[:, slot] = expert

    output = check(experts, 32, 16, padded)

    rows = output.row_of_pair[:, slot].tolist()
    assert rows == list(range(num_tokens))


@orders
@pytest.mark.parametrize("num_tokens", [40, 300])
def test_ids_of_all_experts(num_tokens, padded):
    """Empty slots, other ranks' experts, and ids that wrap around."""
    first = 48
    num_local = 24
    local = random_experts(num_tokens, num_local, 8, 0.5)
    elsewhere = [-1, first - 1, first + num_local, 0, 2**31 - 1, -(2**31), -first, 384]
    elsewhere = torch.tensor(elsewhere, dtype=torch.int32, device=DEVICE)
    ids = torch.where(local >= 0, local + first, elsewhere)

    output = check(ids, num_local, 16, padded, first)

    expected = check(local, num_local, 16, padded)
    assert torch.equal(output.row_of_pair, expected.row_of_pair)


@orders
def test_an_expert_twice_in_a_row_of_ids(padded):
    """As an engine's trial run draws ids at random."""
    ids = Draw(DEVICE).integers(0, 24, 70, 8)
    check(ids, 24, 16, padded)
    check(same_expert(70, 5), 24, 16, padded)
