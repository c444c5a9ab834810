"""moebench tune: what is tried, left out, checked, recorded and kept; the small geometry in the interpreter."""

import ast
import importlib
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from harness import cli
from harness.commands import tune
from harness.core import paths
from harness.core.errors import UserError
from harness.core.provenance import Provenance
from harness.operators import moe_fp8_block_scale
from harness.operators.routing_kinds import offset_of
from harness.packing import manifest
from harness.report import tuning
from harness.results import staleness
from harness.tuning import bench as tune_bench
from harness.tuning import prune, routing
from harness.tuning import search as tune_search
from harness.tuning.record import STAGES, Head, Record, table_source
from harness.tuning.space import (
    TileSize,
    Variant,
    best_pair,
    coarse,
    go_together,
    modes,
    other_groups,
    parse_configuration,
    useful_block_ms,
    variants,
)
from safetensors.torch import save_file

from solutions.kernels.route import route_ref
from solutions.triton_fused_v2 import tiles

T = 3
TILE = TileSize(16, 128, 8, 2, 4, 3)


def head(gpu="A GPU", sha1="0", torch_version="2", **changes):
    sizes = {"local_experts": 32, "hidden": 512, "intermediate": 256}
    versions = {"torch": torch_version, "triton": "3"}
    provenance = Provenance(hardware=gpu, versions=versions, timestamp="2026-01-01", source_sha1=sha1)
    fields = {"architecture": "sm_90", **sizes, "routing": "made up", "provenance": provenance}
    return Head(**fields | changes)


def cost(variant):
    """Made-up microseconds: larger tiles are slower in gemm1 and faster in gemm2, TMA helps gemm2, group 4 both."""
    us = 100 + variant.tile.block_m if variant.stage == "gemm1" else 200 - variant.tile.block_m
    us += 0 if variant.tma or variant.stage == "gemm1" else 30
    return us + abs(variant.tile.group - 4) + variant.tile.num_warps + variant.tile.num_stages


@pytest.fixture(scope="module")
def main():
    return tune_bench.built("small")


@pytest.fixture(scope="module")
def operands(main):
    return tune_bench.random_operands(head().sizes, 8, 24, "cpu")


def layers(num_tokens, number=2):
    """Routing over ten experts, of which five are local to the first rank: few tiles, for the interpreter."""
    ids = torch.tensor([0, 1, 2, 7, 31, 40, 41, 42, 43, 44])
    batches = [
        routing.Batch(f"layer{n}", ids[torch.rand((24, 10), generator=generator).argsort(1)[:, :8]])
        for generator in [torch.Generator().manual_seed(num_tokens)]
        for n in range(number)
    ]
    return routing.layers_of(batches, num_tokens, "full", number)


@pytest.fixture(scope="module")
def present_outputs():
    """(present variant, layer) -> its outputs, which the interpreter computes once for all tests."""
    return {}


@pytest.fixture
def bench(main, operands, present_outputs):
    made = tune_bench.Bench(main, operands, layers(T), tune_bench.present(main, head(), 4, 8 / 256, T))
    computed = made.outputs

    def outputs(variant, layer):
        if variant not in made.present:
            return computed(variant, layer)
        if (variant, layer.name) not in present_outputs:
            present_outputs[variant, layer.name] = computed(variant, layer)
        return present_outputs[variant, layer.name]

    made.outputs = outputs
    return made


@pytest.fixture
def quick(bench):
    """A bench whose candidates all compute the same, without the interpreter: for tests of the search alone."""
    bench.outputs = lambda variant, layer: torch.ones(layer.rows, 8)
    return bench


class Timer:
    """Stands in for the GPU's clock: runs nothing, tells what `cost` says, and remembers whom it was asked for."""

    def __init__(self, bench):
        self.asked = []
        self.bench = bench
        original = bench.call

        def call(variant, layer):
            real = original(variant, layer)

            def run():
                return real()

            run.variant = variant
            return run

        bench.call = call

    def __call__(self, calls, repeats):
        variants_of = [getattr(call, "variant", None) or sum_of(call) for call in calls]
        self.asked += [v for v in variants_of if isinstance(v, Variant)]
        return [[cost(v) if isinstance(v, Variant) else v] * repeats for v in variants_of]


def sum_of(call):
    """The made-up time of a sequence of two calls."""
    return sum(cost(part.variant) for part in call.__defaults__)


@pytest.fixture(autouse=True)
def event_times_restored(monkeypatch):
    monkeypatch.setattr(tune_search, "event_times", tune_search.event_times)


def search(record, timer, prune=dict.fromkeys):
    tune_search.event_times = timer
    return tune_search.Search(record, prune)


def wanted(bench, few=False):
    return {bench: tune_search.to_try(bench.layers, bench.present, few=few)}


FEW = [Variant("gemm1", TILE._replace(block_m=m), m, tma, True) for m in (16, 32) for tma in (True, False)] + [
    Variant("gemm2", TILE._replace(block_m=m), padded, tma)
    for m, padded in ((16, 16), (16, 32), (32, 32))
    for tma in (True, False)
]


# What is tried, and what goes together


def test_the_padding_is_a_multiple_of_both_block_sizes():
    """A user would miss: a table whose gemm2 reads rows that belong to two experts."""
    tried = variants([16, 32, 64], 8)
    assert all(v.padded_to % v.tile.block_m == 0 for v in tried)
    assert all(v.padded_to == v.tile.block_m for v in tried if v.stage == "gemm1")
    assert {(v.tile.block_m, v.padded_to) for v in tried if v.stage == "gemm2"} == {
        (16, 16), (16, 32), (16, 64), (32, 32), (32, 64), (64, 64),
    }  # fmt: skip
    first = Variant("gemm1", TILE._replace(block_m=32), 32, True)
    assert go_together(first, Variant("gemm2", TILE, 32, True))
    assert not go_together(first, Variant("gemm2", TILE, 16, True))
    assert not go_together(first, Variant("gemm2", TILE, 32, False))


def test_the_best_pair_is_the_least_sum_within_the_constraint():
    """A user would miss: the best gemm1 and the best gemm2 chosen apart, which cannot run together."""
    times = {variant: cost(variant) for variant in FEW}
    alone = [min((v for v in FEW if v.stage == s), key=cost) for s in ("gemm1", "gemm2")]
    assert not go_together(*alone)
    pair = best_pair(times)
    assert go_together(*pair)
    wanted = min(cost(a) + cost(b) for a in FEW for b in FEW
                 if (a.stage, b.stage) == ("gemm1", "gemm2") and go_together(a, b))  # fmt: skip
    assert sum(map(cost, pair)) == wanted
    assert best_pair({alone[0]: 1.0, alone[1]: 1.0}) is None


def test_block_sizes_follow_the_rows_of_an_expert():
    assert useful_block_ms(1) == [16, 32]
    assert useful_block_ms(28) == [16, 32, 64]
    assert useful_block_ms(441) == [32, 64, 128]


# Both modes of the products, as the tuner runs them


@pytest.mark.parametrize("variant", [v for v in FEW if v.stage == "gemm2" or v.tile.block_m == 32], ids=str)
def test_every_mode_computes_the_same(bench, variant):
    """A user would miss: the mode without TMA, or a gemm2 tile that is part of the padding, mixing up rows."""
    layer = bench.layers[0]
    wanted = bench.outputs(bench.present[variant.stage == "gemm2"], layer)
    assert len(wanted) == layer.rows and wanted.norm(dim=1).min() > 0
    assert tune_bench.difference(bench.outputs(variant, layer), wanted) is None


def test_swiglu_after_gemm1_computes_the_same_in_either_order(bench):
    wanted = bench.outputs(bench.present[0], bench.layers[0])
    for tma in (True, False):
        apart = Variant("gemm1", TILE, 16, tma, fused=False)
        assert tune_bench.difference(bench.outputs(apart, bench.layers[0]), wanted) is None


def test_the_layer_runs_without_tma_and_with_a_divided_padding(main, operands, monkeypatch):
    """A user would miss: a table with such a row making the solution wrong."""
    offset = offset_of("small")
    logits = torch.randn(T, 256, generator=torch.Generator().manual_seed(0))
    logits[:, offset + 3 : offset + 7] += 20.0  # four local experts that every token takes
    x, x_scale = operands["hidden_states"][:T], operands["hidden_states_scale"][:, :T].contiguous()
    weights = [operands[f"gemm{n}_weights{part}"] for n in (1, 2) for part in ("", "_scale")]
    args = [logits, torch.zeros(256, dtype=torch.bfloat16), x, x_scale, *weights, offset, 2.5]
    tiles = tune_bench.tiles_of(main)
    answers = []
    for tma, fused, block_m in ((True, True, 16), (False, False, 32), (True, True, 32)):
        choice = tiles.Choice(tiles.Tile(block_m, 128, 8, 2, 4, 3, 8), tiles.Tile(16, 64, 8, 2, 4, 3, 8), fused, tma)
        monkeypatch.setattr(main, "choose", lambda *_, choice=choice: choice)
        answers.append(torch.full((T, 512), torch.nan, dtype=torch.bfloat16))
        main.run(*args, answers[-1])
    assert (answers[0].float().norm(dim=1) > 0).all()
    for answer in answers[1:]:
        assert (answer.float() - answers[0].float()).norm() <= 0.02 * answers[0].float().norm()


# The search


def test_a_search_ends_with_the_best_pair_and_tries_other_groups(quick, monkeypatch):
    """A user would miss: a table that is not the fastest of what was timed."""
    monkeypatch.setattr(tune_search, "variants", lambda block_ms, group: FEW)
    record = Record(None, head())
    search(record, Timer(quick)).tune(wanted(quick))
    compared = record.compared[T]
    assert go_together(*compared.found)
    assert [v.tile.group for v in compared.found] == [4, 4], "the group was not searched"
    best = min(cost(a) + cost(b) for a in FEW for b in FEW
               if (a.stage, b.stage) == ("gemm1", "gemm2") and go_together(a, b))  # fmt: skip
    assert compared.found_us == best - 2 * (8 - 4)
    assert compared.present_us == sum(map(cost, quick.present)) and compared.kept == compared.found


def test_the_present_tiles_are_kept_where_nothing_is_faster(quick, monkeypatch):
    """A user would miss: a retuned table that is slower than the one it replaces."""
    monkeypatch.setattr(tune_search, "variants", lambda block_ms, group: [])
    monkeypatch.setattr(tune_search, "other_groups", lambda variant: [])
    record = Record(None, head())
    search(record, Timer(quick)).tune(wanted(quick))
    assert record.compared[T].kept == quick.present


@pytest.mark.parametrize("stage", ["gemm1", "gemm2"])
@pytest.mark.parametrize("wrong", ["one tile", "not written", "raises"])
def test_a_wrong_candidate_is_rejected(bench, main, monkeypatch, stage, wrong):
    """A user would miss: the fastest tile winning because it computes something else."""
    bad = next(v for v in FEW if v.stage == stage and v not in bench.present)
    name = {"gemm1": "first_product", "gemm2": "gemm2"}[stage]
    original = getattr(main, name)

    def broken(*args):
        tile = args[5].gemm1 if stage == "gemm1" else args[7]
        if tile.block_m != bad.tile.block_m or tile.programs != bad.tile.per_sm * bench.multiprocessors:
            return original(*args)
        if wrong == "raises":
            raise RuntimeError("out of resource: shared memory\nmore")
        if wrong == "not written":
            h, w = args[0], args[2]
            rows = args[4].row_of_pair.numel() if not bad.tma else len(args[4].pair_of_row)
            empty = torch.empty(rows, w.shape[1] // 2, dtype=torch.float32)
            return (empty.to(h.dtype), torch.empty(rows, w.shape[1] // 256)) if stage == "gemm1" else None
        found = original(*args)
        spoiled = found[1] if stage == "gemm1" else args[6]
        at = args[4].row_of_pair.max()
        if stage == "gemm1" and not bad.tma:
            at = int((args[4].row_of_pair.flatten() >= 0).nonzero()[0])
        spoiled[at] *= 2
        return found

    bad = replace(bad, tile=bad.tile._replace(per_sm=5))
    monkeypatch.setattr(main, name, broken)
    record = Record(None, head())
    timer = Timer(bench)
    search(record, timer).time_all({bench: [bench.present[stage == "gemm2"], bad]}, "tiles")
    line = record.timed[T, bad]
    assert line.us is None and bad not in timer.asked and bad not in record.times(T)
    assert "out of resource: shared memory" in line.error if wrong == "raises" else "differs from" in line.error
    assert record.timed[T, bench.present[stage == "gemm2"]].error is None


def test_a_hopeless_candidate_is_not_timed_on_every_layer(quick):
    slow = Variant("gemm2", TILE._replace(num_stages=2000), 16, True)
    record, timer = Record(None, head()), Timer(quick)
    search(record, timer).time_all({quick: [quick.present[1], slow]}, "tiles")
    assert record.timed[T, slow].layers == 1 and slow not in record.times(T)
    assert timer.asked.count(slow) == 1


def test_a_run_goes_on_where_it_was_stopped(quick, tmp_path, monkeypatch):
    """A user would miss: hours of tuning repeated."""
    monkeypatch.setattr(tune_search, "variants", lambda block_ms, group: FEW)
    path, asked = tmp_path / "record.jsonl", []

    def stop_after(number):
        timer = Timer(quick)

        def counted(calls, repeats):
            asked.append(len(calls))
            if len(asked) > number:
                raise KeyboardInterrupt
            return timer(calls, repeats)

        return counted

    with pytest.raises(KeyboardInterrupt):
        search(Record(path, head()), stop_after(9)).tune(wanted(quick))
    before = len(Record(path, head()).timed)
    assert 0 < before < len(FEW)
    with path.open("a") as file:
        file.write('{"kind": "timed", "T":')  # the stop came in the middle of a line
    again, timer = Record(path, head()), Timer(quick)
    assert len(again.timed) == before
    search(again, timer).tune(wanted(quick))
    assert not {v for _, v in list(again.timed)[:before]} & set(timer.asked), "timed again"
    assert set(Record(path).timed) == set(again.timed) and T in Record(path).compared
    timer.asked.clear()
    search(Record(path, head()), timer).tune(wanted(quick))
    assert not timer.asked, "tuned again though it was at its end"


def test_a_record_of_other_circumstances_is_refused(tmp_path):
    """A user would miss: two GPUs' or two versions' times in one table."""
    path = tmp_path / "record.jsonl"
    Record(path, head())
    with pytest.raises(UserError, match="record.jsonl: was measured with gpu A GPU, now it is B: move it away"):
        Record(path, head(gpu="B"))
    with pytest.raises(UserError, match="record.jsonl: was measured with torch 2, now it is 3"):
        Record(path, head(torch_version="3"))
    path.write_text("nonsense\n")
    with pytest.raises(UserError, match="record.jsonl:1: not a TuningLine"):
        Record(path, head())


def test_one_configuration_is_timed_in_all_its_modes_and_keeps_nothing(quick):
    tile = TILE._replace(per_sm=1, num_warps=8)
    record = Record(None, head())
    wanted = tune_search.to_try(quick.layers, quick.present, tile)
    search(record, Timer(quick)).time_all({quick: wanted}, str(tile))
    timed = {variant for _, variant in record.timed}
    assert timed == {*quick.present, *modes(tile, [16, 32])}
    assert not record.compared
    ((*rows,),) = tuning.times_table(record, T, None).sections
    (row,) = [row for row in rows if row[0] == tile]
    assert len(row) == 5 and None not in row, "want gemm1 and gemm2, with TMA and without"


# Left out without a GPU


@pytest.mark.slow
def test_pruning_names_what_does_not_fit(tmp_path, main):
    """A user would miss: "out of resource" on the GPU, or a candidate that spills and is timed for nothing."""
    tile = TileSize(128, 128, 8, 1, 4, 3)
    fits = Variant("gemm2", TILE, 16, True)
    greedy = Variant("gemm2", TileSize(128, 128, 8, 1, 8, 8), 128, True)
    crowded = replace(fits, tile=TILE._replace(per_sm=40))
    spilling = Variant("gemm1", tile, 128, True, fused=True)
    absurd = Variant("gemm2", TILE._replace(num_warps=3), 16, True)
    compiled = []

    def tracked(kernels):
        compiled.extend(kernels)
        return kernels

    wanted = [fits, crowded, greedy, spilling, absurd]
    target = prune.Target(Path(main.__file__).parent, 32, 7168, 2048, 8)
    why = prune.left_out({target: wanted}, "sm_90", tracked)[target]
    assert why[fits] is None
    assert why[greedy].startswith("shared memory: ") and "a thread block has 232448" in why[greedy]
    assert why[spilling].startswith("spills: ")
    assert why[crowded].startswith("registers and shared memory: 40 programs a multiprocessor, ")
    assert why[absurd].startswith("does not compile: ")
    assert len(compiled) == 4, "fits and crowded are one kernel"
    assert "1 for spills" in prune.counts_by_kind(filter(None, why.values()))


def test_what_is_left_out_is_neither_run_nor_compiled_again(quick, tmp_path, monkeypatch):
    monkeypatch.setattr(tune_search, "variants", lambda block_ms, group: FEW)
    monkeypatch.setattr(tune_search, "other_groups", lambda variant: [])
    bad, asked = FEW[3], []

    def prune(wanted):
        asked.extend(wanted)
        return {variant: "spills: 8 bytes" if variant == bad else None for variant in wanted}

    path = tmp_path / "record.jsonl"
    timer = Timer(quick)
    search(Record(path, head()), timer, prune).tune(wanted(quick))
    assert bad in asked and bad not in timer.asked
    asked.clear()
    search(Record(path, head()), timer, prune).tune(wanted(quick))
    assert not asked


def test_an_architecture_without_tma_is_refused(main):
    with pytest.raises(UserError, match="architecture: got sm_80, the kernels need TMA, want one of sm_90, sm_100"):
        prune.left_out({prune.Target(Path(main.__file__).parent, *head().sizes, 8): [FEW[0]]}, "sm_80")


def test_definitions_that_differ_by_their_experts_share_kernels():
    """A user would miss: a GPU that waits while the same code is compiled for each degree of expert parallelism."""
    ep8, ep4 = (prune.Target(Path("package"), local, 7168, 2048, 8) for local in (32, 64))
    wider, more = ep8._replace(hidden=6144), ep8._replace(top_k=10)
    assert len(prune.kernels({ep8: FEW, ep4: FEW})) == len(prune.kernels({ep8: FEW}))
    assert len(prune.kernels({ep8: FEW, wider: FEW, more: FEW})) == 3 * len(prune.kernels({ep8: FEW}))


@pytest.mark.slow
def test_kernels_are_found_again_by_a_definition_that_shares_them(tmp_path, monkeypatch):
    """As above, in Triton's cache: the key holds neither the module's path nor the number of experts."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for geometry, local in (("deepseek-v3-ep4", 64), ("kimi-k2-ep8", 48)):
        package = Path(tune_bench.built(geometry).__file__).parent
        target = prune.Target(package, local, 7168, 2048, 8)
        assert set(prune.left_out({target: FEW[:1]}, "sm_90")[target].values()) == {None}
        assert len(list(tmp_path.glob("*/*.cubin"))) == 1


def test_a_coarse_search_tries_a_few_tiles_of_every_useful_size():
    """A user would miss: a budget spent on one T, or a T without a pair that goes together."""
    for rows in (1, 7, 12, 16, 28, 64, 130, 500):
        tried = coarse(rows)
        assert best_pair(dict.fromkeys(tried, 1.0)), f"{rows} rows"
        for stage in ("gemm1", "gemm2"):
            sizes = [v.tile.block_m for v in tried if v.stage == stage]
            assert 4 <= len(sizes) <= 15 and min(sizes) <= max(rows, 16), f"{rows} rows"


# Routing


def test_ranks_of_a_batch_share_out_its_rows():
    """A user would miss: tiles judged on rows that no rank has."""
    batch = routing.Batch("b", torch.rand((40, 256), generator=torch.Generator().manual_seed(1)).argsort(1)[:, :8], 3)
    seen = list(routing.shares([batch], 40, "full"))
    assert [layer.name for layer in seen[:2]] == ["b/rank3", "b/rank4"] and len(seen) == 8
    assert sum(layer.rows for layer in seen) == 40 * 8
    assert torch.equal(seen[0].expert, torch.where(batch.expert // 32 == 3, batch.expert - 96, -1).int())


def test_the_workloads_give_the_routing_of_their_blobs():
    """The route stage's own plain statement must agree, expert by expert."""
    batches = {batch.name: batch for batch in routing.of_workloads("small")}
    (case,) = [case for case in moe_fp8_block_scale.cases("small") if case.name == "first-rank"]
    logits, bias = map(torch.from_numpy, moe_fp8_block_scale.routing(case))
    wanted, _ = route_ref(logits, bias, case.offset, 2.5, 32)
    got = next(routing.shares([batches[case.uuid[:8]]], case.seq_len, "full")).expert
    assert torch.equal(got.sort(1).values, wanted.sort(1).values)


@pytest.mark.parametrize("geometry", ["small", "small-renorm"])
def test_drawing_a_batch_parses_no_source(geometry, monkeypatch):
    """Definitions are drawn in threads, and in Python 3.11 two that parse at once end in a SystemError."""
    with monkeypatch.context() as patch:
        patch.setattr(ast, "parse", None)
        assert routing.of_workloads(geometry)


def test_recorded_ids_are_read_from_either_format(tmp_path):
    ids = torch.rand((9, 256), generator=torch.Generator().manual_seed(2)).argsort(1)[:, :8]
    torch.save(ids, tmp_path / "layer3.pt")
    save_file({"topk_ids": ids.int()}, tmp_path / "layer4.safetensors")
    (tmp_path / "notes.txt").write_text("not an id file")
    batches = routing.of_folder(tmp_path, "full")
    assert [batch.name for batch in batches] == ["layer3", "layer4"]
    assert all(torch.equal(batch.expert, ids) for batch in batches)


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (torch.zeros(4, 8), "holds torch.float32, want a tensor of integers"),
        (torch.zeros(4, 6, dtype=torch.int32), r"has shape \[4, 6\], want \[T, 8\]"),
        (torch.arange(8)[None] + 250, "experts 250 to 257, want -1 to 255"),
        (torch.zeros(4, 8, dtype=torch.int64), "token 0 has an expert twice"),
    ],
)
def test_ids_that_are_none_are_named(tmp_path, ids, said):
    torch.save(ids, tmp_path / "bad.pt")
    with pytest.raises(UserError, match=f"bad.pt: {said}"):
        routing.of_folder(tmp_path, "full")


def test_more_tokens_than_were_recorded_are_refused():
    with pytest.raises(UserError, match="T = 25: the longest batch has 24 tokens; record one with --routing"):
        layers(25)


# The command


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--tokens", "none"], "got 'none', want a whole number, 1 or more"),
        (["--configuration", "64x128"], "configuration '64x128': want BLOCK_M, BLOCK_N, group"),
        (["--configuration", "m48-n128-g8-p2-w4-s3"], "block_m is 48, want one of 16, 32, 64, 128"),
        (["--only-prune", "--routing", "/nowhere"], "--routing: /nowhere is not a folder"),
        (["--only-prune", "--tokens", "99999"], "T = 99999: the longest batch has"),
        (["--definition", "huge"], "unknown definition 'huge'; there are: full, "),
        (
            ["--definition", "qwen3-30b-routed"],
            "--definition: qwen3-30b-routed has the tiles of qwen3-30b: --definition qwen3-30b",
        ),
    ],
)
def test_bad_input_ends_in_one_clear_line(args, said, capsys):
    assert cli.main(["tune", "--definition", "small", *args]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to tune on")
def test_without_a_gpu_it_says_what_can_be_done(capsys):
    code, err = cli.main(["tune", "--definition", "small"]), capsys.readouterr().err
    assert code == 1 and err.count("\n") == 1 and "needs a CUDA device" in err and "--only-prune" in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="prunes for the GPU that is here")
def test_pruning_alone_needs_no_gpu(capsys):
    args = ["--definition", "small", "--only-prune", "--tokens", "5", "--configuration", "m64-n64-g8-p4-w4-s6"]
    assert cli.main(["tune", *args]) == 0
    out = capsys.readouterr().out
    assert "candidates" in out and "gemm2 m64-n64-g8-p4-w4-s6 of64 tma  " in out


@pytest.mark.skipif(torch.cuda.is_available(), reason="prunes for the GPU that is here")
def test_by_default_only_token_counts_are_taken_that_a_batch_has(capsys, monkeypatch):
    """A user would miss: a default that ends in an error, as T = 901 does where the longest batch has 70 tokens."""
    asked = []

    def left_out(wanted, *_):
        ((target, variants),) = wanted.items()
        asked.extend(variants)
        return {target: dict.fromkeys(variants)}

    monkeypatch.setattr(prune, "left_out", left_out)
    taken = []
    layers_of = routing.layers_of
    monkeypatch.setattr(routing, "layers_of", lambda batches, t, *rest: taken.append(t) or layers_of(batches, t, *rest))
    assert cli.main(["tune", "--definition", "small", "--only-prune"]) == 0
    assert taken == [1, 7, 57] and asked


@pytest.fixture
def pretended_gpu(main, tmp_path, monkeypatch):
    """The command finds a GPU, on which nothing runs: all variants compute ones, and take what `cost` says."""

    def call(self, variant, layer):
        made = lambda: []  # noqa: E731
        made.variant = variant
        return made

    timer = Timer(SimpleNamespace(call=None))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(tune, "device_here", lambda: "cpu")
    monkeypatch.setattr(tune_bench, "built", lambda geometry: main)
    monkeypatch.setattr(main, "gpu_of", lambda device: ("sm_90", "Test GPU", 4))
    monkeypatch.setattr(tune_bench.Bench, "call", call)
    monkeypatch.setattr(tune_bench.Bench, "outputs", lambda self, variant, layer: torch.ones(layer.rows, 8))
    monkeypatch.setattr(tune_search, "event_times", timer)
    monkeypatch.setattr(prune, "left_out", lambda wanted, *_: {t: dict.fromkeys(vs) for t, vs in wanted.items()})
    monkeypatch.setattr(tune_search, "variants", lambda block_ms, group: FEW)
    (tmp_path / tune_bench.SOLUTION).mkdir()
    shutil.copy(paths.SOLUTIONS / tune_bench.SOLUTION / manifest.MANIFEST, tmp_path / tune_bench.SOLUTION)
    for name in ("SOLUTIONS", "TUNING"):
        monkeypatch.setattr(paths, name, tmp_path)


def test_the_command_records_what_it_timed_and_writes_the_table(pretended_gpu, tmp_path, capsys):
    """A user would miss: hours of timing whose result is nowhere."""
    args = ["tune", "--definition", "small", "--tokens", "1", "--layers", "2"]
    assert cli.main(args) == 0
    out = capsys.readouterr().out
    record = Record(tmp_path / "test_gpu_e32_h512_i256.jsonl")
    assert record.head.provenance.hardware == "Test GPU"
    assert record.head.provenance.command == f"moebench {' '.join(args)}"
    written = tmp_path / "triton_fused_v2" / "tiles_test_gpu_e32_h512_i256.py"
    assert written.read_text() == table_source(record)
    assert "Tiles that are kept" in out and f"triton_fused_v2/{written.name}" in out and "T=1 gemm1 tiles: " in out
    before = len(record.timed)
    assert cli.main(args) == 0 and len(Record(record.path).timed) == before, "timed again"

    written.unlink()
    assert cli.main([*args, "--configuration", "m32-n128-g8-p3-w8-s6"]) == 0
    assert len(Record(record.path).timed) > before and not written.exists()


def test_definitions_share_the_budget_and_keep_what_they_compared(pretended_gpu, tmp_path, monkeypatch, capsys):
    """A user would miss: a slow definition that takes the time of all others, or tables lost at the budget's end."""
    clock = iter(range(0, 10000, 10))  # each look at the clock takes 10 s: 3 T of the first definition, 2 of the other
    for module in (tune, tune_search):  # not the process's own clock, at which other threads look too
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock), perf_counter=time.time))
    names = ["small", "small-renorm"]
    args = ["tune", "--definition", *names, "--tokens", "1", "24", "33", "37", "--layers", "1"]
    assert cli.main([*args, "--budget-seconds", "90"]) == 0
    out = capsys.readouterr().out
    assert "the budget ended first" in out
    for sizes in ("e32_h512_i256", "e40_h640_i384"):
        record = Record(tmp_path / f"test_gpu_{sizes}.jsonl")
        assert 0 < len(record.compared) < 4, sizes
        assert (tmp_path / "triton_fused_v2" / f"tiles_test_gpu_{sizes}.py").read_text() == table_source(record)
    assert all(f"{name}: about " in out and f"{name}, " in out for name in names), "the plan, before anything else"


def test_an_interrupted_search_shows_what_it_timed(pretended_gpu, tmp_path, monkeypatch, capsys):
    """A user would miss: what is known so far, after Ctrl-C."""
    timer, asked = tune_search.event_times, []

    def interrupted(calls, repeats):
        asked.append(calls)
        if len(asked) > 5:
            raise KeyboardInterrupt
        return timer(calls, repeats)

    monkeypatch.setattr(tune_search, "event_times", interrupted)
    assert cli.main(["tune", "--definition", "small", "--tokens", "1", "--layers", "2"]) == 130
    shown = capsys.readouterr()
    assert "Test GPU, T=1" in shown.out and shown.err.splitlines()[-1] == "interrupted"
    assert not list(tmp_path.rglob("tiles_*.py")) and Record(*tmp_path.glob("*.jsonl")).timed


# What is written


def a_record(bench, path, monkeypatch):
    monkeypatch.setattr(tune_search, "variants", lambda block_ms, group: FEW)
    record = Record(path, head(gpu="NVIDIA Test 1"))
    search(record, Timer(bench)).tune(wanted(bench))
    return record


def test_the_table_is_what_the_solution_then_runs(quick, tmp_path, monkeypatch):
    """A user would miss: tuned tiles that nobody loads."""
    record = a_record(quick, tmp_path / "record.jsonl", monkeypatch)
    folder = tmp_path / "packed_solution"
    folder.mkdir()
    shutil.copy(paths.SOLUTIONS / "triton_fused_v2" / "tiles.py", folder)
    (folder / "tiles_nvidia_test_1_e32_h512_i256.py").write_text(table_source(record))
    monkeypatch.syspath_prepend(tmp_path)
    packed = importlib.import_module("packed_solution.tiles")
    first, second = record.compared[T].kept
    at = 10, (32, 512, 256), 8 / 256
    chosen = packed.choose("sm_90", "NVIDIA Test 1", *at, 7)
    assert chosen.gemm1[:6] == tuple(first.tile) and chosen.gemm2[:6] == tuple(second.tile)
    assert (chosen.fused, chosen.tma, chosen.gemm1.programs) == (first.fused, first.tma, 10 * first.tile.per_sm)
    for gpu, num_tokens in (("NVIDIA Test 2", 7), ("NVIDIA Test 1", 5 * T), ("NVIDIA Test 1", 9999)):
        by_rule = packed.by_rule("sm_90", *at, num_tokens)
        chosen = packed.choose("sm_90", gpu, *at, num_tokens)
        assert (chosen.gemm1[:6], chosen.gemm2[:6]) == (by_rule.gemm1[:6], by_rule.gemm2[:6]), f"{gpu}, T={num_tokens}"


def test_the_rule_is_near_the_best_that_was_timed():
    """A user would miss: a GPU or definition without a table running far from what a search would find."""
    record = Record(paths.TUNING / "nvidia_h200_e32_h7168_i2048.jsonl")
    for num_tokens in tuning.tuned_tokens(record):
        times = {v: line.us for (t, v), line in record.timed.items() if t == num_tokens and line.us}
        found = tiles.by_rule("sm_90", 132, record.head.sizes, 8 / 256, num_tokens)
        pair = [
            Variant(stage, TileSize(*tile[:6]), found.gemm1.block_m, found.tma, found.fused and stage == "gemm1")
            for stage, tile in (("gemm1", found.gemm1), ("gemm2", found.gemm2))
        ]
        best = sum(times[variant] for variant in best_pair(record.times(num_tokens)))
        assert go_together(*pair) and sum(times[v] for v in pair) <= 1.03 * best, f"T={num_tokens}"


def test_committed_tables_hold_the_constraint_and_go_with_their_record():
    """A user would miss: a table edited by hand, or one that no measurement stands behind."""
    folder = paths.SOLUTIONS / "triton_fused_v2"
    for path in folder.glob("tiles_*.py"):
        record = Record(paths.TUNING / f"{path.stem.removeprefix('tiles_')}.jsonl")
        # an older table has another command's name: the file is part of the solution's source, and traces name its hash
        table = path.read_text().replace("by scripts/tune.py from", "by moebench tune from")
        assert table == table_source(record)
        for line in record.compared.values():
            assert go_together(*line.kept)
            assert line.found_us < line.present_us or line.kept == line.present


def test_the_page_says_what_a_record_says(quick, tmp_path, monkeypatch):
    record = a_record(quick, tmp_path / "record.jsonl", monkeypatch)
    text = tuning.block(tmp_path)
    line = record.compared[T]
    assert f"| {line.present_us:.1f} | {line.found_us:.1f} |" in text and f"| {T} | {line.kept[0].tile} |" in text
    assert "**Stale: the kernels have changed.**" in text
    current = Record(None, head(sha1=staleness.stages_sha1(STAGES)))
    assert "Stale" not in tuning.record_markdown(current)
    assert "Nothing has been recorded yet" in tuning.block(tmp_path / "empty")


def test_other_groups_change_nothing_else():
    found = other_groups(FEW[0])
    assert FEW[0] not in found and {replace(v, tile=v.tile._replace(group=8)) for v in found} == {FEW[0]}
    assert parse_configuration(str(FEW[0].tile)) == FEW[0].tile
