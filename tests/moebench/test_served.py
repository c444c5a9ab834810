"""A forward pass: the resident layers, rounds of passes over them, the record and its table."""

from types import SimpleNamespace

import pytest
import torch
from moebench import cli
from moebench.core import paths
from moebench.core.errors import CannotRun
from moebench.core.provenance import Provenance
from moebench.core.schema import read_record, write_record
from moebench.judging.tolerances import TOLERANCES
from moebench.operators import catalogue
from moebench.operators.catalogue import definition, definition_name, operator
from moebench.operators.fp8.mxfp4 import dequantize_mxfp4
from moebench.operators.roofline import CEILINGS, MEASURED_ON
from moebench.operators.routing import trained_router
from moebench.packing import pack
from moebench.reports import served
from moebench.reports.docs import pages
from moebench.results import bounds
from moebench.served import record, resident, rounds

RELAXED = TOLERANCES["relaxed"]
GB = 1_000_000_000
NAMES_OF_EACH_LAYER = (
    "gemm1_weights",
    "gemm2_weights",
    "gemm1_weights_scale",
    "routing_logits",
    "routing_bias",
)


@pytest.fixture(scope="module")
def small():
    return resident.make("small", 2, 8, "cpu")


# The layers


def test_weights_in_mxfp4_keep_the_size_of_what_they_multiply():
    first, second = resident.make("small-mxfp4", 2, 8, "cpu").layers
    assert not torch.equal(first["gemm1_weights"], second["gemm1_weights"])
    for layer in (first, second):
        values = dequantize_mxfp4(layer["gemm1_weights"][0], layer["gemm1_weights_scale"][0])
        size = values.norm() / values.shape[0] ** 0.5  # of a row
        assert 0.5 < size < 4


@pytest.mark.parametrize("name", NAMES_OF_EACH_LAYER)
def test_layers_have_weights_and_routing_of_their_own(small, name):
    """A pass over equal layers would find its weights in L2, and always use the same experts."""
    first, second = (layer[name].float() for layer in small.layers)
    assert not torch.equal(first, second)
    assert first.isfinite().all()


def test_layers_share_the_tokens(small):
    first, second = small.layers
    assert first["hidden_states"] is second["hidden_states"]


def chosen_experts(layer, num_tokens, sizes):
    """Return the experts of the first tokens, by another selection than the one used there."""
    if "topk_ids" in layer:
        return layer["topk_ids"][:num_tokens].numpy()
    outputs = trained_router.RouterOutputs.of_inputs(layer)
    return trained_router.select(outputs, sizes)[:num_tokens]


@pytest.mark.parametrize(
    "layer_key", ["small", "small-renorm", "small-routed", "small-renorm-routed", "small-mxfp4"]
)
def test_the_bound_of_a_pass_is_the_sum_over_its_layers(layer_key):
    model = resident.make(layer_key, 2, 8, "cpu")
    sizes = catalogue.layer_sizes()[layer_key]
    expected = 0
    for layer in model.layers:
        chosen = chosen_experts(layer, 5, sizes) - layer.get("local_expert_offset", 0)
        counts = trained_router.local_counts(chosen, sizes)
        expected += operator(layer_key).bound(5, counts, layer_key).ms
    assert model.bound_ms(5) == pytest.approx(expected)
    assert model.bound_ms(8) > expected


@pytest.mark.parametrize("layer_key", ["small", "small-routed", "small-mxfp4"])
def test_a_pass_of_few_tokens_gets_their_inputs_alone(layer_key):
    """Scales have the tokens in another axis than the states, and it differs by definition."""
    model = resident.make(layer_key, 2, 8, "cpu")
    full = definition(layer_key)
    shapes = dict(zip(full.inputs, full.get_input_shapes({"seq_len": 3}), strict=True))

    for arguments, layer in zip(model.inputs(3), model.layers, strict=True):
        inputs = dict(zip(full.inputs, arguments, strict=True))
        for name, shape in shapes.items():
            if shape is not None:
                assert tuple(inputs[name].shape) == tuple(shape)
                assert inputs[name].is_contiguous()
        assert inputs["gemm1_weights"] is layer["gemm1_weights"]

        token_axis = full.inputs["hidden_states_scale"].shape.index("seq_len")
        first_scales = layer["hidden_states_scale"].narrow(token_axis, 0, 3)
        assert torch.equal(inputs["hidden_states_scale"], first_scales)


def test_as_many_layers_as_fit():
    """58 layers of one of eight ranks on an H200, some on a card of 80 GB, none on one of 24 GB."""
    assert resident.fitting(58, "full", 16384, 6, 139 * GB) == 58
    assert 20 < resident.fitting(58, "full", 16384, 6, 79 * GB) < 58
    with pytest.raises(CannotRun, match="16384"):
        resident.fitting(58, "full", 16384, 6, 24 * GB)


# The rounds


@pytest.fixture
def points_of(monkeypatch, small):
    """The point of each of some functions that stand in for built solutions, by their names."""
    registry = rounds.BuilderRegistry.get_instance()
    original_build = registry.build

    def points(functions):
        def build(full, packed):
            if not isinstance(packed, str):
                return original_build(full, packed)  # the reference

            def runnable(*arguments):
                functions[packed](*arguments)

            runnable.metadata = SimpleNamespace(destination_passing_style=True)
            return runnable

        monkeypatch.setattr(registry, "build", build)
        request = rounds.Request(small, [5], 2, RELAXED, "cpu")
        (measured,) = rounds.measure({name: name for name in functions}, request)
        assert all(point.tokens == 5 for point in measured)
        return {point.solution: point for point in measured}

    return points


@pytest.fixture(scope="module")
def right():
    """The reference, as a function that writes into its last argument."""
    namespace = {}
    exec(definition("small").reference, namespace)

    def run(*arguments):
        arguments[-1].copy_(namespace["run"](*arguments[:-1]))

    return run


def nothing(*arguments):
    pass


def test_a_right_answer_is_timed(points_of, right, small):
    point = points_of({"right": right})["right"]
    assert point.error is None
    assert point.matched == 1
    assert point.ms > 0
    assert len(point.eager) == 1
    assert point.bound_ms == small.bound_ms(5)


def test_an_answer_that_is_wrong_in_the_last_layer_has_no_time(points_of, right, small):
    def ones(*arguments):
        arguments[-1].fill_(1)

    def first_layer_only(*arguments):
        if arguments[4].data_ptr() == small.layers[0]["gemm1_weights"].data_ptr():
            right(*arguments)

    points = points_of({"ones": ones, "first": first_layer_only, "nothing": nothing})
    for point in points.values():
        assert point.matched < RELAXED.ratio
        assert point.error
        assert point.ms is None
        assert point.eager == []


def test_what_raises_or_exits_does_not_stop_the_others(points_of, right):
    def broken(*arguments):
        raise ValueError("no\nmore")

    def exits(*arguments):
        raise SystemExit(0)

    points = points_of({"broken": broken, "exits": exits, "right": right})
    assert points["broken"].error == "ValueError: no"
    assert points["exits"].error == "SystemExit: 0"
    assert points["right"].ms > 0


def test_another_solution_begins_each_round(monkeypatch):
    """Who follows an idle moment finds a colder GPU."""
    order = []

    def median_ms(forward, count, device):
        order.append(forward)
        return float(count)

    monkeypatch.setattr(rounds, "median_ms", median_ms)
    results = [rounds.Result(timed=name, count=count) for count, name in enumerate("abc")]
    rounds.run_rounds(results, 3, "cuda:0")

    assert "".join(order) == "abcbcacab"
    assert [result.times_ms for result in results] == [[0.0] * 3, [1.0] * 3, [2.0] * 3]


# The command


def read(file):
    return read_record(file, record.Head, record.Point, "served")


def test_without_a_gpu_two_small_layers_run_eagerly(tmp_path, no_gpu, capsys):
    file = tmp_path / "x.jsonl"
    command = ["served", "--solutions", "triton_fused_v2", "--tokens", "1", "--output", str(file)]
    assert cli.main(command) == 0

    head, (point,) = read(file)
    assert head.definition == definition_name("small")
    assert head.layers == 2
    assert head.tokens == [1]
    assert point.matched >= RELAXED.ratio
    assert point.ms == point.eager[0]
    assert point.graph == []
    assert point.not_captured
    assert f"{point.ms:.3f}" in capsys.readouterr().out


def test_layers_that_do_not_fit_after_all_leave_the_record(tmp_path, monkeypatch, no_gpu):
    """Somebody else's job may take the memory meanwhile."""

    def out_of_memory(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(resident, "make", out_of_memory)
    file = tmp_path / "x.jsonl"
    file.write_text("before")
    assert cli.main(["served", "--solutions", "triton_fused_v2", "--output", str(file)]) == 1
    assert file.read_text() == "before"


def test_what_is_done_survives_ctrl_c(tmp_path, monkeypatch, no_gpu, capsys):
    def interrupted(*_):
        yield [record.Point(solution="triton_fused_v2", tokens=1, bound_ms=1, eager=[2.0])]
        raise KeyboardInterrupt

    monkeypatch.setattr(rounds, "measure", interrupted)
    file = tmp_path / "x.jsonl"
    assert cli.main(["served", "--solutions", "triton_fused_v2", "--output", str(file)]) == 130

    _, points = read(file)
    assert len(points) == 1
    assert "2.000" in capsys.readouterr().out


# The tables


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Write the only record, of 58 layers at T = 32 and 2048; its points are given by solution."""
    monkeypatch.setattr(paths, "SERVED", tmp_path)

    def write(points, hardware="NVIDIA H200", ceilings=CEILINGS[MEASURED_ON]):
        made_by = Provenance(
            hardware=hardware,
            versions={"torch": "2.11"},
            timestamp="2026-01-02T00:00:00",
            protocol="p",
        )
        source = pack.pack("triton_fused_v2")["full"].hash()
        head = record.Head(
            definition=definition_name("full"),
            layers=58,
            of_model=58,
            tokens=[32, 2048],
            sources={point.solution: source for point in points},
            ceilings=ceilings,
            provenance=made_by,
        )
        write_record(tmp_path / "full.jsonl", [head, *points])

    return write


def graph_points(solution, few, many):
    """Return points at T = 32 and 2048 with these median times in ms, as CUDA graphs."""
    common = {"solution": solution, "bound_ms": 10, "scratch_mb": 1234.56}
    return [
        record.Point(tokens=32, graph=[few + 1, few - 0.1, few], **common),
        record.Point(tokens=2048, graph=[many + 1, many - 0.1, many], **common),
    ]


def eager_points(solution, few, many):
    """Return such points of a solution that cannot be captured."""
    common = {"solution": solution, "bound_ms": 10, "not_captured": "RuntimeError: no"}
    return [
        record.Point(tokens=32, eager=[few + 1, few - 0.1, few], **common),
        record.Point(tokens=2048, eager=[many + 1, many - 0.1, many], **common),
    ]


def test_the_median_round_counts_and_what_is_no_graph_or_stale_is_marked(recorded):
    fused = graph_points("triton_fused_v2", 12.5, 20.0)
    gone = eager_points("gone", 15.0, 25.0)
    recorded([*fused, *gone])

    text = pages.served_block()
    assert "| 32 | 10.000 | **12.500 (1.25)** | 15.000 (1.50) \\* |" in text
    assert "| 1,234.6 | - |" in text
    assert "RuntimeError: no" in text
    assert "| DeepSeek-V3 EP8, 58 MoE layers | - | - | 1.25 (1.20) | - | - |" in text

    (only,) = served.recorded()
    assert served.origin(only.head).endswith(": gone")


def test_a_bound_of_lower_ceilings_is_shown_by_those_of_today(recorded):
    """At T = 32 the layer is bound by bytes, at 16384 it would be by FLOPs."""
    half = {name: rate / 2 for name, rate in CEILINGS[MEASURED_ON].items()}
    recorded(graph_points("triton_fused_v2", 12.5, 20.0), ceilings=half)
    (only,) = served.recorded()
    assert [point.bound_ms for point in only.points] == [5.0, 5.0]
    assert bounds.expected_limit("full", 32) == "bytes"
    assert bounds.expected_limit("full", 16384) == "fp8"


def test_nothing_recorded_is_no_table(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "SERVED", tmp_path)
    assert pages.served_block() == ""


def test_another_gpu_has_no_bound(recorded):
    recorded(graph_points("triton_fused_v2", 12.5, 20.0), hardware="NVIDIA H100")
    assert "| 32 | - | **12.500** |" in pages.served_block()


@pytest.mark.gpu
def test_a_pass_is_captured_and_right_on_the_device(tmp_path):
    """Two full layers, as a graph."""
    file = tmp_path / "x.jsonl"
    command = ["served", "--solutions", "triton_fused_v2", "--layers", "2"]
    command += ["--tokens", "4", "1024", "--rounds", "2", "--output", str(file)]
    assert cli.main(command) == 0

    _, points = read(file)
    for point in points:
        assert point.error is None
        assert point.not_captured is None
        assert point.scratch_mb > 0
        assert point.graph
        assert point.eager == []
        assert point.bound_ms < point.ms
