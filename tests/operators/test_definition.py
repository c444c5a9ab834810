"""The reference says what the operator is, and the JSON says what the reference says."""

import math
import re

import pytest
import torch
from flashinfer_bench import Definition, Workload
from flashinfer_bench.bench.evaluators import resolve_evaluator
from flashinfer_bench.bench.evaluators.lowbit import LowBitEvaluator
from flashinfer_bench.bench.utils import gen_inputs
from flashinfer_bench.compile import BuilderRegistry
from moebench import cli
from moebench.core import paths
from moebench.models import add_model
from moebench.operators import catalogue
from moebench.operators.catalogue import definition_name

EXPERTS = ["gemm1_weights", "gemm1_weights_scale", "gemm2_weights", "gemm2_weights_scale"]
TOKENS = ["hidden_states", "hidden_states_scale"]
# kind of routing -> names of the inputs, by position, and the dtype and width of the first
INPUTS = {
    "ds": (
        [
            "routing_logits",
            "routing_bias",
            *TOKENS,
            *EXPERTS,
            "local_expert_offset",
            "routed_scaling_factor",
        ],
        "float32",
    ),
    "renorm": (["routing_logits", *TOKENS, *EXPERTS], "bfloat16"),
    "routed": (
        [*TOKENS, "topk_ids", "topk_weights", *EXPERTS, "local_expert_offset"],
        "float8_e4m3fn",
    ),
}


@pytest.mark.parametrize("layer_key", [*catalogue.fp8_moe(), *catalogue.routed()])
def test_a_definitions_name_axes_and_inputs_are_the_public_ones(layer_key):
    """A solution of the public data set must fit: FIB finds it by name and passes inputs by
    position.
    """
    definition = catalogue.definition(layer_key)
    kind = definition.name.removeprefix("moe_fp8_block_scale_").partition("_")[0]
    numbers = re.findall(r"_(topk|ng|kg|e|h|i)(\d+)", definition.name)
    named = {key: int(number) for key, number in numbers}

    wanted = {
        "num_local_experts": named["e"],
        "hidden_size": named["h"],
        "intermediate_size": named["i"],
        "gemm1_out_size": 2 * named["i"],
        "num_hidden_blocks": named["h"] // 128,
        "num_intermediate_blocks": named["i"] // 128,
        "num_gemm1_out_blocks": 2 * named["i"] // 128,
    }
    if kind == "ds":
        wanted["num_experts"] = catalogue.layer_sizes()[layer_key]["num_experts"]
    if kind == "routed":
        wanted["top_k"] = named["topk"]
    constant = {axis: spec.value for axis, spec in definition.axes.items() if spec.type == "const"}
    assert constant == wanted

    names, dtype = INPUTS[kind]
    assert list(definition.inputs) == names
    assert list(definition.outputs) == ["output"]
    assert definition.inputs[names[0]].dtype == dtype
    if kind != "routed":
        assert f"TOP_K = {named['topk']}\n" in definition.reference
    if kind == "ds":
        assert f"NUM_GROUPS = {named['ng']}\nKEPT_GROUPS = {named['kg']}\n" in definition.reference


def inputs(seq_len, offset=64, layer_key="small"):
    """Return FIB's random inputs of a definition with the router inside."""
    family = catalogue.operator(layer_key)
    definition = family.definition(layer_key)
    specs = {name: {"type": "random"} for name in definition.inputs}
    if family is catalogue.SIGMOID_BIAS:
        specs["local_expert_offset"] = {"type": "scalar", "value": offset}
        specs["routed_scaling_factor"] = {"type": "scalar", "value": 2.5}

    torch.manual_seed(seq_len)
    workload = Workload(uuid="test", axes={"seq_len": seq_len}, inputs=specs)
    return gen_inputs(definition, workload, "cpu")


def chosen_by_softmax(sizes, logits):
    """Return [(expert, weight)] of one token, straight from the description, in Python's floats."""
    logits = logits.double().tolist()
    best = sorted(range(len(logits)), key=lambda expert: logits[expert])[-sizes["top_k"] :]
    total = sum(math.exp(logits[expert]) for expert in best)
    return [(expert, math.exp(logits[expert]) / total) for expert in best]


def chosen_by_sigmoid(sizes, logits, bias, factor):
    """Return [(expert, weight)] of one token, straight from the description, in Python's floats."""
    scores = torch.sigmoid(logits)
    biased = (scores + bias.float()).tolist()
    size = sizes["num_experts"] // sizes["num_groups"]
    groups = [range(group * size, group * size + size) for group in range(sizes["num_groups"])]

    def best_two(group):
        return sum(sorted(biased[expert] for expert in group)[-2:])

    open_experts = []
    for group in sorted(groups, key=best_two)[-sizes["kept_groups"] :]:
        open_experts += group
    best = sorted(open_experts, key=lambda expert: biased[expert])[-sizes["top_k"] :]
    total = sum(scores[expert].item() for expert in best) + 1e-20
    return [(expert, scores[expert].item() / total * factor) for expert in best]


def dequantised(values, scales):
    """Return fp64 of a matrix with a scale per block of 128 x 128."""
    return values.double() * torch.kron(scales.double(), torch.ones(128, 128).double())


def one_row_at_a_time(layer_key, args):
    """Return the output again, straight from the description, in fp64 and without any sharing."""
    sizes = catalogue.layer_sizes()[layer_key]
    offset = 0
    if layer_key in catalogue.RENORM.layer_sizes():
        logits, x8, x_scale, w13, w13_scale, w2, w2_scale = args
    else:
        logits, bias, x8, x_scale, w13, w13_scale, w2, w2_scale, offset, factor = args

    inter = w2.shape[2]
    output = torch.zeros(*x8.shape, dtype=torch.float64)
    for token in range(len(x8)):
        x = x8[token].double() * x_scale[:, token].double().repeat_interleave(128)
        if layer_key in catalogue.RENORM.layer_sizes():
            chosen = chosen_by_softmax(sizes, logits[token])
        else:
            chosen = chosen_by_sigmoid(sizes, logits[token], bias, factor)
        for expert, weight in chosen:
            local = expert - offset
            if 0 <= local < len(w13):
                up, gate = (dequantised(w13[local], w13_scale[local]) @ x).split(inter)
                h = up * gate * torch.sigmoid(gate)
                output[token] += weight * (dequantised(w2[local], w2_scale[local]) @ h)
    return output


@pytest.mark.parametrize(
    ("layer_key", "seq_len", "offset"),
    [
        ("small", 1, 40),
        ("small", 6, 40),
        ("small-one-group", 1, 20),
        ("small-one-group", 6, 20),
        ("small-renorm", 6, 0),
    ],
)
def test_reference_computes_what_the_design_describes(layer_key, seq_len, offset):
    args = inputs(seq_len, offset, layer_key)
    wanted = one_row_at_a_time(layer_key, args)
    assert wanted.abs().max() > 0
    error = (built(layer_key)(*args).double() - wanted).norm() / wanted.norm()
    assert error < 4e-3  # bf16 rounds to 2^-9


def built(layer_key):
    """FIB's build of the committed JSON: a module of its own, with nothing of this repository in
    reach.
    """
    text = paths.definition_file(definition_name(layer_key)).read_text()
    return BuilderRegistry.get_instance().build_reference(Definition.model_validate_json(text))


def test_fib_judges_it_as_low_bit():
    for layer_key in (*catalogue.fp8_moe(), *catalogue.routed()):
        assert resolve_evaluator(catalogue.definition(layer_key)) is LowBitEvaluator, layer_key


def test_the_committed_json_is_what_the_command_writes(tmp_path, monkeypatch):
    """Otherwise FIB judges by a reference that nobody can read."""
    folder = paths.ROOT / "definitions"
    committed = {path.name: path.read_text() for path in folder.glob("*/*.json")}
    monkeypatch.setattr(paths, "definition_file", lambda name: tmp_path / f"{name}.json")
    monkeypatch.setattr(add_model.workloads, "make", lambda layer_key: (0, 0))
    assert cli.main(["data", "--write"]) == 0
    assert {path.name: path.read_text() for path in tmp_path.glob("*.json")} == committed


def test_definitions_has_data_alone():
    """FIB reads every JSON below it; nothing imports it."""
    suffixes = {path.suffix for path in (paths.ROOT / "definitions").rglob("*") if path.is_file()}
    assert suffixes == {".json", ".toml", ".csv"}
