"""hopper_fused's division of work, computed on the host: its headers compiled as C++, with a warp
as 32 fibers.
"""

import subprocess
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from itertools import product

import host_program
import pytest
from every_solution import slow
from moebench.operators import catalogue
from packed_sources import with_one_replaced

hypothesis = pytest.importorskip("hypothesis")
given = hypothesis.given
settings = hypothesis.settings
st = hypothesis.strategies

# the fewest that are accepted, and those of the Hopper cards
SMS = st.sampled_from([112, 114, 132, 144])
BLOCK_M = 128
# 36 experts, and two CTAs for each column tile; I and H no whole pairs of tiles, 13 CTAs for each
# column tile
LAYER_KEYS = ("full", slow("step-3.5-flash-ep8"), "small-one-group")
MOST_EXPERTS = 36
SOME_ROWS = st.lists(
    st.integers(0, 700)
    | st.sampled_from([0, 1, 16, 64, 65, 128, 129, 192, 193, 256, 257]),
    min_size=MOST_EXPERTS,
    max_size=MOST_EXPERTS,
)

pytestmark = pytest.mark.xdist_group("division")  # one worker builds the program


@dataclass(frozen=True)
class Gemm1Tile:
    """n_blocks of an m_block, in the one launch."""

    cta: int
    m_block: int
    expert: int
    n_block: int
    num_n_blocks: int


@dataclass(frozen=True)
class WorkTile:
    """A tile of a grouped GEMM."""

    cta: int
    expert: int
    n_block: int
    m_first: int
    m_rows: int
    normal: int
    multicast_w: int
    has_next: int


def ceil_div(value, divisor):
    return -(-value // divisor)


class Division:
    """A definition's sizes, and what its headers answer."""

    def __init__(self, layer_key, folder):
        sizes = catalogue.layer_sizes()[layer_key]
        hidden = sizes["hidden_size"]
        inter = sizes["intermediate_size"]
        sample = "hopper_division.cc"
        self.program = host_program.build_packed(
            "hopper_fused", layer_key, sample, folder
        )
        self.experts = sizes["num_local_experts"]
        self.n_blocks = inter // 32  # of an m_block, in the one launch
        column_tiles = hidden // 64
        self.ctas_with_columns = 132 // column_tiles * column_tiles
        # tile scheduler and n_blocks: gemm1's, gemm2's for half of the columns and for all
        self.orders = [
            ("static", 2 * ceil_div(inter, 256)),
            ("dynamic", 2 * ceil_div(hidden, 1024)),
            ("dynamic", 2 * ceil_div(hidden, 512)),
        ]

    def ask(self, *question):
        """Return rows of integers."""
        command = [self.program, *map(str, question)]
        output = subprocess.check_output(command, text=True)
        rows = []
        for line in output.splitlines():
            rows.append([int(number) for number in line.split()])
        return rows

    def number(self, *question):
        ((answer,),) = self.ask(*question)
        return answer

    def few(self, ctas, m_blocks):
        tiles = self.ask("few", ctas, m_blocks)
        return [Gemm1Tile(*tile) for tile in tiles]

    def many(self, scheduler, ctas, n_blocks, rows):
        tiles = self.ask(scheduler, ctas, n_blocks, *rows)
        return [WorkTile(*tile) for tile in tiles]


@pytest.fixture(scope="module", params=LAYER_KEYS)
def division(request, tmp_path_factory):
    return Division(request.param, tmp_path_factory.mktemp("division"))


def few_tokens(test):
    """Run a test for some CTAs, and a share of 60 of the most m_blocks."""
    drawn = given(ctas=SMS, share=st.integers(0, 60))(test)
    return settings(deadline=None, max_examples=25)(drawn)


def many_tokens(test):
    drawn = given(ctas=SMS, rows=SOME_ROWS)(test)
    return settings(deadline=None, max_examples=15)(drawn)


each_order = pytest.mark.parametrize(
    "order", range(3), ids=["gemm1", "gemm2, two passes", "gemm2"]
)


def by_cta(tiles):
    tiles_of = defaultdict(list)
    for tile in tiles:
        tiles_of[tile.cta].append(tile)
    return tiles_of


@few_tokens
def test_few_tokens_every_n_block_is_done_once(division, ctas, share):
    ctas = max(ctas, division.ctas_with_columns)
    m_blocks = division.number("most") * share // 60
    done = Counter()
    for tile in division.few(ctas, m_blocks):
        end = tile.n_block + tile.num_n_blocks
        for n_block in range(tile.n_block, end):
            done[tile.m_block, n_block] += 1

    assert done == Counter(product(range(m_blocks), range(division.n_blocks)))


@few_tokens
def test_few_tokens_work_is_spread_and_in_order(division, ctas, share):
    """gemm2 begins with the first m_blocks, so gemm1 must too; and nobody waits for a few CTAs."""
    ctas = max(ctas, division.ctas_with_columns)
    m_blocks = division.number("most") * share // 60
    tiles_of = by_cta(division.few(ctas, m_blocks))
    for tiles in tiles_of.values():
        order = [(tile.m_block, tile.n_block) for tile in tiles]
        assert order == sorted(order)

    work = []
    for cta in range(division.ctas_with_columns):
        work.append(sum(tile.num_n_blocks for tile in tiles_of[cta]))
    most = max(work)
    assert most - min(work) <= 1
    assert most <= ceil_div(m_blocks * division.n_blocks, ctas)


def check_each_row_meets_each_column_once(tiles, rows, n_blocks):
    """Check it by 16 rows. rows: of each expert."""
    done = Counter()
    for tile in tiles:
        end = tile.m_first + tile.m_rows
        for row in range(tile.m_first, end, 16):
            done[tile.expert, tile.n_block, row] += 1

    expected = Counter()
    for expert, count in enumerate(rows):
        expected.update(product([expert], range(n_blocks), range(0, count, 16)))
    assert done == expected


@each_order
@many_tokens
def test_many_tokens_every_row_meets_every_column_once(division, order, ctas, rows):
    scheduler, n_blocks = division.orders[order]
    rows = rows[: division.experts]
    tiles = division.many(scheduler, ctas, n_blocks, rows)
    for tile in tiles:
        assert 0 < tile.m_rows <= BLOCK_M
        assert tile.normal == (tile.m_rows > BLOCK_M // 2)
    check_each_row_meets_each_column_once(tiles, rows, n_blocks)


@each_order
@many_tokens
def test_many_tokens_a_cluster_shares_rows_or_columns(division, order, ctas, rows):
    """Its two CTAs fill each other's stages."""
    scheduler, n_blocks = division.orders[order]
    rows = rows[: division.experts]
    tiles_of = by_cta(division.many(scheduler, ctas, n_blocks, rows))
    last_cta = max(tiles_of, default=0)
    for cta in range(0, last_cta + 1, 2):
        for first, second in zip(tiles_of[cta], tiles_of[cta + 1], strict=True):
            if first.multicast_w:
                expected = replace(first, m_first=first.m_first + BLOCK_M)
                second = replace(second, m_rows=first.m_rows, normal=first.normal)
            else:
                expected = replace(first, n_block=first.n_block + 1)
            assert replace(second, cta=cta) == expected


def check_gemm2_begins_with_ready_h(division, ctas, rows):
    """Check `h_ready_except_last_wave`: a CTA signals it when it begins its last tile."""
    _, n_blocks = division.orders[0]
    rows = rows[: division.experts]
    tiles_of = by_cta(division.many("static", ctas, n_blocks, rows))
    last_experts = set()
    for *before_last, last in tiles_of.values():
        assert all(tile.has_next for tile in before_last)
        assert not last.has_next
        last_experts.add(last.expert)

    before = division.number("before_last_wave", ctas, n_blocks, *rows)
    assert not any(before >> expert & 1 for expert in last_experts)


@many_tokens
def test_many_tokens_gemm2_begins_with_ready_h(division, ctas, rows):
    check_gemm2_begins_with_ready_h(division, ctas, rows)


def test_many_tokens_gemm2_need_not_wait_for_most(division):
    _, n_blocks = division.orders[0]
    rows = [200] * division.experts
    before = division.number("before_last_wave", 132, n_blocks, *rows)
    # two normal tiles each: the 66 clusters' last are the last ones', of "full" those of four
    # experts and two more
    experts_of_last_wave = ceil_div(66, n_blocks)
    experts_before = division.experts - experts_of_last_wave
    assert before == (1 << experts_before) - 1


# ---- narrow experts: gemm1's last n_block pads I ----

NARROW_HIDDEN = 3072  # for I = 384
NARROW_N_BLOCKS = 3


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    folder = tmp_path_factory.mktemp("narrow")
    division = Division("small-one-group", folder)
    problem = folder / "problem.cuh"
    hidden = f"kHidden = {NARROW_HIDDEN};"
    problem.write_text(with_one_replaced(problem.read_text(), "kHidden = 640;", hidden))
    division.program = host_program.build("hopper_division.cc", folder)
    return division


@many_tokens
def test_narrow_experts_one_tile_of_padding_at_most(narrow, ctas, rows):
    rows = rows[: narrow.experts]
    padding = []
    tiles = []
    for tile in narrow.many("static", ctas, NARROW_N_BLOCKS + 1, rows):
        if tile.n_block == NARROW_N_BLOCKS:
            padding.append(tile)
        else:
            tiles.append(tile)

    assert len(padding) <= 1
    check_each_row_meets_each_column_once(tiles, rows, NARROW_N_BLOCKS)


@many_tokens
def test_narrow_experts_ctas_of_a_cluster_keep_step(narrow, ctas, rows):
    """Its two CTAs fill each other's stages where they share weights."""
    rows = rows[: narrow.experts]
    tiles_of = by_cta(narrow.many("static", ctas, NARROW_N_BLOCKS + 1, rows))
    first_ctas = {cta // 2 * 2 for cta in tiles_of}
    for cta in first_ctas:
        for first, second in zip(tiles_of[cta], tiles_of[cta + 1], strict=True):
            assert first.multicast_w == second.multicast_w
            if first.multicast_w:
                assert first.expert == second.expert
                assert first.n_block == second.n_block
                assert second.m_first == first.m_first + BLOCK_M


@many_tokens
def test_narrow_experts_gemm2_begins_with_ready_h(narrow, ctas, rows):
    check_gemm2_begins_with_ready_h(narrow, ctas, rows)
