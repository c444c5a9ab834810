"""The barriers of many_gemm1 and many_gemm2 by a model on the host: every access to shared memory is ordered.

racecheck needs a build whose every lane releases (test_hopper_sanitizers.py); this model takes them as they are.
"""

import random
import re

import pytest
from harness.core import paths
from hopper_barriers import MUTATIONS, SYNC, Tile, first_fault

# Both ways to share, normal and swap-AB tiles after each other in every order, a warpgroup without rows.
TILES = [
    Tile((128, 96), True),
    Tile((48, 48), False),
    Tile((128, 16), True),
    Tile((80, 80), False),
    Tile((64, 64), False),
    Tile((128, 128), True),
]
STEPS = {"gemm1": (4, 8), "gemm2": (4, 6)}  # of K: as many as a pipeline has stages, and more


@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize(("gemm", "steps"), [(gemm, steps) for gemm in STEPS for steps in STEPS[gemm]])
def test_every_byte_is_ordered(gemm, steps, terms):
    """A user would miss: a wrong row now and then, at a speed of memory or of an SM that was not tried."""
    assert (fault := first_fault(gemm, terms, TILES, steps)) is None, fault


def drawn_tiles(seed):
    draw = random.Random(seed)
    tiles = []
    for _ in range(draw.randrange(1, 10)):
        n, shared = 16 * draw.randrange(1, 9), draw.random() < 0.5
        tiles.append(Tile((128 if shared else n, n), shared))
    return tiles


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_every_byte_is_ordered_in_other_orders(seed):
    """A user would miss: what only some order of tiles, or some order of the waits, leaves unordered."""
    tiles = drawn_tiles(seed)
    for gemm, all_steps in STEPS.items():
        for terms in (1, 2):
            assert (fault := first_fault(gemm, terms, tiles, all_steps[seed % 2], seed)) is None, (fault, tiles)


@pytest.mark.parametrize(("gemm", "without"), [(gemm, step) for gemm in MUTATIONS for step in MUTATIONS[gemm]])
def test_the_model_sees_a_missing_barrier(gemm, without):
    """A user would miss: a model that finds every kernel right."""
    assert first_fault(gemm, 2, TILES, 4, without=without) is not None


WORDS = re.compile(
    r"\b(mbar_(?:arrive|expect|wait)\w*|named_barrier_\w+|cluster_(?:sync|consumer_release)|fence_proxy_\w+|tma_load_\w+|"
    r"bulk_\w+|cp_async_\w+|st_async_\w+|warpgroup_(?:arrive|commit_batch|wait)|mma_k_step|normal_(?:issue|wait)|"
    r"pdl_wait|counter_wait|load_weights|publish|store_rows|__syncwarp)(?:<[\w:]*>)?\(|(stmatrix)\."
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
    """A user would miss: a proof of barriers that the kernels no longer have. Change the model, then SYNC."""
    assert synchronisation(*function.split(":")) == SYNC[function]
