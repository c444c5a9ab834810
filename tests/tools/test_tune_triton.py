"""tools/tune_triton: what is left out before it is timed, what is chosen, and the line that is
written.
"""

import json
import os
import subprocess
import sys
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from flashinfer_bench.compile import BuilderRegistry
from moebench.core import paths
from moebench.core.errors import UserError
from moebench.operators.catalogue import definition
from moebench.packing.pack import pack
from pebble import ProcessPool

from solutions.common.triton import tiles

TOOL = paths.ROOT / "tools" / "tune_triton"
sys.path.insert(0, str(TOOL))

import prune  # noqa: E402
import routing  # noqa: E402
import tune  # noqa: E402
from candidates import Candidate, best_pair, choice_of, grid, other_groups, useful_block_ms  # noqa: E402
from gemms import check, operands, prepare  # noqa: E402

SIZES = 32, 512, 256  # of the definition "small"
FITS = Candidate(16, 128, 8, 2, 4, 3, 8, "gemm2", False)
GEMM1 = Candidate(16, 128, 8, 1, 4, 5, 4, "gemm1", True)


@pytest.fixture(scope="module")
def solution():
    built = BuilderRegistry.get_instance().build(definition("small"), pack(tune.SOLUTION)["small"])
    return import_module(built.metadata.misc["module_name"])


@pytest.mark.slow
def test_what_does_not_compile_spills_or_does_not_fit_is_left_out(solution, monkeypatch):
    """A user would miss: "out of resource" on the GPU, or a tile that spills and is timed for
    nothing.
    """
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    wanted = {
        FITS: None,
        FITS._replace(per_sm=40): "does not fit",
        Candidate(128, 128, 8, 1, 8, 8, 4, "gemm2", False): "does not fit",
        Candidate(128, 128, 8, 1, 4, 3, 4, "gemm1", True): "spills",
        FITS._replace(num_warps=3): "does not compile",
    }
    known = "sm_90", Path(solution.__file__).parent, (32, 7168, 2048), 8
    with ProcessPool(
        2, context=get_context("spawn"), initializer=prune.start, initargs=known
    ) as pool:
        found = prune.left_out(pool, list(wanted))
    assert {each: why and why.partition(":")[0] for each, why in found.items()} == wanted


def test_what_fits_by_its_registers_and_shared_memory():
    assert prune.why_left_out(FITS, 100_000, 128, 0) is None
    for used in ((227 * 1024 + 1, 128, 0), (120_000, 128, 0), (100_000, 128, 8), (100_000, 255, 0)):
        crowded = FITS._replace(per_sm=3 if used[1] == 255 else 2)
        assert prune.why_left_out(crowded, *used), used


def test_the_pair_has_the_least_sum_within_one_block_m():
    """A user would miss: the best gemm1 and the best gemm2 chosen apart, which cannot run
    together.
    """
    wide1, wide2 = GEMM1._replace(block_m=32), FITS._replace(block_m=32)
    assert best_pair({GEMM1: 10.0, wide1: 14.0, FITS: 30.0, wide2: 20.0}) == (wide1, wide2)
    assert best_pair({GEMM1: 10.0, wide1: 10.0, FITS: 20.0, wide2: 20.0}) == (GEMM1, FITS), "a tie"
    assert best_pair({GEMM1: 10.0, GEMM1._replace(per_sm=2): 10.0, FITS: 1.0}) == (GEMM1, FITS), (
        "a tie"
    )
    assert (
        best_pair({GEMM1: 10.0, wide2: 20.0}) == best_pair({GEMM1: "it spills", FITS: 20.0}) == ()
    )


def test_the_grid():
    tried = grid([16, 32], 132)
    assert len(tried) == len(set(tried)) == 2 * 3 * 2 * 4 * (2 + 2)
    assert {each.block_n for each in tried if each.stage == "gemm1"} == {128}
    assert {(each.per_sm, each.programs) for each in tried} == {(1, 132), (2, 264), (3, 396)}
    assert {each.group for each in other_groups((FITS,))} == {1, 4, 16, 32}
    assert [useful_block_ms(rows) for rows in (1, 28, 441)] == [
        [16, 32],
        [16, 32, 64],
        [32, 64, 128],
    ]


def test_a_line_written_is_what_the_solution_reads(monkeypatch):
    """A user would miss: a table that the solution cannot load, or that differs wherever it was not
    tuned.
    """
    table = tune.TABLE.read_text(encoding="utf-8")
    header, first, *others = table.splitlines(True)
    gpu, sizes, num_tokens, version = first.split(",")[:4]
    monkeypatch.setattr(tune.triton, "__version__", version)
    choice = tiles.tuned()[gpu, sizes][int(num_tokens)]
    found = choice_of(
        Candidate(*choice.gemm1, "gemm1", choice.fused), Candidate(*choice.gemm2, "gemm2", False)
    )
    for before, written in ((table, choice), ("".join([header, *others]), found)):
        assert tune.with_row(before, gpu, sizes, int(num_tokens), written) == table
    assert tune.with_row(header, gpu, sizes, int(num_tokens), choice) == header + first


def test_a_search_checks_times_records_and_keeps_what_is_faster(
    solution, tmp_path, monkeypatch, poisoned_scratch
):
    """In the interpreter: the wrong and the slower are not kept, and a second run times what the
    first did not.
    """
    expert = torch.tensor(
        [[0, 1, 2, -1, -1, -1, -1, 3], [0, -1, 2, -1, -1, -1, -1, -1]], dtype=torch.int32
    )
    prepared = [prepare(solution.__package__, operands(SIZES, 4, "cpu"), expert)]
    present = solution.choose("sm_90", "A GPU", 4, SIZES, 8 / 256, 2)
    asked, original, record = [], tune.measured, tmp_path / "record.json"

    def measured(candidate, *rest):
        asked.append(candidate)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return original(candidate, *rest) - candidate.num_warps

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(tune, "times_us", lambda calls, repeats: [50.0] * len(calls))
    monkeypatch.setattr(tune, "measured", measured)
    monkeypatch.setattr(tune, "left_out", lambda pool, wanted: dict.fromkeys(wanted))
    monkeypatch.setattr(tune, "other_groups", lambda pair: [])
    tried = [
        GEMM1,
        GEMM1._replace(fused=False, num_warps=8),
        FITS,
        FITS._replace(block_n=64, num_warps=8),
    ]
    with pytest.raises(KeyboardInterrupt):
        tune.tune(prepared, present, tried, record, None)
    assert tune.tune(prepared, present, tried, record, None) is present, "nothing was faster"
    assert asked == [*tried, tried[3]] and [us for _, us in json.loads(record.read_text())] == [
        46,
        42,
        46,
        42,
    ]
    monkeypatch.setattr(tune, "times_us", lambda calls, repeats: [50.0, 49.0])
    found = tune.tune(prepared, present, tried, record, None)
    assert len(asked) == 5 and found == choice_of(tried[1], tried[3]) and not found.fused


def test_a_wrong_tile_is_seen():
    wanted = torch.ones(4, 256)
    got = wanted.clone()
    check(got, wanted)
    got[1, :64], got[2, 0] = 0, torch.nan
    with pytest.raises(ValueError, match="^2 of 4"):
        check(got, wanted)


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
        return subprocess.run(
            command, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True
        ).returncode

    tune_py, tiles_py = "tune_triton/tune.py", "cutlass_tiles/time_tiles.py"
    assert [run(tune_py, "--help"), run(tune_py, "--definition", "full-routed"), run(tune_py)] == [
        0,
        2,
        1,
    ]
    assert [run(tiles_py, "--help"), run(tiles_py, "0"), run(tiles_py, "7")] == [0, 2, 1]
