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


@settings(deadline=None)
@given(geometry=st.sampled_from(GEOMETRIES), ctas=st.sampled_from(SMS), chunks=st.integers(0, MOST_CHUNKS))
def test_all_is_done_once_and_in_order(divide, geometry, ctas, chunks):
    """A user would miss: columns that nobody computes, or adds twice, on a GPU of another size; a launch that never
    ends, as gemm2 waits for a chunk whose slices come last or halves wait for each other; time, where few CTAs work."""
    pieces, tiles = divide(geometry, ctas, chunks)
    columns, of_chunk = sizes(geometry)
    steps, _ = k_steps(geometry)

    done, last, halves = defaultdict(list), {cta: at for cta, at, *_ in pieces}, defaultdict(list)
    for cta, at, first, end, cut in pieces:
        done[at] += range(first, end)
        if cut >= 0:  # a slice that is cut is the last of both CTAs
            assert last[cta] == at
            halves[cut].append((first, end, at, cta))
    assert {at: sorted(found) for at, found in done.items()} == dict.fromkeys(range(chunks * of_chunk), [*range(steps)])
    assert [piece[:2] for piece in pieces] == sorted(piece[:2] for piece in pieces)
    for cut, found in halves.items():
        (first, middle, at, cta), (middle_too, end, at_too, cta_too) = sorted(found)
        assert cut < MOST_CUTS
        assert (first, middle, at, end) == (0, middle_too, at_too, steps) and cta != cta_too
        assert middle % WARPS == 0 and middle <= end - middle, "the second half waits for the first"
    assert len({at for ((_, _, at, _), _) in halves.values()}) == len(halves)

    added, sharers, work = Counter(), defaultdict(set), Counter()
    for cta, _, tile, chunk in tiles:
        added[tile, chunk] += 1
        sharers[tile].add(cta)
        work[cta] += 1
    assert added == {(tile, chunk): 1 for tile in range(columns) for chunk in range(chunks)}
    assert all(len(found) <= MOST_SPLITS for found in sharers.values())
    counts = Counter(cta for cta, *_ in pieces)
    assert all(counts[cta] <= chunks * of_chunk // ctas + 1 for cta in work if work[cta] == max(work.values()))
    if chunks >= 2 * MOST_SPLITS:  # a tile shared by so many CTAs as there are is less than one each
        alone, rest = divmod(columns, ctas)
        assert max(work.values()) == alone * chunks + (-(-chunks // min(MOST_SPLITS, ctas // rest)) if rest else 0)


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
