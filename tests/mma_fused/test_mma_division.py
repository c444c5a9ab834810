"""mma_fused's division of work, computed on the host: division.cuh compiled as C++, for the SM counts of many GPUs."""

import subprocess
from collections import Counter, defaultdict

import host_program
import pytest
from harness.operators import catalogue

hypothesis = pytest.importorskip("hypothesis")
given, settings, st = hypothesis.given, hypothesis.settings, hypothesis.strategies

# L4, test grids, A10, RTX 30 and 40, A100, H100 PCIe and SXM, L40S, B200, RTX 5090, RTX PRO 6000; and grids of few
SMS = (1, 3, 58, 66, 72, 80, 84, 108, 114, 128, 132, 142, 148, 160, 170, 188)
GEOMETRIES = ("full", "qwen3-next")  # 112 column tiles and 64 slices; 32 and 16
MOST_CHUNKS = 70
MOST_SPLITS = 8

pytestmark = pytest.mark.xdist_group("mma division")  # one worker builds the programs


@pytest.fixture(scope="module")
def divide(tmp_path_factory):
    """geometry, CTAs, chunks -> slices: [(CTA, slice)], tiles: [(CTA, place, column tile, chunk)]."""
    built = {}
    for geometry in GEOMETRIES:
        folder = tmp_path_factory.mktemp(geometry)
        host_program.headers("mma_fused", geometry, folder)
        built[geometry] = host_program.compiled("mma_division.cc", folder, folder)

    def answer(geometry, ctas, chunks):
        done = subprocess.run([built[geometry], str(ctas), str(chunks)], check=True, capture_output=True, text=True)
        found = defaultdict(list)
        for line in done.stdout.splitlines():
            kind, *numbers = line.split()
            found[kind].append(tuple(map(int, numbers)))
        return found["slice"], found["tile"]

    return answer


def sizes(geometry):
    of = catalogue.GEOMETRIES[geometry]
    return of["hidden_size"] // 64, of["intermediate_size"] // 32


def steps(geometry):
    """Of a warp, of 8: in a slice, and in a column tile of a chunk."""
    of = catalogue.GEOMETRIES[geometry]
    return -(-of["hidden_size"] // 128 // 8), -(-of["intermediate_size"] // 128 // 8)


CALLS = given(geometry=st.sampled_from(GEOMETRIES), ctas=st.sampled_from(SMS), chunks=st.integers(0, MOST_CHUNKS))


@settings(deadline=None)
@CALLS
def test_every_slice_is_done_once_and_in_order(divide, geometry, ctas, chunks):
    """A user would miss: columns of h that nobody computes, or gemm2 waiting for a chunk whose slices come last."""
    slices, _ = divide(geometry, ctas, chunks)
    assert sorted(at for _, at in slices) == list(range(chunks * sizes(geometry)[1]))
    assert slices == sorted(slices)


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
    slices, tiles = divide(geometry, ctas, chunks)
    columns, of_chunk = sizes(geometry)
    counts = Counter(cta for cta, _ in slices)
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
    """Of CTAs that share a column tile, and the others: how many, and steps for their columns.

    A step is a unit, 64 weight rows by 128, for each of 8 warps. Without columns it is as long as gemm2 still takes
    after the last round of the others' slices.
    """

    def __init__(self, geometry, ctas, chunks):
        columns, of_chunk = sizes(geometry)
        self.slice_steps, tile_steps = steps(geometry)
        alone, shared = divmod(columns, ctas)
        splits = min(MOST_SPLITS, ctas // shared) if shared else 1
        self.slices, self.ctas = chunks * of_chunk, ctas
        self.sharers, self.others = shared * splits, ctas - shared * splits

        def gemm2(n):
            return (alone * n + (-(-n // splits) if shared else 0)) * tile_steps

        self.of_sharers = gemm2(chunks)
        self.of_others = max(alone * chunks * tile_steps, gemm2(min(chunks, -(-self.others // of_chunk))))

    def makespan(self, sharers_slices, others_slices):
        """Of the most slices that one of each has."""
        ends = [sharers_slices * self.slice_steps + self.of_sharers] if self.sharers else []
        ends += [others_slices * self.slice_steps + self.of_others] if self.others else []
        return max(ends)

    def best(self):
        """The least makespan of all numbers of rounds and of slices that the others take after them."""
        found = []
        for rounds in range(self.slices // self.ctas + 1):
            for more in range(self.slices + 1):
                left = max(self.slices - rounds * self.ctas - more * self.others, 0)
                if left <= self.sharers:
                    found.append(self.makespan(rounds + (left > 0), rounds + more))
                if left == 0 or self.others == 0:
                    break
        return min(found)


@settings(deadline=None)
@CALLS
def test_makespan_is_the_least(divide, geometry, ctas, chunks):
    """A user would miss: time, as the last CTA ends later than it must."""
    shape, (slices, _) = Shape(geometry, ctas, chunks), divide(geometry, ctas, chunks)
    counts = Counter(cta for cta, _ in slices)
    sharers, others = range(shape.sharers), range(shape.sharers, ctas)
    most = [max((counts[cta] for cta in some), default=0) for some in (sharers, others)]
    assert shape.makespan(*most) == shape.best()


def last_end(geometry, slices, tiles):
    """When the last CTA is done, in steps: each takes its slices, then its chunks as h is complete."""
    (slice_steps, tile_steps), (_, of_chunk) = steps(geometry), sizes(geometry)
    ends, h_at = Counter(), Counter()
    for cta, at in slices:
        ends[cta] += slice_steps
        h_at[at // of_chunk] = max(h_at[at // of_chunk], ends[cta])
    for cta, _, _, chunk in tiles:
        ends[cta] = max(ends[cta], h_at[chunk]) + tile_steps
    return max(ends.values(), default=0)


@settings(deadline=None)
@CALLS
def test_no_cta_waits_for_h_for_long(divide, geometry, ctas, chunks):
    """A user would miss: time, as gemm2 reaches chunks whose slices other CTAs have yet to do."""
    assert last_end(geometry, *divide(geometry, ctas, chunks)) <= Shape(geometry, ctas, chunks).best()


@pytest.mark.parametrize("ctas", [132, 142, 148, 160, 170, 188])  # more than column tiles
@pytest.mark.parametrize("chunks", [24, 31, 40])
def test_ctas_without_columns_take_more_slices(divide, ctas, chunks):
    """A user would miss: a fifth of the time on a GPU of 188 SMs, of which 76 would idle in gemm2."""
    slices, tiles = divide("full", ctas, chunks)
    slice_steps, tile_steps = steps("full")
    work = len(slices) * slice_steps + len(tiles) * tile_steps
    assert last_end("full", slices, tiles) <= 1.07 * work / ctas
