"""tools/tune_triton: what is left out before it is timed, what is chosen, and the line that is written."""

import os
import subprocess
import sys
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from flashinfer_bench.compile import BuilderRegistry
from harness.core import paths
from harness.core.errors import UserError
from harness.operators.catalogue import definition
from harness.packing.pack import pack
from pebble import ProcessPool

from solutions.common.triton import tiles

TOOL = paths.ROOT / "tools" / "tune_triton"
sys.path.insert(0, str(TOOL))

import prune  # noqa: E402
import routing  # noqa: E402
import tune  # noqa: E402
from candidates import Candidate, best_pair, grid, other_groups, useful_block_ms  # noqa: E402
from gemms import Gemms, difference, operands  # noqa: E402

SIZES = 32, 512, 256  # of the definition "small"
FITS = Candidate("gemm2", False, 16, 128, 8, 2, 4, 3)
GEMM1 = Candidate("gemm1", True, 16, 128, 8, 1, 4, 5)


@pytest.fixture(scope="module")
def solution():
    built = BuilderRegistry.get_instance().build(definition("small"), pack(tune.SOLUTION)["small"])
    return import_module(built.metadata.misc["module_name"])


@pytest.mark.slow
def test_what_does_not_compile_spills_or_does_not_fit_is_left_out(solution, monkeypatch):
    """A user would miss: "out of resource" on the GPU, or a tile that spills and is timed for nothing."""
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    wanted = {
        FITS: None,
        FITS._replace(per_sm=40): "does not fit",
        Candidate("gemm2", False, 128, 128, 8, 1, 8, 8): "shared memory",
        Candidate("gemm1", True, 128, 128, 8, 1, 4, 3): "spills",
        FITS._replace(num_warps=3): "does not compile",
    }
    known = "sm_90", Path(solution.__file__).parent, (32, 7168, 2048), 8
    with ProcessPool(2, context=get_context("spawn"), initializer=prune.start, initargs=known) as pool:
        found = prune.left_out(pool, wanted)
    assert {each: why and why.partition(":")[0] for each, why in found.items()} == wanted


def test_what_fits_by_its_registers_and_shared_memory():
    assert prune.why_left_out(FITS, 100_000, 128, 0) is None
    for used in ((227 * 1024 + 1, 128, 0), (120_000, 128, 0), (100_000, 128, 8), (100_000, 255, 0)):
        crowded = FITS._replace(per_sm=3 if used[1] == 255 else 2)
        assert prune.why_left_out(crowded, *used), used


def test_the_pair_has_the_least_sum_within_one_block_m():
    """A user would miss: the best gemm1 and the best gemm2 chosen apart, which cannot run together."""
    wide1, wide2 = GEMM1._replace(block_m=32), FITS._replace(block_m=32)
    assert best_pair({GEMM1: 10.0, wide1: 14.0, FITS: 30.0, wide2: 20.0}) == (wide1, wide2)
    assert best_pair({GEMM1: 10.0, wide1: 10.0, FITS: 20.0, wide2: 20.0}) == (GEMM1, FITS), "a tie"
    assert best_pair({GEMM1: 10.0, GEMM1._replace(per_sm=2): 10.0, FITS: 1.0}) == (GEMM1, FITS), "a tie"
    assert best_pair({GEMM1: 10.0, wide2: 20.0}) == ()


def test_the_grid():
    tried = grid([16, 32])
    assert len(tried) == len(set(tried)) == 2 * 3 * 2 * 4 * (2 + 2)
    assert {each.block_n for each in tried if each.stage == "gemm1"} == {128}
    assert {each.group for each in other_groups([FITS])} == {1, 4, 16, 32}
    assert [useful_block_ms(rows) for rows in (1, 28, 441)] == [[16, 32], [16, 32, 64], [32, 64, 128]]


def test_a_line_written_is_what_the_solution_reads(monkeypatch):
    """A user would miss: a table that the solution cannot load, or that differs wherever it was not tuned."""
    table = tune.TABLE.read_text(encoding="utf-8")
    header, first, *others = table.splitlines(True)
    gpu, sizes, num_tokens, version = first.split(",")[:4]
    monkeypatch.setattr(tune.triton, "__version__", version)
    choice = tiles.tuned()[gpu, sizes][int(num_tokens)]
    for before in (table, "".join([header, *others])):
        assert tune.with_row(before, gpu, sizes, int(num_tokens), choice) == table
    assert tune.with_row(header, gpu, sizes, int(num_tokens), choice) == header + first


def test_a_search_checks_times_records_and_keeps_what_is_faster(solution, tmp_path, monkeypatch):
    """In the interpreter: the wrong and the slower are not kept, and a second run times nothing again."""
    expert = torch.tensor([[0, 1, 2, -1, -1, -1, -1, 3], [0, -1, 2, -1, -1, -1, -1, -1]], dtype=torch.int32)
    gemms = [Gemms(solution, operands(SIZES, 4, "cpu"), expert, 4)]
    present = solution.choose("sm_90", "A GPU", 4, SIZES, 8 / 256, 2)
    asked = []
    original = tune.measured

    def measured(stage, choice, *rest):
        asked.append(stage)
        tile = choice.gemm1 if stage == "gemm1" else choice.gemm2
        us, error = original(stage, choice, *rest)
        return us and us - tile.num_warps, error

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(tune, "times_us", lambda calls, repeats: [50.0] * len(calls))
    monkeypatch.setattr(tune, "measured", measured)
    tried = [GEMM1, GEMM1._replace(fused=False, num_warps=8), FITS, FITS._replace(block_n=64, num_warps=8)]
    monkeypatch.setattr(tune, "grid", lambda block_ms: tried)
    monkeypatch.setattr(tune, "other_groups", lambda pair: [])
    record = tune.Record(tmp_path / "record.jsonl")
    assert tune.tune(gemms, present, record, dict.fromkeys)[0] == present, "nothing was faster"
    assert record.times(2) == {tried[0]: 46.0, tried[1]: 42.0, tried[2]: 46.0, tried[3]: 42.0}
    monkeypatch.setattr(tune, "times_us", lambda calls, repeats: [50.0, 49.0])
    with record.path.open("a") as file:
        file.write('[2, ["gemm1"')  # the stop came in the middle of a line
    again, asked[:] = tune.Record(record.path), []
    found, _ = tune.tune(gemms, present, again, dict.fromkeys)
    assert not asked and (found.fused, found.gemm1[:6], found.gemm2[:6]) == (False, tried[1][2:], tried[3][2:])
    assert len(record.path.read_text().splitlines()) == 4


def test_a_wrong_tile_is_seen():
    wanted = torch.ones(4, 256)
    got = wanted.clone()
    assert difference(got, wanted) is None
    got[1, :64], got[2, 0] = 0, torch.nan
    assert difference(got, wanted).startswith("2 of 4")


def test_recorded_ids_are_seen_from_each_rank(tmp_path):
    ids = torch.arange(8).repeat(5, 1)
    torch.save(ids, tmp_path / "a.pt")
    (first,) = routing.recorded(tmp_path, "full", 3, 9)
    assert first.tolist() == ids[:3].tolist() and first.dtype == torch.int32
    assert all((layer >= 0).any() and layer.max() < 32 for layer in routing.drawn("full", 3, 2))
    with pytest.raises(UserError, match="--tokens"):
        routing.recorded(tmp_path, "full", 6, 9)
    torch.save(ids.float(), tmp_path / "b.pt")
    with pytest.raises(UserError, match="b.pt"):
        routing.recorded(tmp_path, "full", 3, 9)


@pytest.mark.slow
def test_the_commands():
    def run(script, *args):
        command = [sys.executable, TOOL.parent / script, *args]
        return subprocess.run(command, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True).returncode

    tune_py, tiles_py = "tune_triton/tune.py", "cutlass_tiles/time_tiles.py"
    assert [run(tune_py, "--help"), run(tune_py, "--definition", "full-routed"), run(tune_py)] == [0, 2, 1]
    assert [run(tiles_py, "--help"), run(tiles_py, "0"), run(tiles_py, "7")] == [0, 2, 1]
