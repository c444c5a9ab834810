"""tools/tune_triton: what is left out before it is timed, what is chosen, and the line that is
written.
"""

import runpy
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

from solutions.common.triton.gemms import tiles

TOOL = paths.ROOT / "tools" / "tune_triton"
sys.path.insert(0, str(TOOL))

import prune  # noqa: E402
import routing  # noqa: E402
import tune  # noqa: E402
from candidates import (  # noqa: E402
    Candidate,
    best_pair,
    choice_of,
)
from gemms import check  # noqa: E402

FITS = Candidate(16, 128, 8, 2, 4, 3, 8, "gemm2", False)
GEMM1 = Candidate(16, 128, 8, 1, 4, 5, 4, "gemm1", True)
WIDE1 = GEMM1._replace(block_m=32)
WIDE2 = FITS._replace(block_m=32)


@pytest.fixture(scope="module")
def solution():
    packed = pack(tune.SOLUTION)["small"]
    built = BuilderRegistry.get_instance().build(definition("small"), packed)
    return import_module(built.metadata.misc["module_name"])


@pytest.mark.slow
def test_what_does_not_compile_spills_or_does_not_fit_is_left_out(
    solution, monkeypatch
):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    expected = {
        FITS._replace(per_sm=40): "does not fit",
        Candidate(128, 128, 8, 1, 8, 8, 4, "gemm2", False): "does not fit",
        Candidate(128, 128, 8, 1, 4, 3, 4, "gemm1", True): "spills",
        FITS._replace(num_warps=3): "does not compile",
    }
    layer = ("sm_90", Path(solution.__file__).parent, (32, 7168, 2048), 8)

    spawn = get_context("spawn")
    with ProcessPool(2, initializer=prune.start, initargs=layer, context=spawn) as pool:
        left_out = prune.left_out(pool, [FITS, *expected])

    assert left_out[FITS] is None
    for candidate, reason in expected.items():
        assert left_out[candidate].partition(":")[0] == reason


@pytest.mark.parametrize(
    ("per_sm", "shared", "registers", "spilled"),
    [
        (2, 227 * 1024 + 1, 128, 0),
        (2, 120_000, 128, 0),
        (2, 100_000, 128, 8),
        (3, 100_000, 255, 0),
    ],
)
def test_what_does_not_fit(per_sm, shared, registers, spilled):
    assert prune.why_left_out(FITS, 100_000, 128, 0) is None
    assert prune.why_left_out(FITS._replace(per_sm=per_sm), shared, registers, spilled)


@pytest.mark.parametrize(
    ("times", "pair"),
    [
        ({GEMM1: 10.0, WIDE1: 14.0, FITS: 30.0, WIDE2: 20.0}, (WIDE1, WIDE2)),
        ({GEMM1: 10.0, WIDE1: 10.0, FITS: 20.0, WIDE2: 20.0}, (GEMM1, FITS)),  # a tie
        ({GEMM1: 10.0, GEMM1._replace(per_sm=2): 10.0, FITS: 1.0}, (GEMM1, FITS)),
        ({GEMM1: 10.0, WIDE2: 20.0}, ()),
        ({GEMM1: "it spills", FITS: 20.0}, ()),
    ],
)
def test_the_pair_has_the_least_sum_within_one_block_m(times, pair):
    """Chosen apart, the best gemm1 and the best gemm2 may not run together."""
    assert best_pair(times) == pair


def test_a_line_written_is_what_the_solution_reads(monkeypatch):
    table = tune.TABLE.read_text(encoding="utf-8")
    header, first, *_ = table.splitlines(True)
    gpu, sizes, num_tokens, version, *_ = first.split(",")
    row = (gpu, sizes, int(num_tokens))
    monkeypatch.setattr(tune.triton, "__version__", version)
    choice = tiles.tuned()[gpu, sizes][int(num_tokens)]
    gemm1 = Candidate(*choice.gemm1, "gemm1", choice.fused)
    gemm2 = Candidate(*choice.gemm2, "gemm2", False)

    assert tune.with_row(table, *row, choice) == table
    assert (
        tune.with_row(table.replace(first, ""), *row, choice_of(gemm1, gemm2)) == table
    )
    assert tune.with_row(header, *row, choice) == header + first


def test_a_wrong_tile_is_seen():
    expected = torch.ones(4, 256)
    check(expected, expected)

    output = expected.clone()
    output[1, :64] = 0
    output[2, 0] = torch.nan
    with pytest.raises(ValueError, match="^2 of 4"):
        check(output, expected)


def test_recorded_ids(tmp_path):
    ids = torch.arange(8).repeat(5, 1)
    torch.save(ids, tmp_path / "a.pt")
    (first,) = routing.recorded(tmp_path, "full", 3, 9)
    assert first.tolist() == ids[:3].tolist()
    assert first.dtype == torch.int32

    with pytest.raises(UserError, match="--tokens"):
        routing.recorded(tmp_path, "full", 6, 9)
    torch.save(ids.float(), tmp_path / "b.pt")
    with pytest.raises(UserError, match="b.pt"):
        routing.recorded(tmp_path, "full", 3, 9)


def test_drawn_ids_are_seen_from_a_rank():
    for layer in routing.drawn("full", 3, 2):
        assert (layer >= 0).any()
        assert layer.max() < 32


@pytest.fixture
def status_of(monkeypatch, no_gpu):
    """A function that runs a script with arguments, and returns its exit status."""

    def run(script, *arguments):
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(TOOL.parent / script), run_name="__main__")
        return left.value.code

    return run


@pytest.mark.parametrize(
    ("script", "argument", "status"),
    [
        ("tune_triton/tune.py", "--help", 0),
        ("tune_triton/tune.py", "--definition=full-routed", 2),
        ("tune_triton/tune.py", "--layers=2", 1),  # there is no GPU
        ("cutlass_tiles/time_tiles.py", "--help", 0),
        ("cutlass_tiles/time_tiles.py", "0", 2),
        ("cutlass_tiles/time_tiles.py", "7", 1),
    ],
)
def test_a_command_helps_or_says_that_it_cannot_run(
    status_of, script, argument, status
):
    assert status_of(script, argument) == status
