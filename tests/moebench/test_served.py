"""A forward pass: the resident layers, passes over them, the record and its table."""

from types import SimpleNamespace

import pytest
import torch
from moebench import cli
from moebench.core import paths
from moebench.core.errors import CannotRun
from moebench.core.provenance import Provenance
from moebench.core.schema import read_record
from moebench.judging.tolerances import TOLERANCES
from moebench.operators import routing_model
from moebench.operators.catalogue import GEOMETRIES, definition, definition_name, operator
from moebench.packing import pack
from moebench.reports import pages, served
from moebench.served import passes, record, resident

RELAXED = TOLERANCES["relaxed"]


@pytest.fixture(scope="module")
def small():
    return resident.make("small", 2, 8, "cpu")


def test_layers_have_weights_and_routing_of_their_own_and_share_the_tokens(small):
    """A pass over equal layers would find its weights in L2 and have every layer's rows on the same
    experts.
    """
    one, other = small.layers
    for name in (
        "gemm1_weights",
        "gemm2_weights",
        "gemm1_weights_scale",
        "routing_logits",
        "routing_bias",
    ):
        assert not torch.equal(one[name].float(), other[name].float()), name
        assert one[name].float().isfinite().all(), name
    assert one["hidden_states"] is other["hidden_states"]


@pytest.mark.parametrize(
    "geometry", ["small", "small-renorm", "small-routed", "small-renorm-routed"]
)
def test_the_bound_of_a_pass_is_the_sum_over_its_layers(geometry):
    """Of the tokens of the pass alone, by a selection of experts that is not the one used there."""
    made, of = resident.make(geometry, 2, 8, "cpu"), GEOMETRIES[geometry]
    wanted = 0
    for layer in made.layers:
        if "topk_ids" in layer:
            chosen = layer["topk_ids"][:5].numpy()
        else:
            bias = layer["routing_bias"].float().numpy() if "routing_bias" in layer else None
            chosen = routing_model.select(layer["routing_logits"][:5].float().numpy(), bias, of)
        counts = routing_model.local_counts(chosen - layer.get("local_expert_offset", 0), of)
        wanted += operator(geometry).bound(5, counts, geometry).ms
    assert made.bound_ms(5) == pytest.approx(wanted) and made.bound_ms(8) > wanted


@pytest.mark.parametrize("geometry", ["small", "small-routed"])
def test_a_pass_of_few_tokens_gets_their_inputs_alone(geometry):
    """Scales have the tokens in another axis than the states, and by definition another one
    again.
    """
    made, full = resident.make(geometry, 2, 8, "cpu"), definition(geometry)
    for inputs, layer in zip(made.inputs(3), made.layers, strict=True):
        for name, value, shape in zip(
            full.inputs, inputs, full.get_input_shapes({"seq_len": 3}), strict=True
        ):
            assert shape is None or (
                tuple(value.shape) == tuple(shape) and value.is_contiguous()
            ), name
        assert inputs[list(full.inputs).index("gemm1_weights")] is layer["gemm1_weights"]
    scale = list(full.inputs).index("hidden_states_scale")
    tokens = full.inputs["hidden_states_scale"].shape.index("seq_len")
    assert torch.equal(
        made.inputs(3)[1][scale], made.layers[0]["hidden_states_scale"].narrow(tokens, 0, 3)
    )


def test_as_many_layers_as_fit():
    """58 layers of one of eight ranks on an H200, some on a card of 80 GB, none on one of 24 GB."""
    assert resident.fitting(58, "full", 16384, 6, 139_000_000_000) == 58
    assert 20 < resident.fitting(58, "full", 16384, 6, 79_000_000_000) < 58
    with pytest.raises(CannotRun, match="16384"):
        resident.fitting(58, "full", 16384, 6, 24_000_000_000)


def test_an_answer_is_checked_and_an_error_is_the_result(monkeypatch, small):
    """One that is wrong, raises or exits must have no time, and must not stop the others."""
    exec(definition("small").reference, reference := {})

    def right(*arguments):
        arguments[-1].copy_(reference["run"](*arguments[:-1]))

    def wrong(*arguments):
        arguments[-1].fill_(1)

    def first_layer_only(*arguments):
        if arguments[4].data_ptr() == small.layers[0]["gemm1_weights"].data_ptr():
            right(*arguments)

    def broken(*arguments):
        raise ValueError("no\nmore")

    def exits(*arguments):
        raise SystemExit(0)

    functions = {
        "right": right,
        "wrong": wrong,
        "first": first_layer_only,
        "broken": broken,
        "exits": exits,
    }
    functions["lazy"] = lambda *_: None
    registry = passes.BuilderRegistry.get_instance()
    original = registry.build

    def build(full, packed):
        if not isinstance(packed, str):
            return original(full, packed)  # the reference
        runnable = lambda *arguments: functions[packed](*arguments) and None  # noqa: E731
        runnable.metadata = SimpleNamespace(destination_passing_style=True)
        return runnable

    monkeypatch.setattr(registry, "build", build)
    given = {name: name for name in functions}
    (points,) = passes.measure(given, small, [5], 2, RELAXED, "cpu")
    found = {point.solution: point for point in points}
    assert list(found) == list(functions) and all(point.tokens == 5 for point in points)
    assert found["right"].error is None and found["right"].matched == 1 and found["right"].ms > 0
    assert found["right"].bound_ms == small.bound_ms(5) and len(found["right"].eager) == 1
    assert found["broken"].error == "ValueError: no" and found["exits"].error == "SystemExit: 0"
    assert all(found[name].matched < RELAXED.ratio for name in ("wrong", "first", "lazy"))
    assert all(point.error and point.ms is None and not point.eager for point in points[1:])


def test_another_one_begins_each_turn(monkeypatch):
    """Who follows an idle moment finds a colder GPU."""
    order = []
    monkeypatch.setattr(
        passes, "median_ms", lambda run, count, device: order.append(run) or float(count)
    )
    found = passes.in_turns({name: (name, at) for at, name in enumerate("abc")}, 3, "cuda:0")
    assert "".join(order) == "abcbcacab" and found == {
        "a": [0.0] * 3,
        "b": [1.0] * 3,
        "c": [2.0] * 3,
    }


def test_without_a_gpu_two_small_layers_run_eagerly(tmp_path, no_gpu, capsys):
    file = tmp_path / "x.jsonl"
    assert (
        cli.main(
            ["served", "--solutions", "triton_fused_v2", "--tokens", "1", "--output", str(file)]
        )
        == 0
    )
    head, (point,) = read_record(file, record.Head, record.Point, "served")
    assert (head.definition, head.layers, head.tokens) == (definition_name("small"), 2, [1])
    assert (
        point.matched >= RELAXED.ratio
        and point.ms == point.eager[0]
        and not point.graph
        and point.not_captured
    )
    assert f"{point.ms:.3f}" in capsys.readouterr().out


def test_layers_that_do_not_fit_after_all_leave_the_record(tmp_path, monkeypatch, no_gpu):
    """A user would miss: what was measured before, because somebody else's job took the memory."""

    def taken(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(resident, "make", taken)
    (file := tmp_path / "x.jsonl").write_text("before")
    assert cli.main(["served", "--solutions", "triton_fused_v2", "--output", str(file)]) == 1
    assert file.read_text() == "before"


def test_what_is_done_survives_ctrl_c(tmp_path, monkeypatch, no_gpu, capsys):
    """A user would miss: minutes of measurements, lost at the last point."""

    def interrupted(*_):
        yield [record.Point(solution="triton_fused_v2", tokens=1, bound_ms=1, eager=[2.0])]
        raise KeyboardInterrupt

    monkeypatch.setattr(passes, "measure", interrupted)
    file = tmp_path / "x.jsonl"
    assert cli.main(["served", "--solutions", "triton_fused_v2", "--output", str(file)]) == 130
    assert (
        len(read_record(file, record.Head, record.Point, "served")[1]) == 1
        and "2.000" in capsys.readouterr().out
    )


def made_up(folder, monkeypatch, hardware="NVIDIA H200", **ms):
    """A record of 58 layers at T = 32 and 2048; ms: solution -> a pass at each, and whether as a
    graph.
    """
    where = Provenance(
        hardware=hardware, versions={"torch": "2.11"}, timestamp="2026-01-02T00:00:00", protocol="p"
    )
    sources = {name: pack.pack("triton_fused_v2")["full"].hash() for name in ms}
    common = {
        "definition": definition_name("full"),
        "layers": 58,
        "of_model": 58,
        "tokens": [32, 2048],
    }
    lines = [record.Head(**common, sources=sources, provenance=where)]
    for name, (few, many, kind) in ms.items():
        for tokens, time in ((32, few), (2048, many)):
            extra = (
                {"scratch_mb": 1234.56} if kind == "graph" else {"not_captured": "RuntimeError: no"}
            )
            lines.append(
                record.Point(
                    solution=name, tokens=tokens, bound_ms=10, **{kind: [time, time + 1]}, **extra
                )
            )
    (folder / "full.jsonl").write_text(
        "".join(line.model_dump_json(exclude_none=True) + "\n" for line in lines)
    )
    monkeypatch.setattr(paths, "SERVED", folder)


def test_the_best_turn_counts_and_what_is_no_graph_or_stale_is_marked(tmp_path, monkeypatch):
    made_up(
        tmp_path, monkeypatch, triton_fused_v2=(12.5, 20.0, "graph"), gone=(15.0, 25.0, "eager")
    )
    text = pages.served_block()
    assert (
        "| 32 | 10.000 | **12.500 (1.25)** | 15.000 (1.50) \\* |" in text
        and "| 1,234.6 | - |" in text
    )
    assert (
        "RuntimeError: no" in text
        and "| DeepSeek-V3 EP8, 58 MoE layers | - | - | 1.25 (1.20) | - | - |" in text
    )
    assert served.origin(served.recorded()[0].head).endswith(": gone")


def test_nothing_recorded_is_no_table_and_another_gpu_has_no_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "SERVED", tmp_path)
    assert pages.served_block() == ""
    made_up(tmp_path, monkeypatch, hardware="NVIDIA H100", triton_fused_v2=(12.5, 20.0, "graph"))
    assert "| 32 | - | **12.500** |" in pages.served_block()


@pytest.mark.gpu
def test_a_pass_is_captured_and_right_on_the_device(tmp_path):
    """Two full layers, as a graph."""
    file = tmp_path / "x.jsonl"
    args = [
        "served",
        "--solutions",
        "triton_fused_v2",
        "--layers",
        "2",
        "--tokens",
        "4",
        "1024",
        "--turns",
        "2",
    ]
    assert cli.main([*args, "--output", str(file)]) == 0
    for point in read_record(file, record.Head, record.Point, "served")[1]:
        assert point.error is None and point.not_captured is None and point.scratch_mb > 0
        assert point.graph and not point.eager and point.bound_ms < point.ms
