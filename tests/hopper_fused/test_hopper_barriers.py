"""The barriers of the grouped GEMMs by a model on the host: every access to shared memory is
ordered.

racecheck does not follow one lane that releases a stage for its warp; this model does.
"""

import random
import re

import pytest
from hopper_barriers import MUTATIONS, SYNC, Tile, first_fault
from moebench.core import paths

# Both ways to share, normal and swap-AB tiles after each other in every order, a warpgroup without
# rows.
TILES = [
    Tile((128, 96), True),
    Tile((48, 48), False),
    Tile((128, 16), True),
    Tile((80, 80), False),
    Tile((64, 64), False),
    Tile((128, 128), True),
]
K_BLOCKS = {
    "gemm1": (1, 4, 8),
    "gemm2": (1, 2, 4, 6),
}  # fewer than a pipeline has stages, as many, more


@pytest.mark.parametrize("h_split", [1, 2])
@pytest.mark.parametrize(
    ("gemm", "k_blocks"), [(gemm, count) for gemm in K_BLOCKS for count in K_BLOCKS[gemm]]
)
def test_every_byte_is_ordered(gemm, k_blocks, h_split):
    """A user would miss: a wrong row now and then, at a speed of memory or of an SM that was not
    tried.
    """
    assert (fault := first_fault(gemm, h_split, TILES, k_blocks)) is None, fault


def drawn_tiles(seed):
    draw = random.Random(seed)
    tiles = []
    for _ in range(draw.randrange(1, 10)):
        n, multicast_w = 16 * draw.randrange(1, 9), draw.random() < 0.5
        tiles.append(Tile((128 if multicast_w else n, n), multicast_w))
    return tiles


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_every_byte_is_ordered_in_other_orders(seed):
    """A user would miss: what only some order of tiles, or some order of the waits, leaves
    unordered.
    """
    tiles = drawn_tiles(seed)
    for gemm, counts in K_BLOCKS.items():
        for h_split in (1, 2):
            k_blocks = counts[seed % len(counts)]
            assert (fault := first_fault(gemm, h_split, tiles, k_blocks, seed)) is None, (
                fault,
                tiles,
            )


@pytest.mark.parametrize(
    ("gemm", "without"), [(gemm, step) for gemm in MUTATIONS for step in MUTATIONS[gemm]]
)
def test_the_model_sees_a_missing_barrier(gemm, without):
    """A user would miss: a model that finds every kernel right."""
    assert first_fault(gemm, 2, TILES, 4, without=without) is not None


WORDS = re.compile(
    r"\b(mbar_(?:arrive|expect|wait)\w*|release_stage\w*|named_barrier_\w+|cluster_(?:sync|consumer_release)|fence_proxy_\w+|"
    r"tma_load_\w+|bulk_\w+|cp_async_\w+|st_async_\w+|warpgroup_(?:arrive|commit_batch|wait)|mma_k_block|"
    r"normal_(?:issue|wait)|pdl_wait|counter_wait|load_weights|publish|store_rows|__syncwarp)(?:<[\w:]*>)?\(|"
    r"(stmatrix)\."
)


def synchronisation(file, function):
    """The waits, arrivals, copies and products of a function, in the order of the source."""
    (path,) = (paths.SOLUTIONS / "hopper_fused" / "many_tokens").glob(file)
    text = re.sub(r"//.*", "", path.read_text())
    definition = re.search(rf"^[^\n=;]*\b{function}\([^;{{}}]*\)\s*(const )?{{", text, re.MULTILINE)
    depth, rest = 1, text[definition.end() :]
    for end, letter in enumerate(rest):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if depth == 0:
            return " ".join(call or other for call, other in WORDS.findall(rest[:end]))
    raise ValueError(f"{function}: got no closing brace in {file}, want one")


@pytest.mark.parametrize("function", SYNC)
def test_the_model_follows_the_source(function):
    """A user would miss: a proof of barriers that the kernels no longer have. Change the model,
    then SYNC.
    """
    assert synchronisation(*function.split(":")) == SYNC[function]
