"""README.md and docs/models.md: a line for each model, from traces, and honest about what is missing."""

import re
from functools import cache

import pytest
from harness import cli
from harness.core.errors import UserError
from harness.operators.workloads import generated_bound
from harness.packing import pack
from harness.packing.eligibility import architecture
from harness.packing.manifest import folder_name
from harness.report.blocks import model_advice
from harness.report.blocks import models as blocks
from harness.report.figures import models as figure
from harness.results import comparison, models, staleness
from harness.results.comparison import Comparison
from harness.results.model_names import MODELS, layers, layers_named, weight_bytes
from markdown_width import too_wide
from recorded import DEFAULT, trace, workloads, write

QWEN = "moe_fp8_block_scale_renorm_topk8_e128_h2048_i768"
BOUNDS = {w.axes["seq_len"]: generated_bound("qwen3-30b", w.uuid).ms for w in workloads(QWEN)}


@pytest.fixture(autouse=True, scope="module")
def packed_once():
    """No test here edits a source, so all share what packing them takes seconds for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staleness, "sources", cache(staleness.sources))
        yield


def measured(name="fast", times=1.2, extra_ms=0.0, **changes):
    """Every workload of Qwen3-30B at `times` the bound and extra_ms; the reference always takes 20 ms."""
    return [trace(name, t, times * ms + extra_ms, 20.0, definition=QWEN, **changes) for t, ms in BOUNDS.items()]


def built(tmp_path, traces):
    """In no data set, so the routing, and with it the bound, is this repository's."""
    return comparison.build([write(tmp_path / "traces.jsonl", traces)])


def lines(text, name="Qwen3-30B EP1"):
    return [line for line in text.splitlines() if line.startswith(f"| {name} |")]


def line(text, name="Qwen3-30B EP1"):
    (found,) = lines(text, name)
    return found


def test_every_layer_has_a_line_with_or_without_traces(tmp_path):
    """A model that nobody measured must be seen to be missing, not be left out."""
    for text in (blocks.block(built(tmp_path, measured())), blocks.block(Comparison([]))):
        rows = [row for row in text.splitlines() if re.match(r"\| .* (EP\d+|128/512)( ✗)? \|", row)]
        assert len(rows) == len(layers()) >= 11
        assert line(text, "Kimi-K2 EP8") == "| Kimi-K2 EP8 | not measured | - | - | - | - |"
        assert line(text, "Kimi-K2 EP1 ✗")
    assert "Nothing is recorded on NVIDIA H200" in text


def test_a_line_holds_what_was_measured(tmp_path, monkeypatch):
    traces = [*measured(), *measured("slow", 1.5), *measured("other", 3.0)]
    monkeypatch.setattr(blocks, "SGLANG", "other")
    text = blocks.block(built(tmp_path, traces))
    assert line(text) == "| Qwen3-30B EP1 | **fast** | - | 1.20 | 2.50 | 1.25 |"
    for said in ("NVIDIA H200", "torch 2.11", "protocol once", "relaxed tolerance", "2026-01-01"):
        assert said in text


def test_no_mean_of_a_solution_that_failed(tmp_path):
    """A reader would miss: a mean over the easy workloads alone. The next solution that passed all is named instead."""
    wrong = [*measured()[:-1], trace("fast", 8192, status="INCORRECT_NUMERICAL", definition=QWEN)]
    assert line(blocks.block(built(tmp_path, wrong))) == "| Qwen3-30B EP1 | failed: fast | - | - | - | - |"
    found = built(tmp_path, [*wrong, *measured("slow", 1.5)])
    assert "| **slow** |" in line(blocks.block(found)) and line(blocks.block(found)).endswith("| - | 1.50 | - | - |")
    assert lines(blocks.speeds(found))[0].startswith("| Qwen3-30B EP1 | 1.50 |")
    assert (
        "✗" not in (of_wrong := blocks.speeds(built(tmp_path, wrong)).partition("Latency")[0]) and "1." not in of_wrong
    )


def test_a_part_that_is_recorded_is_no_whole(tmp_path):
    found = built(tmp_path, measured()[:7])
    assert line(blocks.block(found)) == "| Qwen3-30B EP1 | 7 of 12 timed | - | - | - | - |"
    assert [text.count("| - ") for text in lines(blocks.peers(found))] == [len(blocks.FEW), len(blocks.MANY)]


def test_another_source_is_stale_and_another_machine_not_shown(tmp_path):
    stale = measured(pack.pack("hopper_fused")["qwen3-30b"].name, sha1="0" * 40)
    found = built(tmp_path, stale)
    assert "| stale: earlier source |" in line(blocks.block(found)) and "protocol" not in blocks.block(found)
    assert "| **fast** |" in line(blocks.block(built(tmp_path, [*stale, *measured()])))
    assert "| not measured |" in line(blocks.block(built(tmp_path, measured(hardware="NVIDIA H100"))))


def test_who_passes_default_is_named_whatever_its_versions(tmp_path):
    """A reader would miss: the solution for default, where the fastest was not judged or fails; how narrowly."""
    exact = measured("exact", 1.3, tolerance=DEFAULT, torch="2.13", matched=0.957)
    wrong = measured(tolerance=DEFAULT)[:-1]
    wrong.append(trace("fast", 8192, status="INCORRECT_NUMERICAL", tolerance=DEFAULT, definition=QWEN))
    found = built(tmp_path, [*measured(), *exact, *wrong])
    assert line(blocks.block(found)).startswith("| Qwen3-30B EP1 | **fast** | exact | 1.20 |")
    assert line(blocks.passes(found)) == "| Qwen3-30B EP1 | exact | 12 of 12 | 0.957 |"
    assert line(blocks.passes(found), "GLM-5 EP8") == "| GLM-5 EP8 | - | - | - |"


def test_models_that_differ_in_protocol_are_named(tmp_path):
    other = "moe_fp8_block_scale_renorm_topk10_e128_h2048_i512"
    short = [trace("fast", w.axes["seq_len"], definition=other, protocol="few") for w in workloads(other)]
    text = blocks.conditions(built(tmp_path, [*measured(), *short]))
    assert "protocol few (Qwen3-Next 128/512)" in text and "protocol once (Qwen3-30B EP1)" in text
    assert "torch 2.11;" in text


def test_targets_are_the_issues():
    assert models.target_ms(256, 1.0) == pytest.approx(1.175) and models.target_ms(1024, 1.0) == pytest.approx(1.7)
    assert models.target_ms(901, 1.0) is None


def test_what_misses_a_target_is_marked(tmp_path):
    """A reader must not have to reckon: 1.6 times the bound misses where the bound is far above 25 us."""
    text = blocks.speeds(built(tmp_path, measured(times=1.6)))
    missed = [t for t, ms in BOUNDS.items() if t <= 256 and 1.6 * ms > 1.15 * ms + 0.025]
    cells = [cell for row in lines(text) for cell in row.strip("| ").split(" | ")[1:]]
    shown = dict(zip((*blocks.FEW, *blocks.MANY), cells, strict=True))
    assert 0 < len(missed) < 9 and {t for t, cell in shown.items() if cell == "1.60 ✗"} == set(missed)


def test_every_workload_has_a_column():
    """A reader would miss: the token counts at which a model loses."""
    assert list(BOUNDS) == [*blocks.FEW, *blocks.MANY]


def test_the_best_of_the_others_is_named_at_each_t(tmp_path):
    few = [t for t in measured("few_tokens", 1.3) if t.workload.axes["seq_len"] <= 64]
    text = blocks.peers(built(tmp_path, [*measured(), *measured("slow", 1.5), *few]))
    assert lines(text) == [
        f"| Qwen3-30B EP1 | {'1.08 ft | ' * 7}".rstrip(),
        f"| Qwen3-30B EP1 | {'1.25 s | ' * 5}".rstrip(),
    ]
    assert "(ft: few_tokens, s: slow)" in text
    behind = [t for t in measured("slow", 1.0) if t.workload.axes["seq_len"] == 8]
    assert "| 0.83 s ✗ |" in lines(blocks.peers(built(tmp_path, [*measured(), *behind])))[0]


def test_the_same_source_is_no_peer():
    assert models.source_of("hopper_fused_exact") == models.source_of("hopper_fused") == "hopper_fused"
    assert models.source_of("fast") == "fast"


def test_the_nearest_workload_stands_for_a_token_count():
    lengths = [1, 7, 80, 901, 14107]
    assert [blocks.nearest(t, lengths) for t in (1, 8, 64, 256, 1024, 4096)] == [1, 7, 80, None, 901, None]
    assert blocks.at(8, 7, "1.60") == "1.60 (7)" and blocks.at(8, 8, "1.60") == "1.60"


def test_tables_fit_the_column(tmp_path):
    names = ["hopper_fused_exact", "flashinfer_cutlass"]  # the longest; an x more, so that their source is not stale
    found = built(tmp_path, [t for at, name in enumerate(names) for t in measured(f"{name}x", 2.2 + at)])
    tables = (blocks.block, blocks.speeds, blocks.peers, blocks.passes)
    for text in (*(table(found) for table in tables), blocks.sizes(), blocks.bounds()):
        assert too_wide(text) == []


def test_a_panel_for_each_layer_and_small(tmp_path):
    (drawn,) = figure.pictures(built(tmp_path, [*measured(), *measured("slow", 1.5)]))
    (empty,) = figure.pictures(Comparison([]))
    assert drawn.file == empty.file == "models-nvidia-h200.svg"
    for one, panels in ((drawn, len(layers()) - 1), (empty, len(layers()))):
        text = one.svg()
        assert text.count("not measured") == panels and len(text) < 60_000
        assert all(f">{layer.name}<" in text for layer in layers())
    data = drawn.arguments[0]
    assert data["Qwen3-30B EP1"]["slow"] == [[t, pytest.approx(1.5)] for t in BOUNDS] and data["GLM-5 EP8"] == {}


# A model by its name


def test_every_tag_of_a_layer_is_a_name():
    assert {layer.model for layer in layers()} == {name for name, _ in MODELS.values()}
    for layer in layers():
        assert all(layer in layers_named(tag) for tag in layer.tags)
        assert layers_named(layer.geometry) == layers_named(layer.definition) == [layer]


@pytest.mark.parametrize(
    "text, names",
    [
        ("Qwen3-235B-A22B", ["Qwen3-235B EP1"]),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", ["Qwen3-30B EP1"]),
        (
            "deepseek-ai/DeepSeek-V3.1-Terminus",
            ["DeepSeek-V3 EP16", "DeepSeek-V3 EP8", "DeepSeek-V3 EP4", "DeepSeek-V3 EP1"],
        ),
        ("DeepSeek-R1-0528-ep4", ["DeepSeek-V3 EP4"]),
        ("Kimi-K2 EP8", ["Kimi-K2 EP8"]),
        ("Kimi-K2", ["Kimi-K2 EP8", "Kimi-K2 EP1"]),
        ("qwen3_next", ["Qwen3-Next 128/512"]),
        ("GLM-5", ["GLM-5 EP8"]),
        ("MiniMax-M2", ["MiniMax-M2 EP1"]),
    ],
)
def test_a_model_is_found_by_what_people_type(text, names):
    assert [layer.name for layer in layers_named(text)] == names


@pytest.mark.parametrize(
    "text, said",
    [
        ("Kimmi-K2", "did you mean kimi-k2?"),
        ("qwen3", "is several: qwen3-235b-a22b, qwen3-30b-a3b, qwen3-next-80b-a3b"),
        ("Kimi-K2-EP4", "no definition at EP4; there are: Kimi-K2 EP8, Kimi-K2 EP1"),
        ("llama", "there are: deepseek-v3, "),
        ("DeepSeek-V2", "'DeepSeek-V2'; there are: deepseek-v3, "),  # another layer, no misspelt name
        ("zai-org/GLM-4.5", "there are: deepseek-v3, "),
        ("Qwen3-Coder-480B-A35B", "there are: deepseek-v3, "),
        ("qwen3-235b-routed", "a definition behind a router; solutions that serve it: "),
        ("", "there are: deepseek-v3, "),
    ],
)
def test_another_name_gets_one_line(text, said):
    with pytest.raises(UserError, match="^(unknown )?model") as raised:
        layers_named(text)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_weights_are_those_of_the_rank():
    (whole,) = layers_named("kimi-k2-ep1")
    assert weight_bytes(whole) / 1e9 == pytest.approx(16.9, abs=0.05)


def test_a_packed_solution_is_known_by_its_folder():
    """Packing makes names unique; a table of a model must not show hopper_fused_ng1_kg1_e48, nor miss its colour."""
    for name in ("hopper_fused", "hopper_fused_exact", "triton_fused_v2"):
        for solution in pack.pack(name).values():
            assert folder_name(solution.name, solution.definition) == name
    assert folder_name("hopper_fused_mine", QWEN) == "hopper_fused_mine" and folder_name("fast", QWEN) == "fast"


# The answer of `moebench compare MODEL`


def advice(tmp_path, traces, gpu=None, model="Qwen3-30B-A3B"):
    (layer,) = layers_named(model)
    return model_advice.advice(layer, built(tmp_path, traces), gpu)


@pytest.mark.parametrize("gpu", [None, "H200", "NVIDIA H200", "nvidia h200", "sm_90"])
def test_the_answer_is_a_few_lines(tmp_path, gpu):
    exact = measured("exact", 1.3, tolerance=DEFAULT, matched=0.957)
    first, *rest = advice(tmp_path, [*measured(), *measured("slow", 1.5), *exact], gpu)
    times = ", ".join(f"{1.2 * BOUNDS[t]:.3f} ms at T = {t}" for t in (1, 64, 8192))
    assert first == f"Qwen3-30B EP1 (qwen3-30b) on NVIDIA H200: fast at relaxed tolerance: {times}"
    assert rest == [
        "  geometric means over 12 workloads: 1.20 times the roofline bound, 1.25 times as fast as slow",
        "  at default tolerance: exact, lowest matched ratio 0.957",
        "  at contest tolerance: not judged there",
        "  call it: moebench pack fast --package moe --definition qwen3-30b",
        "           from moe.fast_renorm_e128_h2048_i768 import run",
    ]


def test_the_answer_says_what_was_not_measured(tmp_path):
    """A user of another GPU would take what was never run there for what fails there."""
    wrong = measured("exact", tolerance=DEFAULT, status="INCORRECT_NUMERICAL", matched=0.5)
    known = advice(tmp_path, [*measured(), *wrong])
    assert known[2] == "  at default tolerance: none is known to pass"
    known = advice(tmp_path, measured(hardware="NVIDIA H100 80GB HBM3"), "H100")
    assert "on NVIDIA H100 80GB HBM3: fast at relaxed tolerance" in known[0]
    assert known[1] == "  neither another source's solution nor the roofline bound was measured there"
    assert known[2] == "  at default tolerance: not judged there"


def test_the_answer_says_what_does_not_serve_the_model(tmp_path):
    """A reader would pack a kernel that routes among a quarter of the experts, or find on the GPU that nothing fits."""
    other = "moe_fp8_block_scale_renorm_topk10_e128_h2048_i512"
    part = advice(
        tmp_path, [trace("fast", w.axes["seq_len"], definition=other) for w in workloads(other)], None, "Qwen3-Next"
    )
    assert "128 of the model's 512 experts" in part[-1] and not any("call it" in line for line in part)
    large = advice(tmp_path, measured(), None, "Qwen3-235B-A22B")
    assert "  does not fit: weights of 94 layers take 227 GB, one NVIDIA H200 has 141" in large
    assert not any("does not fit" in line for line in advice(tmp_path, measured()))


def test_a_model_without_an_entry_is_named(monkeypatch):
    monkeypatch.delitem(MODELS, "glm-5")
    with pytest.raises(UserError, match="MODELS of harness.results.model_names: no entry 'glm-5', .* glm-5-ep8"):
        layers.__wrapped__()


def test_a_gpu_that_was_not_measured_is_said_first(tmp_path):
    first, second, *_, call, _ = advice(tmp_path, measured(), "H100")
    assert re.search(r"on H100: not measured; written for sm_90: (\w+, )*hopper_fused, ", first)
    assert "on NVIDIA H200: fast" in second and "call it" in call
    first, last = advice(tmp_path, measured(), "B200")
    assert re.search(r"on B200: not measured; written for sm_100: .*\btriton_fused_v2$", first) and "measure it" in last
    assert "no solution is written for sm_121" in advice(tmp_path, measured(), "GB10")[0]
    with pytest.raises(UserError, match="unknown GPU 'H2000'; did you mean"):
        advice(tmp_path, measured(), "H2000")


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("NVIDIA A100-SXM4-80GB", "sm_80"),
        ("NVIDIA RTX A6000", "sm_86"),
        ("NVIDIA RTX 6000 Ada Generation", "sm_89"),
        ("NVIDIA GeForce RTX 4090", "sm_89"),
        ("NVIDIA H100 80GB HBM3", "sm_90"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "sm_120"),
        ("rtx 5090", "sm_120"),
        ("Quadro RTX 6000", None),
    ],
)
def test_a_gpu_is_known_by_the_words_of_its_name(name, target):
    """A reader would miss a solution for their GPU, or be sent to one that does not run there."""
    assert architecture(name) == target


def test_the_command_answers_for_each_parallelism(tmp_path, capsys):
    file = str(write(tmp_path / "traces.jsonl", measured()))
    assert cli.main(["compare", "Kimi-K2", "--traces", file]) == 0
    out = capsys.readouterr().out
    assert re.findall(r"^(\S+ EP\d) .*not measured", out, re.M) == ["Kimi-K2 EP8", "Kimi-K2 EP1"]
    for args, said in (
        (["Kimi-K2", "--tolerance", "relaxed"], "--tolerance: got it beside a MODEL"),
        (["Kimi-K2", "--format", "csv"], "--format: got csv beside a MODEL"),
        (["--gpu", "H200"], "--gpu: want a MODEL"),
        (["Kimmi-K2"], "did you mean kimi-k2?"),
    ):
        assert cli.main(["compare", *args, "--traces", file]) == 2
        assert said in capsys.readouterr().err
