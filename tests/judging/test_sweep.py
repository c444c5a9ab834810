"""The sweep: its arguments, its routings, its judgement; on a GPU a short one from end to end."""

from types import SimpleNamespace

import numpy as np
import plain_solution
import pytest
import torch
from flashinfer_bench import BuildSpec, Solution, SourceFile
from harness import cli
from harness.commands import sweep as command
from harness.core.errors import UserError
from harness.core.provenance import Provenance
from harness.judging import sweep, sweep_record
from harness.judging.sweep_record import TARGETS, Head, Point, Sweep
from harness.judging.tolerances import TOLERANCES, matched_ratios
from harness.operators import routing_model
from harness.operators.catalogue import FP8_MOE, GEOMETRIES
from harness.operators.moe_fp8_block_scale import bound, routing_counts
from harness.operators.routing_kinds import BETWEEN, TOKENS, draw, kinds_of, offset_of, tensors
from harness.packing import pack
from harness.report import sweep as report
from rich.console import Console

from definitions.moe_fp8_block_scale import definition

SMALL = definition("small")


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["--solutions", "nothing"], 2, "unknown solution 'nothing'; there are: "),
        (["--tokens", "7", "-1"], 2, "got '-1', want a whole number, 0 or more"),
        (["--tokens", "x"], 2, "got 'x', want a whole number, 0 or more"),
        (["--kinds", "odd"], 2, "unknown value 'odd'; there are: real, uniform"),
        (["--definition", "bf16"], 2, "--definition: got bf16, want an FP8 MoE layer"),
        (
            ["--definition", "qwen3-next", "--kinds", "real,none"],
            2,
            "has every expert on one rank, so there is no 'none'",
        ),
        ([], 1, "needs a CUDA device"),
    ],
)
def test_bad_arguments_and_a_missing_gpu_get_one_line(args, status, message, no_gpu, capsys):
    assert cli.main(["sweep", *args]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_token_counts_are_the_untuned_ones_and_the_workloads():
    assert len(TOKENS) == 41 == len(set(TOKENS)) and {0, 1, 57, 14107, 32768} <= set(TOKENS)
    assert len(BETWEEN) == 22 and cli.parse(["sweep"]).tokens == TOKENS


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 57])
@pytest.mark.parametrize(("geometry", "kind"), [(key, kind) for key in FP8_MOE for kind in kinds_of(key)])
def test_routing_is_of_its_kind(geometry, kind, num_tokens):
    of, (logits, bias) = GEOMETRIES[geometry], draw(kind, num_tokens, geometry)
    assert logits.shape == (num_tokens, of["num_experts"]) and logits.dtype == np.float32
    assert (routing_model.margin(logits, bias, of) >= routing_model.MARGIN).all()
    found = routing_model.local_counts(routing_model.select(logits, bias, of) - offset_of(geometry), of)
    if kind == "real":
        assert routing_model.is_typical(num_tokens, found.rows, found.active, of)
    elif kind == "one":
        local = 1 if of["num_local_experts"] < of["num_experts"] else of["top_k"]
        assert (found.rows, found.active) == (num_tokens * local, min(num_tokens, 1) * local)
        assert len(np.unique(routing_model.select(logits, bias, of))) == min(num_tokens, 1) * of["top_k"]
    elif kind == "none":
        assert found.rows == 0


def test_the_first_definitions_routings_are_those_of_its_records():
    """A user would miss: sweeps of two versions that were made of other routings."""
    assert offset_of("full") == 96
    logits, bias = routing_model.draw_typical("sweep/57", 57, 96)
    drawn = tensors("real", 57, "full")
    assert torch.equal(drawn["routing_logits"], torch.from_numpy(logits))
    assert torch.equal(drawn["routing_bias"].float(), torch.from_numpy(bias))


def test_uniform_experts_are_equally_popular():
    chosen = routing_model.select(*draw("uniform", 3000, "full"))
    counts = np.bincount(chosen.ravel(), minlength=256)
    deviation = counts.std() / np.sqrt(counts.mean())
    assert deviation < 1.3 and not draw("uniform", 8, "full")[1].any()


def test_targets():
    least = bound(8, routing_counts(*draw("real", 8, "full"), offset_of("full"), "full"), "full")
    assert TARGETS["loose"].ms(least) == pytest.approx(1.5 * least.ms + 0.03)
    assert TARGETS["tight"].ms(least) == pytest.approx(1.1 * least.ms + 0.025)
    many = bound(1025, routing_counts(*draw("none", 1025, "full"), offset_of("full"), "full"), "full")
    assert TARGETS["tight"].ms(many) == pytest.approx(1.25 * many.ms)


def runnable(function):
    function.metadata = SimpleNamespace(destination_passing_style=True)
    return function


def why_wrong(write):
    """Of a solution that calls write(output), where all ones are right."""
    inputs = sweep.with_routing(SMALL, sweep.random_inputs(SMALL, 40, "cpu"), tensors("real", 4, "small"), "cpu")
    expected = torch.ones(4, 512, dtype=torch.bfloat16)
    solution = runnable(lambda *args: write(args[-1]))
    return sweep.judge(SMALL, solution, inputs, expected, TOLERANCES["relaxed"], "cpu")["error"]


@pytest.mark.parametrize(
    ("write", "error"),
    [
        (lambda output: output.fill_(1), None),
        (lambda output: output.fill_(1.5), "matched 0.0000, want 0.85 at relaxed"),
        (lambda output: output[1:].fill_(1), "matched 0.0000, want 0.85 at relaxed"),
        (lambda output: output.copy_(1 + 0.05 * torch.rand(output.shape)), "two runs differ"),
    ],
    ids=["right", "wrong", "a row not written", "not repeatable"],
)
def test_judgement(write, error):
    assert why_wrong(write) == error


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_output_that_is_not_finite_matches_nowhere(value):
    """NaN is not beyond any tolerance: `moebench apply` and `moebench ep` would take it for right."""
    output = torch.ones(40, 8)
    output[3, 5] = value
    assert matched_ratios(output, torch.ones(40, 8)) == dict.fromkeys(TOLERANCES, 0.0)


def python_solution(name, body):
    """A FIB solution whose `run` has the reference at hand."""
    spec = BuildSpec(language="python", target_hardware=["cpu"], entry_point="main.py::run")
    sources = [SourceFile(path="main.py", content=plain_solution.source(body))]
    return Solution(name=name, definition=SMALL.name, author="tests", spec=spec, sources=sources)


TWO_KINDS = ["real", "one"]


def measured(monkeypatch, *args):
    """Two sweeps on the small geometry, with the clock replaced: everything else is what a GPU runs."""
    monkeypatch.setattr(sweep, "time_ms", lambda *args: 0.02)
    right = python_solution("right", plain_solution.RIGHT)
    raises = python_solution("raises", "raise ValueError('routing_logits: no')")
    wanted = ["--definition", "small", "--tokens", "3", "0", "3", "--tolerance", "default", "--kinds", *TWO_KINDS]
    parsed = cli.parse(["sweep", *wanted, *args])
    return command.measure(parsed, {"right": right, "raises": raises}, Console(width=200), "cpu")


def test_a_sweep_from_inputs_to_table(monkeypatch, tmp_path, capsys):
    right, raises = sweeps = measured(monkeypatch, "--output", str(tmp_path / "new"))
    assert [sweep_record.read(tmp_path / "new" / f"{name}.jsonl") for name in ("right", "raises")] == sweeps
    assert [(p.kind, p.tokens) for p in right.points] == [(kind, t) for kind in TWO_KINDS for t in (0, 3)]
    assert all(p.error is None and p.met and p.repeatable for p in right.points)
    assert all("routing_logits: no" in p.error and not p.met and p.ms is None for p in raises.points)
    made = right.head.provenance
    assert made.tolerance == str(TOLERANCES["default"]) and made.command.startswith(
        "moebench sweep --definition small --tokens 3"
    )
    shown = capsys.readouterr().out
    assert "4 of 4 points meet the target of 1.5 x bound + 0.03 ms (" in shown and "0 wrong" in shown
    assert "T=3 one: ValueError: routing_logits: no" in shown and "4 wrong" in shown


def test_an_interrupted_sweep_keeps_what_it_measured(monkeypatch, tmp_path, capsys):
    """A user would miss: an hour of a GPU, for one Ctrl-C before the last point; and the tables of it."""
    judge, calls = sweep.judge, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return judge(*args)

    monkeypatch.setattr(sweep, "judge", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured(monkeypatch, "--output", str(tmp_path))
    kept = sweep_record.read(tmp_path / "raises.jsonl")
    assert [p.tokens for p in kept.points] == [0, 3] and kept.summary.endswith("cut short: 2 points are missing")
    assert capsys.readouterr().out.count("points are missing") == 2


def test_several_solutions_want_a_folder(tmp_path):
    """A user would miss: the records of all solutions but the last, in one file."""
    files = command.record_files(tmp_path, ["a", "b"])
    assert files == {"a": tmp_path / "a.jsonl", "b": tmp_path / "b.jsonl"}
    assert command.record_files(tmp_path / "x.jsonl", ["a"]) == {"a": tmp_path / "x.jsonl"}
    with pytest.raises(UserError, match="got one file, .*x.jsonl, for 2 solutions, want a folder"):
        command.record_files(tmp_path / "x.jsonl", ["a", "b"])


def point(**changes):
    line = {"tokens": 3, "kind": "real", "rows": 2, "active": 1, "bound_ms": 0.02, "target_ms": 0.06, "ms": 0.05}
    return Point(**{**line, "after_s": 0, "error": None, **changes})


def record(*points, planned=3, **changes):
    """A record, by default of a solution whose source is unchanged."""
    made = {"hardware": "GPU X", "versions": {"torch": "9"}, "timestamp": "2026-01-02T23:59:59+00:00"}
    made |= {"tolerance": str(TOLERANCES["relaxed"]), "protocol": "warmup=3 iterations=20"}
    made |= {"source_sha1": pack.pack("triton_fused_v2")["full"].hash()} | changes
    head = Head(solution="triton_fused_v2", target="tight", planned=planned, provenance=Provenance(**made))
    return Sweep(head, list(points))


def lines(one):
    return [model.model_dump_json(exclude_none=True) for model in (one.head, *one.points)]


def test_the_page_shows_a_miss_an_error_and_an_old_source():
    """A user would miss: which figure to distrust, and why."""
    points = point(), point(tokens=9, ms=0.07), point(kind="one", ms=None, error="two runs differ")
    text = report.section(record(*points))
    assert "| 3 | 0.050 (2.50) | two runs differ |" in text
    assert "| 9 | 0.070 (3.50) \\* | - |" in text
    assert "1 of 3 points meet the target of 1.10 x bound + 0.025 up to T = 1024, else 1.25 x bound ms (" in text
    assert "(real 1 of 2, one 0 of 1); 1 wrong at tolerance relaxed. " in text
    assert " GPU X; torch 9; warmup=3 iterations=20; 2026-01-02." in text
    assert "stale" in report.section(record(*points, source_sha1="0" * 40))
    assert "2026-01-02 to 2026-01-03." in report.section(record(point(after_s=1)))


def test_a_record_that_was_cut_short_is_read_and_says_so(tmp_path):
    """A user would miss: what was measured before the machine was gone, or a page that takes a part for the whole."""
    path = tmp_path / "cut.jsonl"
    path.write_text("\n".join(lines(record(point(), point(tokens=9))))[:-9])
    assert sweep_record.read(path) == record(point())
    assert "1 of 1 points" in report.section(sweep_record.read(path))
    assert "cut short: 2 points are missing" in report.section(sweep_record.read(path))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"target":"tight",', "", r"old.jsonl:1: .*: target: Field required"),
        ('"tight"', '"harsh"', r"old.jsonl:1: .*: target: Input should be 'loose' or 'tight', got 'harsh'$"),
        ('"relaxed: ', '"harsh: ', r"old.jsonl:1: .* tolerance: want one of relaxed, .*, got 'harsh'$"),
        ('"tokens":3', '"tokens":"x"', r"old.jsonl:2: .*: tokens: Input should be a valid integer.*, got 'x'$"),
        ('"rows"', '"lines"', r"old.jsonl:2: not a Point: rows: Field required"),
        ('"after_s":0', '"after_s":', r"old.jsonl:2: not a Point: line: Invalid JSON"),
    ],
)
def test_a_record_of_another_form_is_refused(old, new, message, tmp_path):
    """A user would miss: a table of half a record, or one made by an older sweep."""
    path = tmp_path / "old.jsonl"
    text = "".join(f"{line}\n" for line in lines(record(point())))
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    with pytest.raises(UserError, match=message):
        sweep_record.read(path)


def test_an_empty_record_is_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(UserError, match="empty.jsonl: not a record of a sweep: it is empty"):
        sweep_record.read(tmp_path / "empty.jsonl")


@pytest.mark.gpu
def test_a_short_sweep_on_the_device(tmp_path):
    path = tmp_path / "sweep.jsonl"
    args = ["--solutions", "triton_fused_v2", "--tokens", "0", "7", "100", "--output", str(path)]
    assert cli.main(["sweep", *args]) == 0
    points = sweep_record.read(path).points
    assert len(points) == 12 and all(p.ms > p.bound_ms for p in points)
