"""Which layers a solution serves: rules in its manifest, and why one is not taken."""

import pytest
from moebench.core import paths
from moebench.operators import catalogue
from moebench.packing import manifest, pack
from moebench.packing.manifest import PackingError, read_manifest
from moebench.packing.serves import Range, Rule, why_not
from moebench.results import trace_files


def test_what_was_measured_is_served_and_under_its_name():
    """No rule has lost a layer, and no packed name is another now."""
    recorded = set()
    for file in paths.ROOT.glob("traces/moe/*.jsonl"):
        for trace in trace_files.read_saved(file):
            recorded.add((trace.solution, trace.definition))

    packed = set()
    for name in manifest.solution_names():
        for solution in pack.pack(name).values():
            packed.add((solution.name, solution.definition))

    assert len(recorded) > 50
    assert recorded <= packed


RULES = [
    Rule(forms=["sigmoid-bias"], top_k=Range(at_most=4)),
    Rule(
        forms=["sigmoid-bias", "renorm"],
        activations=["silu", "clamp"],
        num_experts=Range(multiple_of=128),
    ),
]
LAYER = catalogue.layer_sizes()["full"]


@pytest.mark.parametrize(
    ("form", "changes"),
    [
        ("sigmoid-bias", {}),
        ("sigmoid-bias", {"top_k": 4, "num_experts": 72}),
        ("renorm", {"swiglu_limit": 10}),
    ],
)
def test_a_layer_is_taken_by_any_rule(form, changes):
    assert why_not(RULES, form, LAYER | changes) is None


@pytest.mark.parametrize(
    ("form", "changes", "named"),
    [
        ("renorm", {"num_experts": 72}, ["num_experts", "72", "multiples of 128"]),
        (
            "renorm",
            {"activation": "swigluoai", "swiglu_limit": 7},
            ["activation", "swigluoai", "silu, clamp"],
        ),
        ("routed", {}, ["router", "routed", "sigmoid-bias, renorm"]),
        (None, {}, ["router"]),
    ],
)
def test_what_is_refused_is_named(form, changes, named):
    reason = why_not(RULES, form, LAYER | changes)
    assert all(each in reason for each in named)


@pytest.mark.parametrize(
    ("value", "is_taken"),
    [(512, True), (8192, True), (8320, False), (384, False), (600, False)],
)
def test_a_range_has_ends_and_steps(value, is_taken):
    whole_blocks = Range(multiple_of=128, at_least=512, at_most=8192)
    assert whole_blocks.takes(value) == is_taken


def test_rules_that_take_nothing_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "solution.toml").write_text("""
name = "mine"
author = "x"
description = "x"
language = "python"
entry_point = "main.py::run"
target_hardware = ["cpu"]

[[serves]]
forms = ["renorm"]
hidden_size = { at_most = 8 }
""")
    with pytest.raises(PackingError, match="^mine: solution.toml: serves: "):
        read_manifest("mine")
