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
    with_columns = {cta for cta, *_ in tiles}
    assert all(counts[cta] <= chunks * of_chunk // ctas + 1 for cta in with_columns)
    work = Counter(cta for cta, *_ in tiles)
    if chunks >= 2 * MOST_SPLITS:
        # at most a column tile more than the least; a tile shared by so many CTAs as there are is less than one each
        assert max(work.values()) <= chunks * -(-columns // ctas)
        alone = columns // ctas
        splits = min(MOST_SPLITS, ctas // (columns % ctas)) if columns % ctas else 1
        rest = -(-chunks // splits) if columns % ctas else 0
        assert max(work.values()) == alone * chunks + rest


@pytest.mark.parametrize(  # more CTAs than column tiles; the last CTA's time over the mean
    ("ctas", "most"), [(132, 1.03), (142, 1.06), (148, 1.06), (160, 1.06), (170, 1.06), (188, 1.07)]
)
@pytest.mark.parametrize("chunks", [24, 31, 40])
def test_ctas_without_columns_take_more_slices(divide, ctas, most, chunks):
    """A user would miss: a fifth of the time on a GPU of 188 SMs, of which 76 would idle in gemm2."""
    slices, tiles = divide("full", ctas, chunks)
    columns_of = Counter(cta for cta, *_ in tiles)
    units = Counter()  # of 64 weight rows by 128: 56 a slice, 16 a column tile of a chunk
    h_at, slices_of = Counter(), Counter()
    for cta, at in slices:
        slices_of[cta] += 1
        h_at[at // 64] = max(h_at[at // 64], 56 * slices_of[cta])
    for cta in range(ctas):
        units[cta] = 56 * slices_of[cta] + 16 * columns_of[cta]
    ends = {cta: 56 * slices_of[cta] for cta in columns_of}
    for cta, _, _, chunk in tiles:
        ends[cta] = max(ends[cta], h_at[chunk]) + 16
    assert max(ends.values()) == max(units[cta] for cta in columns_of), "a CTA waits for h"
    assert max(ends.values()) <= most * sum(units.values()) / ctas
