"""config.json -> a layer: the public values of many models, and what is refused, by the field that
is at fault.
"""

import json
from pathlib import Path

import pytest
from moebench.operators import catalogue
from moebench.operators.moe_fp8_block_scale_routed import ROUTERS

from definitions.config_json import read

SAMPLES = (
    (Path(__file__).parents[1] / "samples" / "model_configs.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
)
CONFIGS = {sample["name"]: sample for sample in map(json.loads, SAMPLES)}
GOOD = [name for name, sample in CONFIGS.items() if "layers" in sample]
BAD = [name for name, sample in CONFIGS.items() if "named" in sample]
# of models without a definition
OTHERS = {
    "Qwen3-Next-80B": ("renorm", 512, 512, 10, 1, 2048, 512, "silu", 0),
    "Step-3.5-Flash": ("sigmoid-bias", 288, 36, 8, 1, 4096, 1280, "silu", 0),
    "LongCat-Flash": ("given", 512, 64, 12, 1, 6144, 2048, "silu", 0),
    "ERNIE-4.5-21B": ("given", 64, 64, 6, 1, 2560, 1536, "silu", 0),
}
SHOWN = ["routing", "num_experts", "num_local_experts", "top_k", "num_groups"]
SHOWN += ["hidden_size", "intermediate_size", "activation", "swiglu_limit"]


@pytest.mark.parametrize("name", GOOD)
def test_a_models_config_is_the_layer_that_it_has(name):
    """A user would miss: a kernel of another size or clamp, or the wrong router."""
    sample = CONFIGS[name]
    found = read(sample["config"])
    of, key = found.on(sample["ep"]), sample["key"]
    assert found.layers == sample["layers"]
    if key is None:
        assert tuple(of[each] for each in SHOWN) == OTHERS[name]
        assert {*catalogue.names(of).values()}.isdisjoint(
            catalogue.BY_NAME
        ) or name == "Step-3.5-Flash"
    else:
        known = ROUTERS.get(key, catalogue.GEOMETRIES[key])
        assert {size: known[size] for size in of} == of
        assert key in [catalogue.BY_NAME[each] for each in catalogue.names(of).values()]


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused_is_named(name):
    """A user would miss: which field of forty stands against it."""
    with pytest.raises(ValueError) as caught:
        read(CONFIGS[name]["config"])
    assert all(each in str(caught.value) for each in CONFIGS[name]["named"]) and "\n" not in str(
        caught.value
    )


def test_the_weights_may_be_taken_for_fp8():
    """As of a checkpoint that is converted later."""
    of = read(CONFIGS["MiniMax-M3 in MXFP8"]["config"], assume_fp8=True).on(8)
    assert catalogue.names(of)["routed"] == catalogue.definition_name("minimax-m3-ep8-routed")
    with pytest.raises(ValueError, match="hidden_size: has 2880"):
        read(CONFIGS["gpt-oss in MXFP4"]["config"], assume_fp8=True)


def test_layers_that_differ_in_their_clamp_are_told_apart():
    config = CONFIGS["Step-3.5-Flash"]["config"]
    assert read(config).others == {7: 2}
    few = read(config, limit=7)
    assert (few.layers, few.others) == (2, {0: 40}) and few.of["activation"] == "swiglustep"
    assert catalogue.names(few.on(8))["routed"] == catalogue.definition_name(
        "step-3.5-flash-ep8-routed"
    )
    for wrong in (lambda: read(config, limit=5), lambda: read(config).on(7)):
        with pytest.raises(ValueError, match="^--(limit: got 5|ep: got 7)"):
            wrong()
