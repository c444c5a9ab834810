"""hopper_fused's division of work, computed on the host: its headers compiled as C++, with a warp
as 32 fibers.
"""

import itertools
import subprocess
from collections import Counter, namedtuple

import host_program
import pytest
from moebench.operators import catalogue

hypothesis = pytest.importorskip("hypothesis")
given, settings, st = hypothesis.given, hypothesis.settings, hypothesis.strategies

SMS = st.sampled_from(
    [112, 114, 132, 144]
)  # the fewest that are accepted, and those of the Hopper cards
BLOCK_M = 128
# 36 experts, and two CTAs for each column tile; I and H no whole pairs of tiles, 13 CTAs for each
# column tile
LAYER_SIZES = ("full", "step-3.5-flash-ep8", "small-one-group")

pytestmark = pytest.mark.xdist_group("division")  # one worker builds the program

Gemm1Tile = namedtuple("Gemm1Tile", "cta m_block expert n_block num_n_blocks")
WorkTile = namedtuple("WorkTile", "cta expert n_block m_first m_rows normal multicast_w has_next")


class Asked:
    """A definition's sizes, and what its headers answer."""

    def __init__(self, layer_key, folder):
        of, self.program = (
            catalogue.layer_sizes()[layer_key],
            host_program.of_packed("hopper_fused", layer_key, *folder),
        )
        self.experts = of["num_local_experts"]
        pairs = (
            -(-of["intermediate_size"] // 256),
            -(-of["hidden_size"] // 1024),
            -(-of["hidden_size"] // 512),
        )
        self.n_blocks = 8 * pairs[0]  # of an m_block, in the one launch
        column_tiles = of["hidden_size"] // 64
        self.with_columns = 132 // column_tiles * column_tiles  # CTAs
        # tile scheduler and n_blocks: gemm1's, gemm2's for half of the columns and for all
        self.orders = [
            ("static", 2 * pairs[0]),
            ("dynamic", 2 * pairs[1]),
            ("dynamic", 2 * pairs[2]),
        ]

    def __call__(self, *question):
        """Rows of integers."""
        done = subprocess.run(
            [self.program, *map(str, question)], check=True, capture_output=True, text=True
        )
        return [tuple(map(int, line.split())) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module", params=LAYER_SIZES)
def ask(request, tmp_path_factory):
    return Asked(request.param, ("hopper_division.cc", tmp_path_factory.mktemp("division")))


@settings(deadline=None)
@given(ctas=SMS, share=st.integers(0, 60))
def test_few_tokens_every_n_block_is_done_once(ask, ctas, share):
    """A user would miss: columns of h that nobody computes, on a GPU or at a number of experts that
    was not tried; the time of an n_block, while most of the GPU waits for a few CTAs."""
    ctas, ((most,),) = max(ctas, ask.with_columns), ask("most")
    m_blocks = most * share // 60
    tiles = [Gemm1Tile(*row) for row in ask("few", ctas, m_blocks)]
    done = Counter((t.m_block, t.n_block + i) for t in tiles for i in range(t.num_n_blocks))
    assert done == {
        (m_block, n_block): 1 for m_block in range(m_blocks) for n_block in range(ask.n_blocks)
    }
    of_cta = [[t for t in tiles if t.cta == cta] for cta in range(ctas)]
    for mine in of_cta:
        order = [(t.m_block, t.n_block) for t in mine]
        assert order == sorted(order), "gemm2 begins with the first m_blocks, so gemm1 must too"
    with_columns = [sum(t.num_n_blocks for t in mine) for mine in of_cta[: ask.with_columns]]
    shared, left = divmod(m_blocks * ask.n_blocks, ctas)
    assert max(with_columns) - min(with_columns) <= 1 and max(with_columns) <= shared + (left > 0)


SOME_ROWS = st.lists(
    st.integers(0, 700) | st.sampled_from([0, 1, 16, 64, 65, 128, 129, 192, 193, 256, 257]),
    min_size=36,
    max_size=36,
)


@settings(deadline=None, max_examples=40)
@given(ctas=SMS, order=st.integers(0, 2), rows=SOME_ROWS)
def test_many_tokens_every_row_meets_every_column_once(ask, ctas, order, rows):
    """A user would miss: rows of some expert left out, or computed twice, at a number of rows that
    no workload has; a hang, as the two CTAs of a cluster fill each other's stages, or one's weights
    in the other's GEMM."""
    (how, n_blocks), rows = ask.orders[order], rows[: ask.experts]
    tiles = [WorkTile(*row) for row in ask(how, ctas, n_blocks, *rows)]
    done = Counter(
        (t.expert, t.n_block, t.m_first + row) for t in tiles for row in range(0, t.m_rows, 16)
    )
    everything = itertools.product(enumerate(rows), range(n_blocks))
    assert done == {
        (expert, c, row): 1 for (expert, count), c in everything for row in range(0, count, 16)
    }
    assert all(0 < t.m_rows <= BLOCK_M and t.normal == (t.m_rows > BLOCK_M // 2) for t in tiles)
    of_cta = {cta: [t for t in tiles if t.cta == cta] for cta in {t.cta for t in tiles}}
    for first in {cta // 2 * 2 for cta in of_cta}:
        for mine, its in zip(*(of_cta.get(first + rank, []) for rank in range(2)), strict=True):
            assert (mine.expert, mine.multicast_w) == (its.expert, its.multicast_w)
            if mine.multicast_w:
                assert mine.n_block == its.n_block and its.m_first == mine.m_first + BLOCK_M
            else:
                assert (mine.m_first, mine.m_rows) == (
                    its.m_first,
                    its.m_rows,
                ) and its.n_block == mine.n_block + 1


@settings(deadline=None, max_examples=40)
@given(ctas=SMS, rows=SOME_ROWS)
def test_many_tokens_gemm2_begins_with_ready_h(ask, ctas, rows):
    """A user would miss: wrong sums now and then, of an expert whose h gemm2 reads before it is
    ready.
    """
    last_experts, rows, (_, n_blocks) = set(), rows[: ask.experts], ask.orders[0]
    everything = [WorkTile(*row) for row in ask("static", ctas, n_blocks, *rows)]
    for tile, after in itertools.zip_longest(everything, everything[1:]):
        is_last = after is None or after.cta != tile.cta
        assert bool(tile.has_next) != is_last, (
            "a CTA signals `h_ready_except_last_wave` when no tile follows this one"
        )
        if is_last:
            last_experts.add(tile.expert)
    ((before,),) = ask("before_last_wave", ctas, n_blocks, *rows)
    assert not any(before >> expert & 1 for expert in last_experts)


def test_many_tokens_gemm2_need_not_wait_for_most(ask):
    """A user would miss: 2 to 5% at 3000 to 6000 tokens, if gemm2 waited for all of gemm1."""
    _, n_blocks = ask.orders[0]
    ((before,),) = ask("before_last_wave", 132, n_blocks, *[200] * ask.experts)
    # two normal tiles each: the 66 clusters' last are the last ones', of "full" those of four
    # experts and two more
    assert before == (1 << ask.experts - -(-66 // n_blocks)) - 1
