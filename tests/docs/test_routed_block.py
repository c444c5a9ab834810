"""docs/models.md's table of the routed forms, from traces of both forms."""

import pytest
from harness.report.blocks import routed
from harness.results import comparison
from harness.results.model_names import layers
from recorded import DEFAULT, trace, write

INSIDE = "moe_fp8_block_scale_renorm_topk8_e128_h2048_i768"
ROUTED = "moe_fp8_block_scale_routed_topk8_e128_h2048_i768"
MS = {1: 0.1, 64: 0.2, 1024: 0.5}


def measured(definition, times, name="fast", **changes):
    return [trace(name, tokens, times * ms, definition=definition, **changes) for tokens, ms in MS.items()]


@pytest.fixture
def shown(tmp_path):
    """The block of some traces, in no data set."""
    return lambda traces: routed.block(comparison.build([write(tmp_path / "traces.jsonl", traces)]))


def line(text):
    (found,) = [line for line in text.splitlines() if line.startswith("| Qwen3-30B EP1 ")]
    return found


def test_every_layer_has_a_routed_form():
    """A reader would miss: a layer whose routed form is not compared."""
    assert {layer.definition for layer in layers()} <= routed.ROUTED.keys() and routed.ROUTED[INSIDE] == ROUTED


def test_latency_is_set_against_the_other_form(shown):
    """A reader would miss: a routed form that costs more than it may."""
    text = shown([*measured(INSIDE, 1.0), *measured(ROUTED, 0.98)])
    assert line(text) == "| Qwen3-30B EP1 | 0.98 to 0.98 (3) |" and "| Kimi-K2 EP8 | - |" in text
    assert line(shown([*measured(INSIDE, 1.0), *measured(ROUTED, 1.05)])) == "| Qwen3-30B EP1 | 1.05 to 1.05 ✗ (3) |"


@pytest.mark.parametrize("changes", [{"protocol": "twice"}, {"tolerance": DEFAULT}, {"hardware": "NVIDIA B200"}])
def test_nothing_is_compared_across_conditions(shown, changes):
    """A reader would miss: a ratio of two protocols, tolerances or GPUs."""
    text = shown([*measured(INSIDE, 1.0), *measured(ROUTED, 0.98, **changes)])
    assert text.startswith("No solution's current source is recorded in both forms")


def test_a_solution_of_one_form_has_no_column(shown):
    """A reader would miss: an empty column that reads as a failure."""
    text = shown([*measured(INSIDE, 1.0), *measured(ROUTED, 0.98), *measured(INSIDE, 2.0, name="other")])
    assert "other" not in text
