"""permute against its plain statement, for the experts and top-k of every operator that sorts
pairs.
"""

import pytest
import torch

from solutions.common.triton.permute import GROUP, max_tiles, permute, permute_ref

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ORDERS = pytest.mark.parametrize("padded", [True, False], ids=["padded", "dense"])
PADDING = 70000  # not a pair of any case here

pytestmark = [pytest.mark.usefixtures("poisoned_scratch")]


def experts(num_tokens, num_local, top_k, share=1.0):
    """[T, top_k] int32: no expert twice in a row, about this share of them local; -1 is another
    rank's.
    """
    generator = torch.Generator().manual_seed(num_tokens)
    everyone = max(int(num_local / share), top_k)
    chosen = torch.rand((num_tokens, everyone), generator=generator).argsort(1)[:, :top_k]
    return torch.where(chosen < num_local, chosen, -1).to(torch.int32).to(DEVICE)


def check(expert, num_local, block_m, padded=True, first_expert=0):
    """Compare all that is defined; the result."""
    got, wanted = (
        f(expert, num_local, block_m, padded, PADDING, first_expert) for f in (permute, permute_ref)
    )
    tiles, rows = int(wanted.num_tiles), int(wanted.num_rows)
    assert (int(got.num_tiles), int(got.num_rows)) == (tiles, rows)
    assert tiles <= max_tiles(*expert.shape, num_local, block_m) == len(got.tile_expert)
    assert rows <= len(got.pair_of_row)
    assert torch.equal(got.row_of_pair, wanted.row_of_pair)
    assert torch.equal(got.tile_expert[:tiles], wanted.tile_expert[:tiles])
    assert torch.equal(got.pair_of_row[:rows], wanted.pair_of_row[:rows])
    if padded:
        assert got.tile_rows is None
    else:
        assert torch.equal(got.tile_rows[:tiles], wanted.tile_rows[:tiles])
    return got


# DeepSeek-V3 on 8 and 16 ranks, on one; Kimi-K2 whole and on 8; Qwen3-Next; the small ones; bf16's
LAYERS = [
    (32, 8, 1 / 8),
    (16, 8, 1 / 16),
    (256, 8, 1),
    (384, 8, 1),
    (48, 8, 1 / 8),
    (128, 10, 1),
    (24, 8, 1 / 3),
]
LAYERS += [(40, 10, 1), (8, 4, 1), (16, 4, 1)]
# of newer models: 36 of 288, all of 160 and 512; and what is left
LAYERS += [(36, 6, 1 / 8), (160, 8, 1), (512, 10, 1), (7, 16, 1 / 40), (1, 1, 1 / 8)]


@ORDERS
@pytest.mark.parametrize("num_tokens", [1, 40, 150, pytest.param(1100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_permute(layer, num_tokens, padded):
    """Rows lost, doubled or handed to another expert."""
    num_local, top_k, share = layer
    check(
        experts(num_tokens, num_local, top_k, share),
        num_local,
        16 if num_tokens < 1000 else 64,
        padded,
    )


@pytest.mark.parametrize("block_m", [32, 64, 128])
@ORDERS
def test_every_tile_height(block_m, padded):
    """Padding left unwritten where it is more than a program writes at a
    time.
    """
    check(experts(200, 128, 8), 128, block_m, padded)


@ORDERS
@pytest.mark.parametrize("pairs", [GROUP - 8, GROUP, GROUP + 8, 2 * GROUP, 2 * GROUP + 8])
def test_borders_of_groups(pairs, padded):
    """A rank counted twice or not at all where counting by groups begins."""
    check(experts(pairs // 8, 32, 8, 0.5), 32, 16, padded)


@pytest.mark.parametrize(
    "layer",
    [
        (384, 1200),
        *(pytest.param(layer, marks=pytest.mark.slow) for layer in ((384, 8192), (32, 17000))),
    ],
)
def test_more_groups_than_are_summed_at_once(layer):
    """Rows handed to another expert in a large batch only."""
    num_local, num_tokens = layer
    check(experts(num_tokens, num_local, 8), num_local, 64)


@ORDERS
@pytest.mark.parametrize("num_tokens", [1, 40, 300])
def test_without_a_local_expert(num_tokens, padded):
    """Work, or a crash, on a rank that this batch has nothing for."""
    got = check(torch.full((num_tokens, 8), -1, dtype=torch.int32, device=DEVICE), 32, 16, padded)
    assert int(got.num_tiles) == 0


@ORDERS
@pytest.mark.parametrize("num_tokens", [1, 40, 300])
@pytest.mark.parametrize("only", [0, 31])
def test_every_row_at_one_expert(num_tokens, only, padded):
    """A popular expert overflowing the tiles that were counted for it."""
    expert = torch.full((num_tokens, 8), -1, dtype=torch.int32, device=DEVICE)
    expert[:, only % 8] = only
    got = check(expert, 32, 16, padded)
    assert torch.equal(
        got.row_of_pair[:, only % 8].cpu(), torch.arange(num_tokens, dtype=torch.int32)
    )


@ORDERS
@pytest.mark.parametrize("num_tokens", [40, 300])
def test_ids_of_all_experts(num_tokens, padded):
    """Rows for an empty slot or another rank's expert, or of an id that wraps
    around.
    """
    first, local = 48, 24
    local_numbers = experts(num_tokens, local, 8, 0.5)
    ids = torch.where(local_numbers >= 0, local_numbers + first, -1)
    outside = torch.tensor(
        [-1, first - 1, first + local, 0, 2**31 - 1, -(2**31), -first, 384], dtype=torch.int32
    )
    ids = torch.where(ids < 0, outside.to(DEVICE), ids)
    got, wanted = check(ids, local, 16, padded, first), check(local_numbers, local, 16, padded)
    assert torch.equal(got.row_of_pair, wanted.row_of_pair)


@ORDERS
def test_an_expert_twice_in_a_row_of_ids(padded):
    """More rows than there is room for, where an engine's trial run draws ids at
    random.
    """
    ids = torch.randint(
        0, 24, (70, 8), generator=torch.Generator().manual_seed(0), dtype=torch.int32
    )
    check(ids.to(DEVICE), 24, 16, padded)
    check(torch.full((70, 8), 5, dtype=torch.int32, device=DEVICE), 24, 16, padded)
