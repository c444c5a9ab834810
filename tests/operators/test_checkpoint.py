"""config.json -> a layer: the public values of many models, and what is refused, by the field that
is at fault.
"""

import json

import pytest
from model_configs import BAD, CONFIGS, GOOD, config_of
from moebench.models.checkpoint import Assumptions, read, read_file
from moebench.operators import catalogue

DEEPSEEK = config_of("DeepSeek-V3")
QUANTISATION = {
    "quantization": {"quant_algo": "FP8_BLOCK_SCALES", "exclude_modules": ["lm_head"]}
}


@pytest.mark.parametrize("name", GOOD)
def test_a_models_config_is_the_layer_that_it_has(name):
    sample = CONFIGS[name]
    checkpoint = read(sample["config"])
    sizes = checkpoint.on(sample["ep"])

    assert checkpoint.layers == sample["layers"]
    assert checkpoint.kind == sample.get("kind", "fp8")
    assert checkpoint.not_understood == {}
    assert sizes | sample.get("sizes", {}) == sizes

    notes = "; ".join(checkpoint.notes)
    assert all(part in notes for part in sample.get("notes", []))
    assert all(part in checkpoint.router for part in sample.get("router", []))


@pytest.mark.parametrize("name", [name for name in GOOD if CONFIGS[name]["key"]])
def test_a_models_layer_has_the_definition_that_it_has(name):
    sample = CONFIGS[name]
    checkpoint = read(sample["config"])
    sizes = checkpoint.on(sample["ep"])

    names = catalogue.names(sizes, checkpoint.kind)
    assert catalogue.definition_name(sample["key"]) in names.values()
    of_definition = catalogue.router_sizes(sample["key"])
    assert of_definition | sizes == of_definition


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused_is_named(name):
    with pytest.raises(ValueError) as caught:
        read(config_of(name))
    message = str(caught.value)
    assert all(each in message for each in CONFIGS[name]["named"])
    assert "\n" not in message


def test_the_weights_may_be_taken_for_fp8():
    """As of a checkpoint that is converted later."""
    sizes = read(config_of("MiniMax-M3 in MXFP8"), Assumptions(fp8=True)).on(8)
    name = catalogue.definition_name("minimax-m3-ep8-routed")
    assert catalogue.names(sizes)["routed"] == name
    with pytest.raises(ValueError, match="hidden_size: has 2880"):
        read(config_of("gpt-oss in MXFP4"), Assumptions(fp8=True))


def test_activations_beside_mxfp4_may_be_taken_for_fp8():
    """Of weights in 4 bits beside activations in 16, as most public checkpoints in MXFP4 are."""
    checkpoint = read(
        config_of("Ling-3.0-flash in MXFP4"), Assumptions(fp8_activations=True)
    )
    assert checkpoint.kind == "mxfp4"
    assert checkpoint.layers == 40
    assert any("16 bits" in note for note in checkpoint.notes)
    sizes = checkpoint.on(8)
    assert catalogue.names(sizes, "mxfp4") == {
        "mxfp4": "moe_mxfp4_fp8_block_scale_routed_topk8_e64_h2560_i768"
    }


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("Kimi-K3 in MXFP4", "hidden_act"),
        ("gpt-oss in MXFP4", "hidden_size"),  # no multiple of 128
        ("DeepSeek-R1 in NVFP4", "quantization_config"),
        ("Qwen3-30B by GPTQ", "quantization_config"),
    ],
)
def test_other_layers_are_not_taken_for_mxfp4_with_activations_in_fp8(name, field):
    with pytest.raises(ValueError, match=f"^{field}: has"):
        read(config_of(name), Assumptions(fp8_activations=True))


def test_experts_with_biases_are_another_layer():
    config = config_of("gpt-oss in MXFP4") | {"hidden_size": 3072}
    config |= {"intermediate_size": 3072}
    with pytest.raises(ValueError, match="gpt_oss.*biases"):
        read(config, Assumptions(fp8=True))


def test_layers_that_differ_in_their_clamp_are_told_apart():
    config = config_of("Step-3.5-Flash")
    assert read(config).others == {7: 2}

    few = read(config, Assumptions(limit=7))
    assert few.layers == 2
    assert few.others == {0: 40}
    assert few.sizes["activation"] == "swiglustep"
    name = catalogue.definition_name("step-3.5-flash-ep8-routed")
    assert catalogue.names(few.on(8))["routed"] == name

    with pytest.raises(ValueError, match="^--limit: got 5"):
        read(config, Assumptions(limit=5))
    with pytest.raises(ValueError, match="^--ep: got 7"):
        read(config).on(7)


def test_tensor_parallel_ranks_have_a_slice_of_each_expert():
    checkpoint = read(DEEPSEEK)
    sizes = checkpoint.on(1, 8)
    name = catalogue.definition_name("deepseek-v3-tp8-routed")
    assert catalogue.names(sizes)["routed"] == name

    both = checkpoint.on(4, 2)
    assert both["num_local_experts"] == 64
    assert both["intermediate_size"] == 1024


@pytest.mark.parametrize(
    ("name", "ranks", "left"),
    [("Qwen3-235B", 8, "192"), ("DeepSeek-V3", 32, "64"), ("GLM-4.5-Air", 2, "704")],
)
def test_a_slice_that_parts_a_scales_block_is_refused_with_the_reason(
    name, ranks, left
):
    checkpoint = read(config_of(name))
    line = f"^--tp: got {ranks}, which leaves {left} .*128"
    with pytest.raises(ValueError, match=line):
        checkpoint.on(1, ranks)


@pytest.mark.parametrize(
    "field",
    [
        "per_layer_config",
        "mlp_layer_types",
        "moe_layer_freq",
        "moe_layers_enum",
        "first_k_dense_replace",
        "swiglu_limits",
        "routed_scaling_factor",
        "zero_expert_num",
        "num_hidden_layers",
        "quantization_config",
    ],
)
@pytest.mark.parametrize("value", [-1, 1.5, "x", [[1]], {"a": 1}, 10**9], ids=str)
def test_a_value_that_no_field_has_gets_one_line(field, value):
    """Or is one that the field may have: no other error, and no endless search."""
    config = DEEPSEEK | {field: value}
    try:
        checkpoint = read(config)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert checkpoint.layers <= 61


def test_a_field_of_quark_that_is_no_object_gets_one_line():
    """Or is read as if it were not there."""
    whole = {"weight": {"dtype": "fp4", "group_size": 32, "scale_format": "e8m0"}}
    quark = {
        "quant_method": "quark",
        "global_quant_config": whole | {"input_tensors": 1},
    }
    with pytest.raises(ValueError, match="activations in 16 bits"):
        read(DEEPSEEK | {"quantization_config": quark})


def test_a_field_of_the_experts_that_nothing_reads_is_listed():
    config = config_of("Qwen3-235B")
    added = {
        "moe_expert_dropout_schedule": 3,
        "expert_output_norm": True,
        "router_temperature": 0.5,
        "moe_layer_scale": False,
        "attention_topk": 4,
        "shared_expert_intermediate_size": 512,
    }
    assert read(config | added).not_understood == {
        "moe_expert_dropout_schedule": 3,
        "expert_output_norm": True,
        "router_temperature": 0.5,
    }


@pytest.mark.parametrize(
    ("names", "factor"),
    [
        ({"routed_scaling_factor": None}, 1.0),
        ({"routed_scaling_factor": 1.8}, 1.8),
        ({"moe_router_scaling_factor": 3}, 3.0),
        ({"route_scale": 2.448}, 2.448),
    ],
)
def test_the_scaling_factor_is_the_models(names, factor):
    config = config_of("MiniMax-M2")
    assert read(config | names).sizes["routed_scaling_factor"] == factor


def test_softmax_that_is_scaled_has_no_definition_with_the_router_inside():
    config = config_of("Qwen3-235B") | {"routed_scaling_factor": 2.0}
    assert list(catalogue.names(read(config).on(1))) == ["routed"]


WITHOUT_QUANTISATION = dict(config_of("Qwen3-30B by llm-compressor"))
del WITHOUT_QUANTISATION["quantization_config"]


def written(folder, **files):
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_a_folder_is_read_with_the_quantisation_beside(tmp_path):
    written(tmp_path, config=WITHOUT_QUANTISATION, hf_quant_config=QUANTISATION)
    assert read_file(tmp_path).layers == 48
    assert read_file(tmp_path / "config.json").layers == 48


def test_the_file_beside_is_named_where_it_stands_against_it(tmp_path):
    for algorithm in ("FP8", "NVFP4", "MIXED_PRECISION"):
        beside = {"quantization": {"quant_algo": algorithm}}
        written(tmp_path, config=WITHOUT_QUANTISATION, hf_quant_config=beside)
        line = f"hf_quant_config.json: has modelopt {algorithm}"
        with pytest.raises(ValueError, match=line):
            read_file(tmp_path)


def test_what_the_file_beside_excludes_counts_also_where_config_json_has_the_scheme(
    tmp_path,
):
    config = config_of("Qwen3-235B")
    beside = {
        "quantization": {"quant_algo": "FP8", "exclude_modules": ["*.mlp.experts*"]}
    }
    written(tmp_path, config=config, hf_quant_config=beside)
    with pytest.raises(ValueError, match="exclude_modules"):
        read_file(tmp_path)


@pytest.mark.parametrize(
    ("place", "config_name", "name"),
    [
        ("Kimi-K2_Instruct", "", "kimi-k2-instruct"),
        ("anything", "org/My.Model-FP8", "my.model-fp8"),
        (f"models--Qwen--Qwen3-30B/snapshots/{'a1' * 20}", "", "qwen3-30b"),
    ],
)
def test_a_checkpoint_has_a_name_that_can_be_a_key(tmp_path, place, config_name, name):
    folder = tmp_path / place
    folder.mkdir(parents=True)
    written(folder, config=config_of("Kimi-K2") | {"_name_or_path": config_name})
    assert read_file(folder).name == name


@pytest.mark.parametrize(
    ("config", "count", "width", "has_gate"),
    [
        (DEEPSEEK | {"n_shared_experts": 1}, 1, 2048, False),
        (config_of("DeepSeek-V2, every second layer"), 2, 3072, False),
        (
            config_of("Qwen3-Next-80B") | {"shared_expert_intermediate_size": 512},
            1,
            512,
            True,
        ),
        (DEEPSEEK | {"shared_expert_intermediate_size": 1024}, 0, 1024, False),
        (
            DEEPSEEK | {"n_shared_experts": 1, "swiglu_limits_shared": [7.0] * 61},
            0,
            2048,
            False,
        ),
    ],
)
def test_shared_experts_are_so_many_of_the_others(config, count, width, has_gate):
    shared = read(config).shared
    assert shared.count == count
    assert shared.width == width
    assert shared.has_gate == has_gate
    assert bool(shared.why_not_appended) == (count == 0)


@pytest.mark.parametrize("value", [None, 0])
def test_a_model_may_have_no_shared_experts(value):
    assert read(DEEPSEEK | {"n_shared_experts": value}).shared is None
