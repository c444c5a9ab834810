"""mma_fused's tile scheduler on the host: tile_scheduler.cuh compiled as C++, for the SM counts of
many GPUs.
"""

import subprocess
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import host_program
import pytest
from moebench.operators import catalogue

hypothesis = pytest.importorskip("hypothesis")
given = hypothesis.given
settings = hypothesis.settings
st = hypothesis.strategies

# L4, test grids, A10, RTX 30 and 40, A100, H100 PCIe and SXM, L40S, B200, RTX 5090, RTX PRO 6000;
# grids of few, and of more than may split tiles along K
SMS = (1, 3, 7, 58, 66, 72, 80, 84, 108, 114, 128, 132, 142, 148, 160, 170, 188, 300)
# 112 column tiles and 64 n_blocks; 16 and 16; 64 and 32
LAYER_KEYS = ("full", "qwen3-next", "qwen3.5-397b")
MOST_M_BLOCKS = 70
MOST_SHARING_CTAS = 8
MOST_SPLIT_TILES = 128
WARPS = 8  # as mma_tile_scheduler.cc is built
K_BLOCK_TIME1 = 4  # of a warp in gemm1, as kKBlockTime1
K_BLOCK_TIME2 = 5  # in gemm2

# one worker builds the programs
pytestmark = pytest.mark.xdist_group("mma tile scheduler")


@dataclass(frozen=True)
class Item:
    """What a CTA does of gemm1 at a time: K blocks of a tile."""

    cta: int
    tile: int
    first: int  # K block
    end: int
    split: int  # number of the split-K tile, or -1


@dataclass(frozen=True)
class Gemm2Tile:
    cta: int
    local_tile: int
    column_tile: int
    m_block: int


@dataclass(frozen=True)
class Layer:
    """A definition's sizes in tiles."""

    layer_key: str

    @cached_property
    def sizes(self):
        return catalogue.layer_sizes()[self.layer_key]

    @property
    def column_tiles(self):
        columns = 64 if self.sizes["intermediate_size"] > 512 else 128
        return self.sizes["hidden_size"] // columns

    @property
    def n_blocks(self):
        return self.sizes["intermediate_size"] // 32

    @property
    def k_blocks1(self):
        return self.sizes["hidden_size"] // 128

    @property
    def k_blocks2(self):
        return self.sizes["intermediate_size"] // 128


def warp_time(k_blocks, k_block_time):
    """Return the time of the warp that has the most K blocks."""
    return -(-k_blocks // WARPS) * k_block_time


@pytest.fixture(scope="module")
def schedule(tmp_path_factory):
    """A function of a layer_key, CTAs and m_blocks that returns Items and Gemm2Tiles."""
    programs = {}
    for layer_key in LAYER_KEYS:
        folder = tmp_path_factory.mktemp(layer_key)
        sample = "mma_tile_scheduler.cc"
        programs[layer_key] = host_program.build_packed(
            "mma_fused", layer_key, sample, folder
        )

    def get(layer_key, ctas, m_blocks):
        command = [programs[layer_key], str(ctas), str(m_blocks)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        items = []
        tiles = []
        for line in done.stdout.splitlines():
            kind, *words = line.split()
            numbers = map(int, words)
            if kind == "item":
                items.append(Item(*numbers))
            else:
                tiles.append(Gemm2Tile(*numbers))
        return items, tiles

    return get


def schedules(test):
    """Run a test on what many grids do."""
    drawn = given(
        layer_key=st.sampled_from(LAYER_KEYS),
        ctas=st.sampled_from(SMS),
        m_blocks=st.integers(0, MOST_M_BLOCKS),
    )
    return settings(deadline=None, max_examples=30)(drawn(test))


@schedules
def test_gemm1_has_each_k_block_once_and_in_order(schedule, layer_key, ctas, m_blocks):
    """gemm2 waits for m_blocks in their order: a tile that came late would keep it waiting."""
    layer = Layer(layer_key)
    items, _ = schedule(layer_key, ctas, m_blocks)
    done = Counter()
    for item in items:
        for k_block in range(item.first, item.end):
            done[item.tile, k_block] += 1

    assert set(done.values()) <= {1}
    tiles = range(m_blocks * layer.n_blocks)
    assert set(done) == set(product(tiles, range(layer.k_blocks1)))
    order = [(item.cta, item.tile) for item in items]
    assert order == sorted(order)


def parts_of(items):
    """Return both parts of each split-K tile, the first K block first."""
    parts = defaultdict(list)
    for item in sorted(items, key=lambda item: item.first):
        if item.split >= 0:
            parts[item.split].append(item)
    return parts


@schedules
def test_a_part_is_the_last_of_its_cta(schedule, layer_key, ctas, m_blocks):
    items, _ = schedule(layer_key, ctas, m_blocks)
    last_tile = {item.cta: item.tile for item in items}
    for item in items:
        if item.split >= 0:
            assert item.tile == last_tile[item.cta]


@schedules
def test_parts_of_a_tile_do_not_wait_for_each_other(
    schedule, layer_key, ctas, m_blocks
):
    parts = parts_of(schedule(layer_key, ctas, m_blocks)[0])
    assert max(parts, default=0) < MOST_SPLIT_TILES
    tiles = set()
    for first, second in parts.values():
        tiles |= {first.tile, second.tile}
        assert first.cta != second.cta
        assert first.end == second.first
        assert first.end % WARPS == 0
        # the second waits for it
        assert first.end - first.first <= second.end - second.first
    assert len(tiles) == len(parts)


@schedules
def test_gemm2_adds_each_m_block_to_each_column_once(
    schedule, layer_key, ctas, m_blocks
):
    column_tiles = Layer(layer_key).column_tiles
    _, tiles = schedule(layer_key, ctas, m_blocks)
    added = Counter()
    sharing = defaultdict(set)
    for tile in tiles:
        added[tile.column_tile, tile.m_block] += 1
        sharing[tile.column_tile].add(tile.cta)

    assert set(added.values()) <= {1}
    assert set(added) == set(product(range(column_tiles), range(m_blocks)))
    for sharing_ctas in sharing.values():
        assert len(sharing_ctas) <= MOST_SHARING_CTAS


def last_end(layer, items, tiles):
    """Return when the last CTA is done: each takes its work items, then its m_blocks as h is
    complete.
    """
    ends = Counter()  # of CTAs
    part_ends = Counter()
    h_ends = Counter()  # of m_blocks
    for item in sorted(items, key=lambda item: item.first):  # second parts last
        end = ends[item.cta] + warp_time(item.end - item.first, K_BLOCK_TIME1)
        end = max(end, part_ends[item.tile])
        m_block = item.tile // layer.n_blocks
        ends[item.cta] = end
        part_ends[item.tile] = end
        h_ends[m_block] = max(h_ends[m_block], end)

    tile_time = warp_time(layer.k_blocks2, K_BLOCK_TIME2)
    for tile in tiles:
        begin = max(ends[tile.cta], h_ends[tile.m_block])
        ends[tile.cta] = begin + tile_time
    return max(ends.values(), default=0)


# more than column tiles
@pytest.mark.parametrize("ctas", [132, 142, 148, 160, 170, 188])
@pytest.mark.parametrize("m_blocks", [1, 5, 14, 24, 31, 40])
def test_no_cta_is_far_from_the_mean(schedule, ctas, m_blocks):
    layer = Layer("full")
    items, tiles = schedule("full", ctas, m_blocks)
    work1 = m_blocks * layer.n_blocks * warp_time(layer.k_blocks1, K_BLOCK_TIME1)
    work2 = len(tiles) * warp_time(layer.k_blocks2, K_BLOCK_TIME2)
    mean = (work1 + work2) / ctas

    if m_blocks < 24:  # a tile, or a part of it, is much of a CTA's work
        limit = 1.03 * mean + 3 * K_BLOCK_TIME2
    elif ctas == 132:
        limit = 1.03 * mean
    else:
        limit = 1.05 * mean
    assert last_end(layer, items, tiles) <= limit
