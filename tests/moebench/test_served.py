"""`moebench served`, which times passes over a model's layers: the layers in memory, the rounds,
the command with its record, and the tables made of records.
"""

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
from moebench.operators.layers import routed_experts
from moebench.operators.roofline import CEILINGS, MEASURED_ON
from moebench.operators.routing import trained_router
from moebench.packing import pack
from moebench.reports import served
from moebench.reports.docs import pages
from moebench.results import bounds
from moebench.served import record, resident, rounds

RELAXED = TOLERANCES["relaxed"]
GB = 1_000_000_000
INPUTS_OF_EACH_LAYER = (  # not shared by the layers
    "gemm1_weights",
    "gemm2_weights",
    "gemm1_weights_scale",
    "routing_logits",
    "routing_bias",
)


@pytest.fixture(scope="module")
def small():
    """Two layers of the small definition, with 8 tokens."""
    return resident.make("small", 2, 8, "cpu")


# The layers


def test_weights_in_mxfp4_keep_the_magnitude_of_what_they_multiply():
    first, second = resident.make("small-mxfp4", 2, 8, "cpu").layers
    assert not torch.equal(first["gemm1_weights"], second["gemm1_weights"])
    for layer in (first, second):
        values = dequantize_mxfp4(
            layer["gemm1_weights"][0], layer["gemm1_weights_scale"][0]
        )
        norm_of_row = values.norm() / values.shape[0] ** 0.5
        assert 0.5 < norm_of_row < 4


@pytest.mark.parametrize("name", INPUTS_OF_EACH_LAYER)
def test_layers_have_weights_and_routing_of_their_own(small, name):
    """A pass over equal layers would find its weights in L2, and always use the same experts."""
    first, second = (layer[name].float() for layer in small.layers)
    assert not torch.equal(first, second)
    assert first.isfinite().all()


def test_layers_share_the_tokens(small):
    first, second = small.layers
    assert first["hidden_states"] is second["hidden_states"]


def chosen_experts(layer, num_tokens, sizes):
    """Return the first tokens' experts, selected apart from `resident`, which is under test."""
    if "topk_ids" in layer:
        return layer["topk_ids"][:num_tokens].numpy()
    outputs = trained_router.RouterOutputs.of_inputs(layer)
    return trained_router.select(outputs, sizes)[:num_tokens]


@pytest.mark.parametrize(
    "layer_key",
    ["small", "small-renorm", "small-routed", "small-renorm-routed", "small-mxfp4"],
)
def test_the_bound_of_a_pass_is_the_sum_over_its_layers(layer_key):
    model = resident.make(layer_key, 2, 8, "cpu")
    sizes = catalogue.layer_sizes()[layer_key]
    expected = 0
    for layer in model.layers:
        chosen = chosen_experts(layer, 5, sizes) - layer.get("local_expert_offset", 0)
        counts = trained_router.local_counts(chosen, routed_experts(sizes))
        expected += operator(layer_key).bound(5, counts, layer_key).ms
    assert model.bound_ms(5) == pytest.approx(expected)
    assert model.bound_ms(8) > expected


@pytest.mark.parametrize("layer_key", ["small", "small-routed", "small-mxfp4"])
def test_a_pass_of_fewer_tokens_gets_only_their_inputs(layer_key):
    """In `hidden_states_scale` the tokens may be the last axis, as the definition says."""
    model = resident.make(layer_key, 2, 8, "cpu")
    full = definition(layer_key)
    shapes = full.get_input_shapes({"seq_len": 3})
    token_axis = full.inputs["hidden_states_scale"].shape.index("seq_len")

    for arguments, layer in zip(model.inputs(3), model.layers, strict=True):
        for argument, shape in zip(arguments, shapes, strict=True):
            if shape is not None:
                assert list(argument.shape) == shape
                assert argument.is_contiguous()

        inputs = dict(zip(full.inputs, arguments, strict=True))
        assert inputs["gemm1_weights"] is layer["gemm1_weights"]
        first_scales = layer["hidden_states_scale"].narrow(token_axis, 0, 3)
        assert torch.equal(inputs["hidden_states_scale"], first_scales)


def test_as_many_layers_are_made_as_fit_in_memory():
    """58 layers of one of eight ranks on an H200, some on a card of 80 GB, none on one of 24 GB."""

    def fitting_in(free_bytes):
        """Return how many of 58 layers fit, with 16384 tokens and 6 solutions."""
        return resident.fitting(58, "full", 16384, 6, free_bytes)

    assert fitting_in(139 * GB) == 58
    assert 20 < fitting_in(79 * GB) < 58
    with pytest.raises(CannotRun, match="16384"):
        fitting_in(24 * GB)


# The rounds


@pytest.fixture
def points_of(monkeypatch, small):
    """A function: name -> function in place of a built solution; returns name -> its Point, of two
    small layers with 5 tokens.

    A function takes the definition's inputs, then the output that it writes.
    """
    registry = rounds.BuilderRegistry.get_instance()
    original_build = registry.build

    def points(functions):
        def build(full, packed):
            if not isinstance(packed, str):
                # the reference; the functions are "packed" as names
                return original_build(full, packed)

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


def write_nothing(*arguments):
    pass


def test_a_right_answer_is_timed(points_of, right, small):
    point = points_of({"right": right})["right"]
    assert point.error is None
    assert point.matched == 1
    assert point.ms > 0
    assert len(point.eager) == 1
    assert point.bound_ms == small.bound_ms(5)


def test_an_answer_that_is_wrong_in_the_last_layer_has_no_time(points_of, right, small):
    place = list(definition("small").inputs).index("gemm1_weights")
    first_weights = small.layers[0]["gemm1_weights"]

    def write_ones(*arguments):
        arguments[-1].fill_(1)

    def first_layer_only(*arguments):
        if arguments[place].data_ptr() == first_weights.data_ptr():
            right(*arguments)

    points = points_of(
        {"ones": write_ones, "first": first_layer_only, "nothing": write_nothing}
    )
    for point in points.values():
        assert point.matched < RELAXED.ratio
        assert point.error
        assert point.ms is None
        assert point.eager == []


def test_a_solution_that_raises_or_exits_does_not_stop_the_others(points_of, right):
    def broken(*arguments):
        raise ValueError("no\nmore")

    def exits(*arguments):
        raise SystemExit(0)

    points = points_of({"broken": broken, "exits": exits, "right": right})
    assert points["broken"].error == "ValueError: no"
    assert points["exits"].error == "SystemExit: 0"
    assert points["right"].ms > 0


def test_another_solution_begins_each_round(monkeypatch):
    """The first one in a round would always have the GPU that is cooler after a pause."""
    order = []

    def median_ms(forward, count, device):
        """Take a letter in place of a forward pass, and note it."""
        order.append(forward)
        return float(count)

    monkeypatch.setattr(rounds, "median_ms", median_ms)
    trials = []
    for count, name in enumerate("abc"):
        point = record.Point(solution=name, tokens=1, bound_ms=1)
        trials.append(rounds.Trial(point, timed=name, count=count))
    rounds.run_rounds(trials, 3, "cuda:0")

    assert "".join(order) == "abc" + "bca" + "cab"
    times = [trial.point.graph for trial in trials]
    assert times == [[0.0] * 3, [1.0] * 3, [2.0] * 3]


# The command


def read(file):
    """Return the head and the points of a record."""
    return read_record(file, record.Head, record.Point, "served")


def test_without_a_gpu_two_small_layers_run_eagerly(tmp_path, no_gpu, capsys):
    file = tmp_path / "x.jsonl"
    command = [
        "served",
        "--solutions",
        "triton_fused_v2",
        "--tokens",
        "1",
        "--output",
        str(file),
    ]
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


def test_layers_that_do_not_fit_after_all_leave_an_earlier_record_as_it_was(
    tmp_path, monkeypatch, no_gpu
):
    """Another process may take the memory after it was seen to be free."""

    def out_of_memory(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(resident, "make", out_of_memory)
    file = tmp_path / "x.jsonl"
    file.write_text("before")
    assert (
        cli.main(["served", "--solutions", "triton_fused_v2", "--output", str(file)])
        == 1
    )
    assert file.read_text() == "before"


def test_points_measured_before_ctrl_c_are_recorded_and_shown(
    tmp_path, monkeypatch, no_gpu, capsys
):
    def interrupted(*_):
        yield [
            record.Point(solution="triton_fused_v2", tokens=1, bound_ms=1, eager=[2.0])
        ]
        raise KeyboardInterrupt

    monkeypatch.setattr(rounds, "measure", interrupted)
    file = tmp_path / "x.jsonl"
    assert (
        cli.main(["served", "--solutions", "triton_fused_v2", "--output", str(file)])
        == 130
    )

    _, points = read(file)
    assert len(points) == 1
    assert "2.000" in capsys.readouterr().out


# The tables


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A function that writes the only record: of 58 layers at T = 32 and 2048, with these points.

    Its sources are those of triton_fused_v2 as they are, so another solution counts as stale.
    """
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


def three_rounds(ms):
    """Return times whose median is ms."""
    return [ms + 1, ms - 0.1, ms]


def graph_points(solution, few, many):
    """Return points of CUDA graphs at T = 32 and 2048. few, many: their median ms."""
    common = {"solution": solution, "bound_ms": 10, "scratch_mb": 1234.56}
    return [
        record.Point(tokens=32, graph=three_rounds(few), **common),
        record.Point(tokens=2048, graph=three_rounds(many), **common),
    ]


def eager_point(solution, tokens, ms):
    """Return a point of a solution that cannot be captured. ms: its median."""
    return record.Point(
        solution=solution,
        tokens=tokens,
        bound_ms=10,
        eager=three_rounds(ms),
        not_captured="RuntimeError: no",
    )


def test_the_table_has_median_rounds_and_marks_what_is_no_graph_or_stale(recorded):
    fused = graph_points("triton_fused_v2", 12.5, 20.0)
    recorded([*fused, eager_point("gone", 32, 15.0), eager_point("gone", 2048, 25.0)])

    text = pages.served_block()
    # bound; ms (times the bound), bold for the fastest; a star for no graph
    assert "| 32 | 10.000 | **12.500 (1.25)** | 15.000 (1.50) \\* |" in text
    assert "| 1,234.6 | - |" in text  # MB of scratch
    assert "RuntimeError: no" in text
    # the fastest, times the bound (times as fast as the next)
    assert "| DeepSeek-V3 EP8, 58 MoE layers | - | - | 1.25 (1.20) | - | - |" in text

    (served_record,) = served.recorded()
    assert served.origin(served_record.head).endswith(": gone")  # the stale ones


def test_a_bound_by_lower_ceilings_is_converted_to_those_of_today(recorded):
    """At T = 32 the layer is bound by bytes, at 16384 it would be by FLOPs."""
    half = {name: rate / 2 for name, rate in CEILINGS[MEASURED_ON].items()}
    recorded(graph_points("triton_fused_v2", 12.5, 20.0), ceilings=half)
    (served_record,) = served.recorded()
    assert [point.bound_ms for point in served_record.points] == [5.0, 5.0]
    assert bounds.expected_limit("full", 32) == "bytes"
    assert bounds.expected_limit("full", 16384) == "fp8"


def test_without_a_record_there_is_no_table(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "SERVED", tmp_path)
    assert pages.served_block() == ""


def test_a_record_of_another_gpu_is_shown_without_a_bound(recorded):
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
