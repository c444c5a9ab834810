"""Which layers a solution serves: rules in its manifest, and why one is not taken."""

import pytest
from moebench.core import paths
from moebench.operators import catalogue
from moebench.packing import manifest, pack
from moebench.packing.manifest import PackingError, read_manifest
from moebench.packing.serves import Range, Rule, why_not
from moebench.results import trace_files

TRACES = paths.ROOT.glob("traces/moe/*.jsonl")
RECORDED = {
    (trace.solution, trace.definition) for file in TRACES for trace in trace_files.load(file)
}


def test_what_was_measured_is_served_and_under_its_name():
    """A user would miss: the traces of a solution whose rules lost a layer, or whose packed name is
    another now.
    """
    packed = {
        (p.name, p.definition)
        for name in manifest.solution_names()
        for p in pack.pack(name).values()
    }
    assert len(RECORDED) > 50 and RECORDED <= packed


RULES = [
    Rule(forms=["sigmoid-bias"], top_k=Range(at_most=4)),
    Rule(
        forms=["sigmoid-bias", "renorm"],
        activations=["silu", "clamp"],
        num_experts=Range(multiple_of=128),
    ),
]
LAYER = catalogue.GEOMETRIES["full"]


@pytest.mark.parametrize(
    ("form", "changes", "named"),
    [
        ("sigmoid-bias", {}, None),
        ("sigmoid-bias", {"top_k": 4, "num_experts": 72}, None),
        ("renorm", {"swiglu_limit": 10}, None),
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
    why = why_not(RULES, form, LAYER | changes)
    assert why is None if named is None else why and all(each in why for each in named)


def test_a_range_says_what_it_takes():
    some = Range(multiple_of=128, at_least=512, at_most=8192)
    assert [some.takes(n) for n in (512, 8192, 8320, 384, 600)] == [True, True, False, False, False]
    assert str(some) == "multiples of 128 from 512 up to 8192" and not Range(one_of=[1, 8]).takes(4)


def test_rules_that_take_nothing_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest.paths, "SOLUTIONS", tmp_path)
    (tmp_path / "mine").mkdir()
    keys = 'name = "mine"\nauthor = "x"\ndescription = "x"\nlanguage = "python"\nentry_point = "main.py::run"\n'
    rule = '[[serves]]\nforms = ["renorm"]\nhidden_size = { at_most = 8 }\n'
    (tmp_path / "mine" / "solution.toml").write_text(f'{keys}target_hardware = ["cpu"]\n{rule}')
    with pytest.raises(PackingError, match="^mine: solution.toml: serves: "):
        read_manifest("mine")
