"""mma_fused's division of work, computed on the host: division.cuh compiled as C++, for the SM counts of many GPUs."""

import subprocess
from collections import Counter, defaultdict

import host_program
import pytest
from harness.operators import catalogue

hypothesis = pytest.importorskip("hypothesis")
given, settings, st = hypothesis.given, hypothesis.settings, hypothesis.strategies

# L4, test grids, A10, RTX 30 and 40, A100, H100 PCIe and SXM, L40S, B200, RTX 5090, RTX PRO 6000; grids of few, and of
# more than may cut slices
SMS = (1, 3, 7, 58, 66, 72, 80, 84, 108, 114, 128, 132, 142, 148, 160, 170, 188, 300)
GEOMETRIES = ("full", "qwen3-next")  # 112 column tiles and 64 slices; 32 and 16
MOST_CHUNKS = 70
MOST_SPLITS = 8
MOST_CUTS = 128
WARPS = 8  # as mma_division.cc is built
STEP_TIMES = 4, 5  # of a K step of a warp in gemm1 and in gemm2, as kStepTime1 and kStepTime2

pytestmark = pytest.mark.xdist_group("mma division")  # one worker builds the programs


@pytest.fixture(scope="module")
def divide(tmp_path_factory):
    """geometry, CTAs, chunks -> pieces and tiles.

    pieces: [(CTA, slice, first K step, end, number among the slices that are cut or -1)], tiles: [(CTA, place, column
    tile, chunk)].
    """
    built = {
        geometry: host_program.of_packed("mma_fused", geometry, "mma_division.cc", tmp_path_factory.mktemp(geometry))
        for geometry in GEOMETRIES
    }

    def answer(geometry, ctas, chunks):
        done = subprocess.run([built[geometry], str(ctas), str(chunks)], check=True, capture_output=True, text=True)
        found = defaultdict(list)
        for line in done.stdout.splitlines():
            kind, *numbers = line.split()
            found[kind].append(tuple(map(int, numbers)))
        return found["piece"], found["tile"]

    return answer


def sizes(geometry):
    of = catalogue.GEOMETRIES[geometry]
    return of["hidden_size"] // 64, of["intermediate_size"] // 32


def k_steps(geometry):
    """Of a slice, and of a column tile of a chunk."""
    of = catalogue.GEOMETRIES[geometry]
    return of["hidden_size"] // 128, of["intermediate_size"] // 128


def warp_times(*counts):
    """Of K steps in gemm1 and in gemm2: the time of the warp that has the most of them."""
    return tuple(-(-count // WARPS) * time for count, time in zip(counts, STEP_TIMES, strict=True))


CALLS = given(geometry=st.sampled_from(GEOMETRIES), ctas=st.sampled_from(SMS), chunks=st.integers(0, MOST_CHUNKS))


@settings(deadline=None)
@CALLS
def test_every_slice_is_done_once_and_in_order(divide, geometry, ctas, chunks):
    """A user would miss: columns of h that nobody computes, or gemm2 waiting for a chunk whose slices come last."""
    pieces, _ = divide(geometry, ctas, chunks)
    done = defaultdict(list)
    for _, at, first, end, _ in pieces:
        done[at] += range(first, end)
    every = list(range(k_steps(geometry)[0]))
    assert {at: sorted(found) for at, found in done.items()} == dict.fromkeys(range(chunks * sizes(geometry)[1]), every)
    assert [piece[:2] for piece in pieces] == sorted(piece[:2] for piece in pieces)


@settings(deadline=None)
@CALLS
def test_a_slice_is_cut_for_two_ctas_that_have_no_more_after_it(divide, geometry, ctas, chunks):
    """A user would miss: a launch that never ends, as halves wait for each other; sums in another slice's place."""
    pieces, _ = divide(geometry, ctas, chunks)
    last = {cta: at for cta, at, *_ in pieces}
    halves = defaultdict(list)
    for cta, at, first, end, cut in pieces:
        if cut >= 0:
            assert last[cta] == at
            halves[cut].append((first, end, at, cta))
    for cut, found in halves.items():
        (first, middle, at, cta), (middle_too, end, at_too, cta_too) = sorted(found)
        assert cut < MOST_CUTS
        assert (first, middle, at, end) == (0, middle_too, at_too, k_steps(geometry)[0]) and cta != cta_too
        assert middle % WARPS == 0 and middle <= end - middle, "the second half waits for the first"
    assert len({at for ((_, _, at, _), _) in halves.values()}) == len(halves)


@settings(deadline=None)
@CALLS
def test_every_column_of_every_chunk_is_added_once(divide, geometry, ctas, chunks):
    """A user would miss: output columns without some experts, or added twice, on a GPU of another size."""
    _, tiles = divide(geometry, ctas, chunks)
    columns, _ = sizes(geometry)
    done = Counter((tile, chunk) for _, _, tile, chunk in tiles)
    assert done == {(tile, chunk): 1 for tile in range(columns) for chunk in range(chunks)}
    sharers = defaultdict(set)
    for cta, _, tile, _ in tiles:
        sharers[tile].add(cta)
    assert all(len(found) <= MOST_SPLITS for found in sharers.values())


@settings(deadline=None)
@CALLS
def test_no_cta_has_much_more_than_another(divide, geometry, ctas, chunks):
    """A user would miss: time, while most of the GPU waits for a few CTAs."""
    pieces, tiles = divide(geometry, ctas, chunks)
    columns, of_chunk = sizes(geometry)
    counts = Counter(cta for cta, *_ in pieces)
    work = Counter(cta for cta, *_ in tiles)
    assert all(counts[cta] <= chunks * of_chunk // ctas + 1 for cta in work if work[cta] == max(work.values()))
    if chunks >= 2 * MOST_SPLITS:
        # at most a column tile more than the least; a tile shared by so many CTAs as there are is less than one each
        assert max(work.values()) <= chunks * -(-columns // ctas)
        alone = columns // ctas
        splits = min(MOST_SPLITS, ctas // (columns % ctas)) if columns % ctas else 1
        rest = -(-chunks // splits) if columns % ctas else 0
        assert max(work.values()) == alone * chunks + rest


class Shape:
    """Of CTAs that share a column tile, and the others: how many, and time for their columns.

    Without columns it is as long as gemm2 still takes after the last round of the others' slices.
    """

    def __init__(self, geometry, ctas, chunks):
        columns, of_chunk = sizes(geometry)
        cut = k_steps(geometry)[0] // WARPS // 2
        self.of_slice, of_tile = warp_times(*k_steps(geometry))
        self.may_cut, self.of_half = cut > 0 and ctas <= 2 * MOST_CUTS, self.of_slice - cut * STEP_TIMES[0]
        alone, shared = divmod(columns, ctas)
        splits = min(MOST_SPLITS, ctas // shared) if shared else 1
        self.slices, self.sharers, self.others = chunks * of_chunk, shared * splits, ctas - shared * splits

        def gemm2(n):
            return (alone * n + (-(-n // splits) if shared else 0)) * of_tile

        self.of_sharers = gemm2(chunks)
        self.of_others = max(alone * chunks * of_tile, gemm2(min(chunks, -(-self.others // of_chunk))))

    def makespan(self, *halves):
        """Of the most halves of slices that one of the sharers, and one of the others, has: two are a slice."""
        gemm1 = [count // 2 * self.of_slice + count % 2 * self.of_half for count in halves]
        ends = [gemm1[0] + self.of_sharers] if self.sharers else []
        ends += [gemm1[1] + self.of_others] if self.others else []
        return max(ends)

    def best(self):
        """The least makespan of all numbers of halves that sharers and others may take."""

        def fit(ctas, halves):
            return halves // 2 * ctas + halves % 2 * (ctas // 2)  # two CTAs share a slice that is cut

        def enough(ctas, slices):
            return 2 * -(-slices // ctas) + 1 if ctas else 1

        counts, found = 1 if self.may_cut else 2, []
        for one in range(0, enough(self.sharers, self.slices), counts):
            left = self.slices - fit(self.sharers, one)
            rest = [
                more for more in range(0, enough(self.others, self.slices), counts) if fit(self.others, more) >= left
            ]
            found += [self.makespan(one, rest[0])] if rest else []
        return min(found)


@settings(deadline=None)
@CALLS
def test_makespan_is_the_least(divide, geometry, ctas, chunks):
    """A user would miss: time, as the last CTA ends later than it must."""
    shape, (pieces, _) = Shape(geometry, ctas, chunks), divide(geometry, ctas, chunks)
    halves = Counter()
    for cta, *_, cut in pieces:
        halves[cta] += 2 if cut < 0 else 1
    sharers, others = range(shape.sharers), range(shape.sharers, ctas)
    assert (
        shape.makespan(*(max((halves[cta] for cta in some), default=0) for some in (sharers, others))) == shape.best()
    )


def last_end(geometry, pieces, tiles):
    """When the last CTA is done: each takes its pieces, then its chunks as h is complete."""
    (_, of_tile), (_, of_chunk) = warp_times(*k_steps(geometry)), sizes(geometry)
    ends, half_at, h_at = Counter(), Counter(), Counter()
    for cta, at, first, end, _ in sorted(pieces, key=lambda piece: piece[2]):  # second halves last
        ends[cta] = max(ends[cta] + warp_times(end - first, 0)[0], half_at[at])
        half_at[at] = ends[cta]
        h_at[at // of_chunk] = max(h_at[at // of_chunk], ends[cta])
    for cta, _, _, chunk in tiles:
        ends[cta] = max(ends[cta], h_at[chunk]) + of_tile
    return max(ends.values(), default=0)


FEW_COLUMNS = "qwen3-next", 58  # 16 slices in a chunk, and 26 of 58 CTAs without columns


@settings(deadline=None)
@CALLS
def test_no_cta_waits_for_h(divide, geometry, ctas, chunks):
    """A user would miss: time, as gemm2 reaches chunks whose slices other CTAs have yet to do."""
    hypothesis.assume((geometry, ctas) != FEW_COLUMNS)
    assert last_end(geometry, *divide(geometry, ctas, chunks)) <= Shape(geometry, ctas, chunks).best()


def test_where_few_ctas_have_columns_they_wait_for_less_than_a_slice(divide):
    """Every number of chunks: a few of them wait for longer than a column tile takes."""
    geometry, ctas = FEW_COLUMNS
    of_slice, _ = warp_times(*k_steps(geometry))
    for chunks in range(MOST_CHUNKS + 1):
        wait = last_end(geometry, *divide(geometry, ctas, chunks)) - Shape(geometry, ctas, chunks).best()
        assert 0 <= wait < of_slice, chunks


@pytest.mark.parametrize("ctas", [132, 142, 148, 160, 170, 188])  # more than column tiles
@pytest.mark.parametrize("chunks", [1, 5, 14, 24, 31, 40])
def test_no_cta_is_far_from_the_mean(divide, ctas, chunks):
    """A user would miss: a fifth of the time on a GPU of 188 SMs, of which 76 would idle in gemm2."""
    pieces, tiles = divide("full", ctas, chunks)
    of_slice, of_tile = warp_times(*k_steps("full"))
    mean, end = (chunks * 64 * of_slice + len(tiles) * of_tile) / ctas, last_end("full", pieces, tiles)
    if chunks < 24:  # a slice, or half of it, is much of a CTA's work
        assert end <= 1.03 * mean + 3 * max(STEP_TIMES)
    else:
        assert end <= (1.03 if ctas == 132 else 1.05) * mean
