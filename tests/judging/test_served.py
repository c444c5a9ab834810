"""A forward pass: the resident layers, passes over them, the record, and what the page concludes."""

from types import SimpleNamespace

import pytest
import torch
from harness import cli
from harness.core import paths
from harness.core.errors import CannotRun
from harness.core.provenance import Provenance
from harness.judging.tolerances import TOLERANCES
from harness.operators import routing_model
from harness.operators.catalogue import GEOMETRIES, definition_name
from harness.packing import pack
from harness.report.blocks import served as report
from harness.report.figures import served as figure
from harness.results.model_names import layers as model_layers
from harness.served import nvml, passes, record, resident

RELAXED = TOLERANCES["relaxed"]


@pytest.fixture(scope="module")
def small():
    return resident.make("small", 2, 8, "cpu")


# ---- the layers ----


def test_every_model_says_how_many_layers_it_has():
    """DeepSeek-V3: 61 layers, of which 3 are dense."""
    assert {layer.model: layer.count for layer in model_layers()}["DeepSeek-V3"] == 58
    assert all(layer.count > 40 for layer in model_layers())


def test_layers_have_weights_and_routing_of_their_own_and_share_the_tokens(small):
    """A pass over equal layers would find its weights in L2 and have every layer's rows on the same experts."""
    one, other = small.layers
    for name in ("gemm1_weights", "gemm2_weights", "gemm1_weights_scale", "routing_logits", "routing_bias"):
        assert not torch.equal(one[name].float(), other[name].float()), name
    assert one["hidden_states"] is other["hidden_states"]
    for name in ("gemm1_weights", "gemm2_weights"):
        values = one[name].float()
        assert values.isfinite().all() and 0.9 < values.std() < 1.1


@pytest.mark.parametrize("geometry", ["small", "small-renorm", "small-routed", "small-renorm-routed"])
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
        chosen = chosen - layer.get("local_expert_offset", 0)
        counts = routing_model.local_counts(chosen, of)
        wanted += resident.operator(geometry).bound(5, counts, geometry).ms
    assert made.bound_ms(5) == pytest.approx(wanted) and made.bound_ms(8) > wanted


@pytest.mark.parametrize("geometry", ["small", "small-routed"])
def test_a_pass_of_few_tokens_gets_their_inputs_alone(geometry):
    """Scales have the tokens in another axis than the states, and by definition another one again."""
    made, full = resident.make(geometry, 2, 8, "cpu"), passes.definition(geometry)
    for inputs, layer in zip(made.inputs(3), made.layers, strict=True):
        for name, value, shape in zip(full.inputs, inputs, full.get_input_shapes({"seq_len": 3}), strict=True):
            assert shape is None or (tuple(value.shape) == tuple(shape) and value.is_contiguous()), name
        assert inputs[list(full.inputs).index("gemm1_weights")] is layer["gemm1_weights"]
    scale = list(full.inputs).index("hidden_states_scale")
    tokens = full.inputs["hidden_states_scale"].shape.index("seq_len")
    assert torch.equal(made.inputs(3)[1][scale], made.layers[0]["hidden_states_scale"].narrow(tokens, 0, 3))


def test_as_many_layers_as_fit():
    """58 layers of one of eight ranks on an H200, some on a card of 80 GB, none on one of 24 GB."""
    assert resident.fitting(58, "full", 16384, 6, 139_000_000_000) == 58
    assert 20 < resident.fitting(58, "full", 16384, 6, 79_000_000_000) < 58
    with pytest.raises(CannotRun, match="one layer of full needs"):
        resident.fitting(58, "full", 16384, 6, 24_000_000_000)


# ---- passes ----


def candidates(monkeypatch, small, **functions):
    """What is known of solutions that these functions, of a destination-passing call, stand for."""

    registry = passes.BuilderRegistry.get_instance()
    original = registry.build

    def build(full, name):
        if not isinstance(name, str):
            return original(full, name)  # the reference

        def runnable(*arguments):
            functions[name](*arguments)

        runnable.metadata = SimpleNamespace(destination_passing_style=True)
        return runnable

    monkeypatch.setattr(registry, "build", build)
    names = {name: name for name in functions}
    own = {name: passes.Own(None) for name in names}
    found = passes.at_tokens(names, small.inputs(5), "small", 2, RELAXED, own, "cpu", None)
    return {point["solution"]: point for point in found}


def test_an_answer_is_checked_and_an_error_is_the_result(monkeypatch, small):
    """One that is wrong or raises must have no time, and must not stop the others."""
    exec(passes.definition("small").reference, reference := {})

    def right(*arguments):
        arguments[-1].copy_(reference["run"](*arguments[:-1]))

    def wrong(*arguments):
        arguments[-1].fill_(1)

    def first_layer_only(*arguments):
        if arguments[4].data_ptr() == small.layers[0]["gemm1_weights"].data_ptr():
            right(*arguments)

    def broken(*arguments):
        raise ValueError("no\nmore")

    given = {"right": right, "wrong": wrong, "first": first_layer_only, "broken": broken, "lazy": lambda *_: None}
    found = candidates(monkeypatch, small, **given)
    assert found["right"]["error"] is None and found["right"]["matched"] == 1 and len(found["right"]["eager"]) == 1
    assert found["wrong"]["error"].startswith("matched 0.0") and found["first"]["error"].startswith("matched 0.")
    assert found["lazy"]["error"].startswith("matched 0.0000") and found["broken"]["error"] == "ValueError: no"
    assert not any("eager" in found[name] for name in ("wrong", "first", "broken", "lazy"))


def test_another_one_begins_each_turn(monkeypatch):
    """Who follows an idle moment finds a colder GPU."""
    order = []
    monkeypatch.setattr(passes, "median_ms", lambda run, count, device: order.append(run) or 1.0)
    some = [passes.Candidate(name, eager=name, replay=None) for name in "abc"]
    passes.take_turns(some, "eager", 3, "cuda:0")
    assert "".join(order) == "abcbcacab" and some[0].point == {"eager": [1.0] * 3}


def test_energy_is_read_between_moves_of_the_counter(monkeypatch):
    """The counter moves a few times a second: passes before its first move, and after its last, are not counted."""
    state = {"passes": 0, "s": 0.0}

    def some():
        state["passes"] += 5
        state["s"] += 0.05
        return 5

    fake = SimpleNamespace(
        nvmlDeviceGetTotalEnergyConsumption=lambda gpu: 2000 * (state["passes"] // 15 * 15),  # moves every third time
        nvmlDeviceGetClockInfo=lambda gpu, which: 1500 + state["passes"] % 2,
        NVML_CLOCK_SM=0,
        NVMLError=RuntimeError,
    )
    monkeypatch.setattr(nvml, "pynvml", fake)
    monkeypatch.setattr(nvml.time, "monotonic", lambda: state["s"])
    joules, mhz = nvml.energy("gpu", some)
    assert joules == pytest.approx(2.0) and 1500 <= mhz <= 1501
    monkeypatch.setattr(fake, "nvmlDeviceGetTotalEnergyConsumption", lambda gpu: 7)
    assert nvml.energy("gpu", some) is None


@pytest.mark.parametrize(("version", "rate"), [(6, 450.0), (7, 900.0)])
def test_the_links_rate_is_that_of_those_that_are_up(version, rate, monkeypatch):
    """18 of 36 possible links, as on an H200 and a B200; none on a machine without NVML."""

    def state(gpu, link):
        if link >= 20:
            raise RuntimeError
        return link < 18

    fake = SimpleNamespace(
        NVML_NVLINK_MAX_LINKS=36,
        NVMLError=RuntimeError,
        nvmlDeviceGetNvLinkState=state,
        nvmlDeviceGetNvLinkVersion=lambda gpu, link: version,
    )
    monkeypatch.setattr(nvml, "pynvml", fake)
    assert nvml.nvlink_gb_s("gpu") == rate and nvml.nvlink_gb_s(None) is None
    monkeypatch.setattr(fake, "nvmlDeviceGetNvLinkState", lambda gpu, link: 0)
    assert nvml.nvlink_gb_s("gpu") is None


# ---- the command ----


def test_without_a_gpu_two_small_layers_run_eagerly(tmp_path, no_gpu, capsys):
    file = tmp_path / "x.jsonl"
    assert cli.main(["served", "--solutions", "triton_fused_v2", "--tokens", "1", "--output", str(file)]) == 0
    read = record.read(file)
    (point,) = read.points
    assert (read.head.definition, read.head.layers) == (definition_name("small"), 2)
    assert point.matched >= RELAXED.ratio and point.ms == point.eager[0] and not point.graph
    assert "T=1  triton_fused_v2" in (out := capsys.readouterr().out) and "no CUDA device" in out


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["--definition", "bf16_small"], 2, "--definition: got bf16_small, want an FP8 MoE layer"),
        (["--definition", "full"], 1, "needs a CUDA device"),
        (["--tokens", "0"], 2, "got '0', want a whole number, 1 or more"),
    ],
)
def test_bad_arguments_get_one_line(args, status, message, no_gpu, capsys):
    assert cli.main(["served", *args]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_what_is_done_survives_ctrl_c(tmp_path, monkeypatch, no_gpu, capsys):
    """A user would miss: minutes of measurements, lost at the last point."""

    def interrupted(*_):
        yield [record.Point(solution="triton_fused_v2", tokens=1, bound_ms=1, eager=[2.0])]
        raise KeyboardInterrupt

    monkeypatch.setattr(passes, "measure", interrupted)
    file = tmp_path / "x.jsonl"
    assert cli.main(["served", "--solutions", "triton_fused_v2", "--output", str(file)]) == 130
    assert len(record.read(file).points) == 1 and "2.000" in capsys.readouterr().out


# ---- the page ----


def made_up(folder, hardware="NVIDIA H200", **ms):
    """A record of 58 layers at T = 32 and 2048; ms: solution -> a pass at each, and whether as a graph."""
    where = Provenance(hardware=hardware, versions={"torch": "2.11"}, timestamp="2026-01-02T00:00:00", protocol="p")
    sources = {name: pack.pack("triton_fused_v2")["full"].hash() for name in ms}
    common = {"definition": definition_name("full"), "layers": 58, "of_model": 58, "tokens": [32, 2048]}
    lines = [record.Head(**common, sources=sources, provenance=where, gpu={"power_cap_w": 700})]
    for name, (few, many, kind) in ms.items():
        for tokens, time in ((32, few), (2048, many)):
            extra = {} if kind == "graph" else {"not_captured": "RuntimeError: no"}
            lines.append(record.Point(solution=name, tokens=tokens, bound_ms=10, **{kind: [time, time + 1]}, **extra))
    folder.mkdir()
    (folder / "full.jsonl").write_text("".join(line.model_dump_json(exclude_none=True) + "\n" for line in lines))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "SERVED", tmp_path / "served")
    return paths.SERVED


def test_the_page_begins_with_the_milliseconds_that_change(folder):
    """12.5 instead of 15 ms a step: 2.5 ms, a sixth of the layers' time, below 3% where other work takes over 82%;
    of a prompt of 16384 tokens in 8 chunks, 8 times what a chunk saves."""
    made_up(folder, triton_fused_v2=(12.5, 20.0, "graph"), peer=(15.0, 25.0, "graph"), eager=(16.0, 26.0, "eager"))
    first = report.block().partition("\n\n")[0]
    assert "the 58 MoE layers of DeepSeek-V3 EP8" in first and "`triton_fused_v2` shortens" in first
    assert "T = 32 tokens (TPOT) by 2.50 ms against `peer` (82%)" in first
    assert "chunks of 2048 (TTFT) by 40.00 ms against `peer` (85%)" in first
    assert "`eager` without a graph" in first


def test_the_readme_names_what_all_have_as_a_graph(folder):
    """A user would miss: a gain over a peer that was timed eagerly."""
    times = {name: (12.5 * slower, 20.0 * slower, "graph") for name, slower in (("sglang_triton", 2), ("best", 1))}
    made_up(folder, **times, deepgemm=(15.0, 25.0, "graph"))
    said = "T = 32 and 2048 `best` is 1.20 and 1.25 times as fast as DeepGEMM's kernels and 2.00 and 2.00 times"
    assert said in report.in_short()


def test_no_sentence_for_the_readme_without_graphs_of_all(folder):
    assert report.in_short() == ""
    made_up(folder, sglang_triton=(25.0, 40.0, "graph"), best=(12.5, 20.0, "graph"), deepgemm=(15.0, 25.0, "eager"))
    assert report.in_short() == ""


def test_tables_say_what_is_no_graph_and_what_is_stale(folder):
    made_up(folder, triton_fused_v2=(12.5, 20.0, "graph"), peer=(15.0, 25.0, "eager"))
    text = report.block()
    assert "| 32 | 10.000 | **12.500 (1.25)** | 15.000 (1.50) \\* |" in text
    assert "\\* peer eagerly, not as a graph: RuntimeError: no" in text or "* peer eagerly" in text
    assert "stale, as the source has changed since: peer" in text and "power limit 700 W" in text
    assert "| 32 | 215.5 | 258.6 |" in text and "| 32 | 2,560 | 2,133 |" in text  # us a layer, tokens/s
    (picture,) = figure.pictures(report.recorded())
    assert picture.file == "served-full.svg" and figure.data(report.recorded()[0])["peer"] == [[32, 1.5], [2048, 2.5]]


def test_nothing_recorded_says_so_and_another_gpu_has_no_bound(folder):
    assert report.block() == report.NOT_RUN
    made_up(folder, hardware="NVIDIA H100", triton_fused_v2=(12.5, 20.0, "graph"))
    assert "| 32 | - | **12.500** |" in report.block() and figure.pictures(report.recorded()) == []


# ---- on the device ----


@pytest.mark.gpu
def test_a_pass_is_captured_and_right_on_the_device(tmp_path):
    """Two full layers, as a graph and eagerly; a graph is no slower than launching each kernel."""
    file = tmp_path / "x.jsonl"
    args = ["served", "--solutions", "triton_fused_v2", "--layers", "2", "--tokens", "4", "1024", "--turns", "2"]
    assert cli.main([*args, "--output", str(file)]) == 0
    for point in record.read(file).points:
        assert point.error is None and point.not_captured is None and point.scratch_mb > 0
        assert point.bound_ms < point.ms <= 1.1 * min(point.eager)


@pytest.mark.gpu
def test_bound_function_counts_on_the_device(small):
    on_gpu = resident.make("small", 1, 8, "cuda:0")
    assert on_gpu.bound_ms(8) > 0
