"""`moebench generate`: the record of it, its tables, and a run of the small model."""

import sys

import pytest
import torch
from harness import cli
from harness.core import paths
from harness.core.provenance import Provenance
from harness.core.schema import add_line, read_jsonl
from harness.report.blocks import generation as report
from harness.served import generation
from harness.served.deepseek_v3 import BF16
from harness.served.generation_record import Head, Line

OURS = "hopper_fused_routed_e256"
HEAD = Head(
    definition="moe_fp8_block_scale_routed_topk8_e256_h7168_i2048",
    moe_layers=2,
    sources={OURS: "1" * 40},
    context=256,
    versions={"transformers": "5.23.0"},
    provenance=Provenance(hardware="NVIDIA H200", versions={"torch": "2.11.0"}, timestamp="2026-11-23T07:00:00+00:00"),
)
LINES = [
    Line(experts=OURS, tokens=64, median=0.02, worst=0.2, same_token=0.98),
    Line(experts=BF16, tokens=4096, phase="prefill", ms=[30.0, 24.0]),
    Line(experts=OURS, tokens=4096, phase="prefill", ms=[12.0, 13.0]),
    Line(experts=BF16, tokens=256, batch=8, phase="decode graph", ms=[2.0]),
    Line(experts=OURS, tokens=256, batch=8, phase="decode graph", error="RuntimeError: no capture"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Of the records that the page shows: LINES."""
    monkeypatch.setattr(paths, "GENERATED", tmp_path)
    for line in (HEAD, *LINES):
        add_line(tmp_path / "deepseek-v3.jsonl", line, first=line is HEAD)
    return tmp_path


def test_a_gain_is_bf16s_best_time_over_ours(folder):
    """A reader would miss: a ratio the wrong way round, of a slow turn, or of something that failed."""
    page = report.block()
    assert "| time to first token | 1 | 4096 | 24.000 | 12.000 (2.00x) |" in page
    assert "| the same, as a graph | 8 | 256 | 2.000 | failed |" in page and "RuntimeError: no capture" in page
    assert (
        f"| {OURS} | 64 | 0.0200 | 0.2000 | 98.0% |" in page
        and "NVIDIA H200; transformers 5.23.0; torch 2.11.0" in page
    )
    assert f"stale, as the source has changed since: {OURS}" in page


def test_without_a_record_the_page_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "GENERATED", tmp_path)
    assert report.block() == report.NOT_RUN


def test_without_transformers_it_is_asked_for(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert cli.main(["generate"]) == 2
    assert "pip install 'transformers>=5.12'" in capsys.readouterr().err


def test_a_graph_that_computes_something_else_is_told_from_a_step_that_does():
    """A reader would miss: whether the graph, or the step that it was captured from, is to be looked into."""
    step = torch.randn(8, 1, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    rounded, other, broken = step.clone(), step.clone(), step.clone()
    rounded[5] *= 1.01
    other[2:4, 0, 7] += 3
    broken[1, 0, 0] = torch.nan
    generation.check_replay([rounded, step], [step, rounded])
    far = "2 of 8 tokens differ, 2 beyond rounding, by up to 3"
    same = "0 of 8 tokens differ, 0 beyond rounding, by up to 0"
    with pytest.raises(ValueError, match=f"captured from: {far}; .* without a graph: {same}; of two replays: {same}"):
        generation.check_replay([other, other], [step, step])
    with pytest.raises(ValueError, match=f"captured from: {same}; .* without a graph: {same}; of two replays: {far}"):
        generation.check_replay([step, other], [step, step])
    with pytest.raises(ValueError, match=f"^the step itself is not repeatable: .*: {far}$"):
        generation.check_replay([step, step], [other, step])
    with pytest.raises(ValueError, match="captured from: 1 of 8 tokens differ, 1 beyond rounding, by up to nan"):
        generation.check_replay([broken, step], [step, step])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
def test_the_small_model(tmp_path, capsys):
    """A user without a GPU would miss: a command that fails before the first figure."""
    pytest.importorskip("transformers.integrations.finegrained_fp8", reason="transformers is not installed")
    record = tmp_path / "small.jsonl"
    assert cli.main(["generate", "--layers", "1", "--turns", "1", "--output", str(record)]) == 0
    head, *lines = read_jsonl(record, Head, Line)
    assert head.moe_layers == 1 and {line.phase for line in lines} == {None, "prefill", "decode"}
    assert all(line.error is None for line in lines) and "time per token" in capsys.readouterr().out
