"""mma_fused's tile scheduler on the host: tile_scheduler.cuh compiled as C++, for the SM counts of
many GPUs.
"""

import subprocess
from collections import Counter, defaultdict

import host_program
import pytest
from moebench.operators import catalogue

hypothesis = pytest.importorskip("hypothesis")
given, settings, st = hypothesis.given, hypothesis.settings, hypothesis.strategies

# L4, test grids, A10, RTX 30 and 40, A100, H100 PCIe and SXM, L40S, B200, RTX 5090, RTX PRO 6000;
# grids of few, and of more than may split tiles along K
SMS = (1, 3, 7, 58, 66, 72, 80, 84, 108, 114, 128, 132, 142, 148, 160, 170, 188, 300)
LAYER_SIZES = (
    "full",
    "qwen3-next",
    "qwen3.5-397b",
)  # 112 column tiles and 64 n_blocks; 16 and 16; 64 and 32
MOST_M_BLOCKS = 70
MOST_SHARING_CTAS = 8
MOST_SPLIT_TILES = 128
WARPS = 8  # as mma_tile_scheduler.cc is built
K_BLOCK_TIMES = 4, 5  # of a warp in gemm1 and in gemm2, as kKBlockTime1 and kKBlockTime2

pytestmark = pytest.mark.xdist_group("mma tile scheduler")  # one worker builds the programs


@pytest.fixture(scope="module")
def schedule(tmp_path_factory):
    """layer key, CTAs, m_blocks -> gemm1's work items and gemm2's.

    gemm1: [(CTA, tile, first K block, end, number of the split-K tile or -1)], gemm2: [(CTA, local
    tile, column tile, m_block)].
    """
    built = {
        layer_key: host_program.of_packed(
            "mma_fused", layer_key, "mma_tile_scheduler.cc", tmp_path_factory.mktemp(layer_key)
        )
        for layer_key in LAYER_SIZES
    }

    def answer(layer_key, ctas, m_blocks):
        done = subprocess.run(
            [built[layer_key], str(ctas), str(m_blocks)], check=True, capture_output=True, text=True
        )
        found = defaultdict(list)
        for line in done.stdout.splitlines():
            kind, *numbers = line.split()
            found[kind].append(tuple(map(int, numbers)))
        return found["item"], found["gemm2"]

    return answer


def sizes(layer_key):
    """Column tiles and n_blocks."""
    of = catalogue.layer_sizes()[layer_key]
    return of["hidden_size"] // (64 if of["intermediate_size"] > 512 else 128), of[
        "intermediate_size"
    ] // 32


def k_blocks(layer_key):
    """Of gemm1 and of gemm2."""
    of = catalogue.layer_sizes()[layer_key]
    return of["hidden_size"] // 128, of["intermediate_size"] // 128


def warp_times(*counts):
    """Of K blocks in gemm1 and in gemm2: the time of the warp that has the most of them."""
    return tuple(
        -(-count // WARPS) * time for count, time in zip(counts, K_BLOCK_TIMES, strict=True)
    )


@settings(deadline=None)
@given(
    layer_key=st.sampled_from(LAYER_SIZES),
    ctas=st.sampled_from(SMS),
    m_blocks=st.integers(0, MOST_M_BLOCKS),
)
def test_all_is_done_once_and_in_order(schedule, layer_key, ctas, m_blocks):
    """A user would miss: columns that nobody computes, or adds twice, on a GPU of another size; a
    launch that never ends, as gemm2 waits for an m_block whose tiles come last or parts wait for
    each other; time, if few CTAs work."""
    items, gemm2 = schedule(layer_key, ctas, m_blocks)
    columns, n_blocks = sizes(layer_key)
    end_k, _ = k_blocks(layer_key)

    done, last, parts = defaultdict(list), {cta: tile for cta, tile, *_ in items}, defaultdict(list)
    for cta, tile, first, end, split in items:
        done[tile] += range(first, end)
        if split >= 0:  # a part is the last item of both CTAs
            assert last[cta] == tile
            parts[split].append((first, end, tile, cta))
    assert {tile: sorted(found) for tile, found in done.items()} == dict.fromkeys(
        range(m_blocks * n_blocks), [*range(end_k)]
    )
    assert [item[:2] for item in items] == sorted(item[:2] for item in items)
    for split, found in parts.items():
        (first, middle, tile, cta), (middle_too, end, tile_too, cta_too) = sorted(found)
        assert split < MOST_SPLIT_TILES
        assert (first, middle, tile, end) == (0, middle_too, tile_too, end_k) and cta != cta_too
        assert middle % WARPS == 0 and middle <= end - middle, "the second part waits for the first"
    assert len({tile for ((_, _, tile, _), _) in parts.values()}) == len(parts)

    added, sharing, work = Counter(), defaultdict(set), Counter()
    for cta, _, column_tile, m_block in gemm2:
        added[column_tile, m_block] += 1
        sharing[column_tile].add(cta)
        work[cta] += 1
    assert added == {
        (column_tile, m_block): 1 for column_tile in range(columns) for m_block in range(m_blocks)
    }
    assert all(len(found) <= MOST_SHARING_CTAS for found in sharing.values())
    counts = Counter(cta for cta, *_ in items)
    assert all(
        counts[cta] <= m_blocks * n_blocks // ctas + 1
        for cta in work
        if work[cta] == max(work.values())
    )
    if (
        m_blocks >= 2 * MOST_SHARING_CTAS
    ):  # a tile shared by so many CTAs as there are is less than one each
        own, rest = divmod(columns, ctas)
        shared = -(-m_blocks // min(MOST_SHARING_CTAS, ctas // rest)) if rest else 0
        assert max(work.values()) == own * m_blocks + shared


def last_end(layer_key, items, gemm2):
    """When the last CTA is done: each takes its work items, then its m_blocks as h is complete."""
    (_, tile_time), (_, n_blocks) = warp_times(*k_blocks(layer_key)), sizes(layer_key)
    ends, part_at, h_at = Counter(), Counter(), Counter()
    for cta, tile, first, end, _ in sorted(items, key=lambda item: item[2]):  # second parts last
        ends[cta] = max(ends[cta] + warp_times(end - first, 0)[0], part_at[tile])
        part_at[tile] = ends[cta]
        h_at[tile // n_blocks] = max(h_at[tile // n_blocks], ends[cta])
    for cta, _, _, m_block in gemm2:
        ends[cta] = max(ends[cta], h_at[m_block]) + tile_time
    return max(ends.values(), default=0)


@pytest.mark.parametrize("ctas", [132, 142, 148, 160, 170, 188])  # more than column tiles
@pytest.mark.parametrize("m_blocks", [1, 5, 14, 24, 31, 40])
def test_no_cta_is_far_from_the_mean(schedule, ctas, m_blocks):
    """A user would miss: a fifth of the time on a GPU of 188 SMs, of which 76 would idle in
    gemm2.
    """
    items, gemm2 = schedule("full", ctas, m_blocks)
    time1, time2 = warp_times(*k_blocks("full"))
    mean, end = (m_blocks * 64 * time1 + len(gemm2) * time2) / ctas, last_end("full", items, gemm2)
    if m_blocks < 24:  # a tile, or a part of it, is much of a CTA's work
        assert end <= 1.03 * mean + 3 * max(K_BLOCK_TIMES)
    else:
        assert end <= (1.03 if ctas == 132 else 1.05) * mean
