"""sort_pairs against its plain statement."""

import pytest
import torch
from bf16_inputs import DEVICE, distinct_ids

from solutions.kernels.sort_pairs import ALONE, sort_pairs, sort_pairs_ref

# of Triton's interpreter, thousands of times
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("block_m", [16, 64])
@pytest.mark.parametrize(
    ("num_tokens", "experts", "top_k"), [(1, 8, 8), (1, 128, 8), (37, 16, 4), (300, 128, 8), (1100, 128, 8)]
)
def test_sort_pairs(num_tokens, experts, top_k, block_m, align):
    """A user would miss: a row that belongs to two pairs, at the border of chunks or of tiles."""
    ids = distinct_ids(num_tokens, experts, top_k, seed=num_tokens)
    check_sorted(ids, experts, block_m, block_m if align else 1)


@pytest.mark.parametrize("num_tokens", [40, ALONE // 4, ALONE // 4 + 1])
def test_sort_pairs_with_all_tokens_on_few_experts(num_tokens):
    ids = torch.tensor([[9, 3, 12, 0]], dtype=torch.int32, device=DEVICE).repeat(num_tokens, 1)
    check_sorted(ids, 16, 32, 32)


def check_sorted(ids, experts, block_m, align):
    got, wanted = sort_pairs(ids, experts, block_m, align), sort_pairs_ref(ids, experts, block_m, align)
    tiles = int(wanted.num_tiles[0])
    assert int(got.num_tiles[0]) == tiles
    assert torch.equal(got.tiles.view(-1, 4)[:tiles, :3], wanted.tiles[:tiles, :3])
    assert torch.equal(got.row_of_pair[: ids.numel()], wanted.row_of_pair)
    used = -(-int(wanted.tiles[tiles - 1, 2]) // align) * align
    assert torch.equal(got.pair_of_row[:used], wanted.pair_of_row[:used])
