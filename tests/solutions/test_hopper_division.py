"""hopper_fused's division of work, asked on the host: its headers through a C++ compiler, a warp being 32 fibers."""

import itertools
import subprocess
from collections import Counter, namedtuple
from pathlib import Path

import pytest
import triton
from harness.core import paths

hypothesis = pytest.importorskip("hypothesis")
given, settings, st = hypothesis.given, hypothesis.settings, hypothesis.strategies

SAMPLES = Path(__file__).parents[1] / "samples"
FOLDERS = sorted({path.parent for path in (paths.SOLUTIONS / "hopper_fused").rglob("*.cuh")})
CUDA_H = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
MULTIPROCESSORS = st.sampled_from([112, 114, 132, 144])  # as few as it takes, and of the Hopper cards
UNITS = 64  # of a segment
MOST_SEGMENTS = 60  # of the one kernel
COLUMN_BLOCKS = 112  # with output columns
TILE_ROWS = 128
ORDERS = [
    ("walk", 16),
    ("draw", 14),
    ("draw", 28),
]  # with column tiles: gemm1's, gemm2's for half the columns and for all

pytestmark = pytest.mark.xdist_group("division")  # one worker builds the program that is asked

Tile = namedtuple("Tile", "block segment expert unit width")
Item = namedtuple("Item", "block expert column first rows wide shared more")


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """Rows of integers that the headers answer to a question."""
    built = tmp_path_factory.mktemp("division") / "division"
    includes = [f"-I{folder}" for folder in (SAMPLES / "cuda_on_host", CUDA_H, *FOLDERS)]
    command = ["c++", "-std=c++17", "-O1", "-Wno-attributes", *includes, SAMPLES / "hopper_division.cc", "-o", built]
    subprocess.run(command, check=True)

    def answer(*question):
        done = subprocess.run([built, *map(str, question)], check=True, capture_output=True, text=True)
        return [tuple(map(int, line.split())) for line in done.stdout.splitlines()]

    assert answer("most") == [(MOST_SEGMENTS,)], "tests ask for as many as there is room for, and for no more"
    return answer


@settings(deadline=None)
@given(blocks=MULTIPROCESSORS, segments=st.integers(0, MOST_SEGMENTS))
def test_few_tokens_every_unit_is_done_once(ask, blocks, segments):
    """A user would miss: columns of h that nobody computes, on a card or at a count of experts that was not tried."""
    tiles = [Tile(*row) for row in ask("few", blocks, segments)]
    done = Counter((t.segment, t.unit + i) for t in tiles for i in range(t.width))
    assert done == {(segment, unit): 1 for segment in range(segments) for unit in range(UNITS)}
    for block in range(blocks):
        mine = [(t.segment, t.unit) for t in tiles if t.block == block]
        assert mine == sorted(mine), "gemm2 begins with the first segments, so they are to be done first"


@settings(deadline=None)
@given(blocks=MULTIPROCESSORS, segments=st.integers(1, MOST_SEGMENTS))
def test_few_tokens_blocks_with_columns_wait_for_none(ask, blocks, segments):
    """A user would miss: the time of a unit, while most of the card waits for a few blocks."""
    units = Counter()
    for tile in (Tile(*row) for row in ask("few", blocks, segments)):
        units[tile.block] += tile.width
    shared, left = divmod(segments * UNITS, blocks)
    with_columns = [units[block] for block in range(COLUMN_BLOCKS)]
    assert max(with_columns) - min(with_columns) <= 1
    assert min(with_columns) == shared and (left > 0 or max(with_columns) == shared)


SOME_ROWS = st.lists(
    st.integers(0, 700) | st.sampled_from([0, 1, 16, 64, 65, 128, 129, 192, 193, 256, 257]), min_size=32, max_size=32
)


@settings(deadline=None, max_examples=40)
@given(blocks=MULTIPROCESSORS, order=st.sampled_from(ORDERS), rows=SOME_ROWS)
def test_many_tokens_every_row_meets_every_column_once(ask, blocks, order, rows):
    """A user would miss: rows of some expert left out, or done twice, at a count that no workload has."""
    how, columns = order
    items = [Item(*row) for row in ask(how, blocks, columns, *rows)]
    done = Counter((i.expert, i.column, i.first + row) for i in items for row in range(0, i.rows, 16))
    filled = [-(-count // 16) * 16 for count in rows]
    assert done == {
        (expert, column, row): 1
        for expert in range(32)
        for column in range(columns)
        for row in range(0, filled[expert], 16)
    }
    assert all(0 < i.rows <= TILE_ROWS and i.wide == (i.rows > TILE_ROWS // 2) for i in items)


@settings(deadline=None, max_examples=40)
@given(blocks=MULTIPROCESSORS, order=st.sampled_from(ORDERS), rows=SOME_ROWS)
def test_many_tokens_blocks_of_a_cluster_go_together(ask, blocks, order, rows):
    """A user would miss: a hang, as the two fill each other's slots, or one's weights in the other's product."""
    items = [Item(*row) for row in ask(order[0], blocks, order[1], *rows)]
    of_block = {block: [i for i in items if i.block == block] for block in {i.block for i in items}}
    for first in {block // 2 * 2 for block in of_block}:
        one, other = (of_block.get(first + rank, []) for rank in range(2))
        assert len(one) == len(other)
        for mine, its in zip(one, other, strict=True):
            assert (mine.expert, mine.shared) == (its.expert, its.shared)
            if mine.shared:
                assert mine.column == its.column and its.first == mine.first + TILE_ROWS
            else:
                assert (mine.first, mine.rows) == (its.first, its.rows) and its.column == mine.column + 1


@settings(deadline=None, max_examples=40)
@given(blocks=MULTIPROCESSORS, rows=SOME_ROWS)
def test_many_tokens_gemm2_begins_with_what_is_stored(ask, blocks, rows):
    """A user would miss: wrong sums now and then, of an expert whose h gemm2 takes for stored when it is not yet."""
    last_experts = set()
    everything = [Item(*row) for row in ask("walk", blocks, 16, *rows)]
    for item, after in itertools.zip_longest(everything, everything[1:]):
        is_last = after is None or after.block != item.block
        assert bool(item.more) != is_last, "a block tells of all but its last tile when it is told that no more follow"
        if is_last:
            last_experts.add(item.expert)
    ((early,),) = ask("early", blocks, 16, *rows)
    assert not any(early >> expert & 1 for expert in last_experts)


def test_many_tokens_gemm2_need_not_wait_for_most(ask):
    """A user would miss: 2 to 5% at 3000 to 6000 tokens, if gemm2 waited for all of gemm1."""
    ((early,),) = ask("early", 132, 16, *[200] * 32)
    # of 512 tiles the 66 clusters' last are the last four experts' and two of the one before
    assert early == (1 << 27) - 1
