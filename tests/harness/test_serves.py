"""Which layers a solution serves: rules in its manifest, and why one is not taken."""

import pytest
from harness.operators import catalogue
from harness.packing import manifest
from harness.packing.manifest import PackingError, read_manifest
from harness.packing.serves import Range, Rule, why_not

INSIDE = "full deepseek-v3-ep16 deepseek-v3-ep4 deepseek-v3-ep1 kimi-k2-ep8 kimi-k2-ep1 minimax-m2 glm-5-ep8".split()
INSIDE += ["qwen3-235b", "qwen3-30b", "qwen3-next"]
ROUTED = [f"{key}-routed" for key in ["deepseek-v3-ep8", *INSIDE[1:]]]
SMALL = ["small", "small-one-group", "small-renorm"]
BEFORE = {  # lists of definitions that were in the manifests before there were rules
    **dict.fromkeys(["hopper_fused", "hopper_fused_exact", "mma_fused"], INSIDE + ROUTED),
    "triton_fused_v2": [*INSIDE, *SMALL, *ROUTED, "small-routed", "small-renorm-routed"],
    **dict.fromkeys(["sglang_triton", "deepgemm", "flashinfer_cutlass", "flashinfer_trtllm"], INSIDE + SMALL),
    "cutlass_grouped": INSIDE,
    "torch_moe": ["full", "small"],
}


@pytest.mark.parametrize("name", BEFORE)
def test_what_was_served_is_served_and_begins_with_the_first_definition(name):
    """A user would miss: the traces of a solution that gets another name."""
    found = read_manifest(name).definitions
    assert {*BEFORE[name]} <= {*found} and found[0] == "full"


RULES = [
    Rule(forms=["sigmoid-bias"], top_k=Range(at_most=4)),
    Rule(forms=["sigmoid-bias", "renorm"], activations=["silu", "clamp"], num_experts=Range(multiple_of=128)),
]
LAYER = catalogue.GEOMETRIES["full"]


@pytest.mark.parametrize(
    ("form", "changes", "named"),
    [
        ("sigmoid-bias", {}, None),
        ("sigmoid-bias", {"top_k": 4, "num_experts": 72}, None),
        ("renorm", {"swiglu_limit": 10}, None),
        ("renorm", {"num_experts": 72}, ["num_experts", "72", "multiples of 128"]),
        ("renorm", {"activation": "swigluoai", "swiglu_limit": 7}, ["activation", "swigluoai", "silu, clamp"]),
        ("routed", {}, ["form", "routed", "sigmoid-bias, renorm"]),
        (None, {}, ["form"]),
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
