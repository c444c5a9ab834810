"""hopper_fused's division of work, computed on the host: its headers compiled as C++, with a warp as 32 fibers."""

import itertools
import subprocess
from collections import Counter, namedtuple

import host_program
import pytest
from harness.core import paths

hypothesis = pytest.importorskip("hypothesis")
given, settings, st = hypothesis.given, hypothesis.settings, hypothesis.strategies

FOLDERS = {path.parent for name in ("common/cuda", "hopper_fused") for path in (paths.SOLUTIONS / name).rglob("*.cuh")}
SMS = st.sampled_from([112, 114, 132, 144])  # the fewest that are accepted, and those of the Hopper cards
N_BLOCKS = 64  # of an m_block
MOST_M_BLOCKS = 60  # of the one launch
COLUMN_TILES = 112  # CTAs with output columns
BLOCK_M = 128
# tile scheduler and n_blocks: gemm1's, gemm2's for half of the columns and for all
ORDERS = [("static", 16), ("dynamic", 14), ("dynamic", 28)]

pytestmark = pytest.mark.xdist_group("division")  # one worker builds the program

Gemm1Tile = namedtuple("Gemm1Tile", "cta m_block expert n_block num_n_blocks")
WorkTile = namedtuple("WorkTile", "cta expert n_block m_first m_rows normal multicast_w has_next")


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """A question to the headers -> rows of integers."""
    built = host_program.compiled("hopper_division.cc", tmp_path_factory.mktemp("division"), *FOLDERS)

    def answer(*question):
        done = subprocess.run([built, *map(str, question)], check=True, capture_output=True, text=True)
        return [tuple(map(int, line.split())) for line in done.stdout.splitlines()]

    assert answer("most") == [(MOST_M_BLOCKS,)], "the tests use up to the most m_blocks that there is room for"
    return answer


@settings(deadline=None)
@given(ctas=SMS, m_blocks=st.integers(0, MOST_M_BLOCKS))
def test_few_tokens_every_n_block_is_done_once(ask, ctas, m_blocks):
    """A user would miss: columns of h that nobody computes, on a GPU or at a number of experts that was not tried; the
    time of an n_block, while most of the GPU waits for a few CTAs."""
    tiles = [Gemm1Tile(*row) for row in ask("few", ctas, m_blocks)]
    done = Counter((t.m_block, t.n_block + i) for t in tiles for i in range(t.num_n_blocks))
    assert done == {(m_block, n_block): 1 for m_block in range(m_blocks) for n_block in range(N_BLOCKS)}
    of_cta = [[t for t in tiles if t.cta == cta] for cta in range(ctas)]
    for mine in of_cta:
        order = [(t.m_block, t.n_block) for t in mine]
        assert order == sorted(order), "gemm2 begins with the first m_blocks, so gemm1 must too"
    with_columns = [sum(t.num_n_blocks for t in mine) for mine in of_cta[:COLUMN_TILES]]
    shared, left = divmod(m_blocks * N_BLOCKS, ctas)
    assert min(with_columns) == shared and max(with_columns) <= shared + (left > 0)


SOME_ROWS = st.lists(
    st.integers(0, 700) | st.sampled_from([0, 1, 16, 64, 65, 128, 129, 192, 193, 256, 257]), min_size=32, max_size=32
)


@settings(deadline=None, max_examples=40)
@given(ctas=SMS, order=st.sampled_from(ORDERS), rows=SOME_ROWS)
def test_many_tokens_every_row_meets_every_column_once(ask, ctas, order, rows):
    """A user would miss: rows of some expert left out, or computed twice, at a number of rows that no workload has; a
    hang, as the two CTAs of a cluster fill each other's stages, or one's weights in the other's GEMM."""
    how, n_blocks = order
    tiles = [WorkTile(*row) for row in ask(how, ctas, n_blocks, *rows)]
    done = Counter((t.expert, t.n_block, t.m_first + row) for t in tiles for row in range(0, t.m_rows, 16))
    everything = itertools.product(enumerate(rows), range(n_blocks))
    assert done == {(expert, c, row): 1 for (expert, count), c in everything for row in range(0, count, 16)}
    assert all(0 < t.m_rows <= BLOCK_M and t.normal == (t.m_rows > BLOCK_M // 2) for t in tiles)
    of_cta = {cta: [t for t in tiles if t.cta == cta] for cta in {t.cta for t in tiles}}
    for first in {cta // 2 * 2 for cta in of_cta}:
        for mine, its in zip(*(of_cta.get(first + rank, []) for rank in range(2)), strict=True):
            assert (mine.expert, mine.multicast_w) == (its.expert, its.multicast_w)
            if mine.multicast_w:
                assert mine.n_block == its.n_block and its.m_first == mine.m_first + BLOCK_M
            else:
                assert (mine.m_first, mine.m_rows) == (its.m_first, its.m_rows) and its.n_block == mine.n_block + 1


@settings(deadline=None, max_examples=40)
@given(ctas=SMS, rows=SOME_ROWS)
def test_many_tokens_gemm2_begins_with_ready_h(ask, ctas, rows):
    """A user would miss: wrong sums now and then, of an expert whose h gemm2 reads before it is ready."""
    last_experts = set()
    everything = [WorkTile(*row) for row in ask("static", ctas, 16, *rows)]
    for tile, after in itertools.zip_longest(everything, everything[1:]):
        is_last = after is None or after.cta != tile.cta
        assert bool(tile.has_next) != is_last, "a CTA signals `h_ready_except_last_wave` when no tile follows this one"
        if is_last:
            last_experts.add(tile.expert)
    ((before,),) = ask("before_last_wave", ctas, 16, *rows)
    assert not any(before >> expert & 1 for expert in last_experts)


def test_many_tokens_gemm2_need_not_wait_for_most(ask):
    """A user would miss: 2 to 5% at 3000 to 6000 tokens, if gemm2 waited for all of gemm1."""
    ((before,),) = ask("before_last_wave", 132, 16, *[200] * 32)
    # of 512 tiles the 66 clusters' last are the last four experts' and two of the one before
    assert before == (1 << 27) - 1
