"""The reference says what the operator is, and the JSON says what the reference says."""

import math
import re

import pytest
import torch
from every_solution import relative_error
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
BEFORE = {
    "ds": ["routing_logits", "routing_bias", *TOKENS],
    "renorm": ["routing_logits", *TOKENS],
    "routed": [*TOKENS, "topk_ids", "topk_weights"],
}
BEHIND = {
    "ds": ["local_expert_offset", "routed_scaling_factor"],
    "renorm": [],
    "routed": ["local_expert_offset"],
}
DTYPE = {"ds": "float32", "renorm": "bfloat16", "routed": "float8_e4m3fn"}


def kind_of(definition):
    """Return "ds", "renorm" or "routed", by the name."""
    kind, _, _ = definition.name.removeprefix("moe_fp8_block_scale_").partition("_")
    return kind


def numbers_of(definition):
    """Return the numbers in a definition's name by their letters: {"topk": 8, "e": 32, ...}."""
    parts = re.findall(r"_(topk|ng|kg|e|h|i)(\d+)", definition.name)
    return {letters: int(digits) for letters, digits in parts}


PUBLIC = [catalogue.definition(key) for key in (*catalogue.fp8_moe(), *catalogue.routed())]


@pytest.mark.parametrize("definition", PUBLIC, ids=lambda definition: definition.name)
def test_a_definitions_axes_are_the_public_ones(definition):
    """A solution of the public data set must fit: FIB finds it by name."""
    numbers = numbers_of(definition)
    axes = {axis: spec.value for axis, spec in definition.axes.items() if spec.type == "const"}
    wanted = {
        "num_local_experts": numbers["e"],
        "hidden_size": numbers["h"],
        "intermediate_size": numbers["i"],
        "gemm1_out_size": 2 * numbers["i"],
        "num_hidden_blocks": numbers["h"] // 128,
        "num_intermediate_blocks": numbers["i"] // 128,
        "num_gemm1_out_blocks": 2 * numbers["i"] // 128,
    }

    kind = kind_of(definition)
    if kind == "ds":
        layer_key = catalogue.by_name()[definition.name]
        wanted["num_experts"] = catalogue.layer_sizes()[layer_key]["num_experts"]
    if kind == "routed":
        wanted["top_k"] = numbers["topk"]
    if "_shared" in definition.name:
        wanted["num_shared_experts"] = int(definition.name.rpartition("_shared")[2])
    assert axes == wanted


@pytest.mark.parametrize("definition", PUBLIC, ids=lambda definition: definition.name)
def test_a_definitions_inputs_are_the_public_ones(definition):
    """FIB passes them by position."""
    kind = kind_of(definition)
    names = [*BEFORE[kind], *EXPERTS, *BEHIND[kind]]
    assert list(definition.inputs) == names
    assert list(definition.outputs) == ["output"]
    assert definition.inputs[names[0]].dtype == DTYPE[kind]


@pytest.mark.parametrize("definition", PUBLIC, ids=lambda definition: definition.name)
def test_a_reference_has_its_routers_sizes(definition):
    numbers = numbers_of(definition)
    kind = kind_of(definition)
    if kind == "routed":
        assert "TOP_K" not in definition.reference
        return
    assert f"TOP_K = {numbers['topk']}\n" in definition.reference
    if kind == "ds":
        groups = f"NUM_GROUPS = {numbers['ng']}\nKEPT_GROUPS = {numbers['kg']}\n"
        assert groups in definition.reference


def inputs(seq_len, offset=64, layer_key="small"):
    """Return FIB's random inputs of a definition with the router inside, by name."""
    family = catalogue.operator(layer_key)
    definition = family.definition(layer_key)
    specs = {name: {"type": "random"} for name in definition.inputs}
    if family is catalogue.SIGMOID_BIAS:
        specs["local_expert_offset"] = {"type": "scalar", "value": offset}
        specs["routed_scaling_factor"] = {"type": "scalar", "value": 2.5}

    torch.manual_seed(seq_len)
    workload = Workload(uuid="test", axes={"seq_len": seq_len}, inputs=specs)
    values = gen_inputs(definition, workload, "cpu")
    return dict(zip(definition.inputs, values, strict=True))


def chosen_by_softmax(sizes, logits):
    """Return [(expert, weight)] of one token, straight from the description, in Python's floats."""
    powers = [math.exp(logit) for logit in logits.double().tolist()]
    by_power = sorted(range(len(powers)), key=powers.__getitem__)
    best = by_power[-sizes["top_k"] :]
    total = sum(powers[expert] for expert in best)
    return [(expert, powers[expert] / total) for expert in best]


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
    by_score = sorted(open_experts, key=biased.__getitem__)
    best = by_score[-sizes["top_k"] :]
    scores = scores.tolist()
    total = sum(scores[expert] for expert in best) + 1e-20
    return [(expert, scores[expert] / total * factor) for expert in best]


def dequantised(values, scales):
    """Return fp64 of a matrix with a scale per block of 128 x 128."""
    block = torch.ones(128, 128, dtype=torch.float64)
    return values.double() * torch.kron(scales.double(), block)


def chosen_of(layer_key, arguments, token):
    """Return [(expert, weight)] of one token."""
    sizes = catalogue.layer_sizes()[layer_key]
    logits = arguments["routing_logits"][token]
    if "routing_bias" not in arguments:
        return chosen_by_softmax(sizes, logits)
    bias = arguments["routing_bias"]
    return chosen_by_sigmoid(sizes, logits, bias, arguments["routed_scaling_factor"])


def row_of(x, arguments, expert):
    """Return an expert's row for one token. expert: counted from the rank's first one."""
    matrices = {}
    for name in ("gemm1_weights", "gemm2_weights"):
        scales = arguments[f"{name}_scale"][expert]
        matrices[name] = dequantised(arguments[name][expert], scales)
    up, gate = (matrices["gemm1_weights"] @ x).chunk(2)
    h = up * gate * torch.sigmoid(gate)
    return matrices["gemm2_weights"] @ h


def one_row_at_a_time(layer_key, arguments):
    """Return the output again, straight from the description, in fp64 and without any sharing."""
    offset = arguments.get("local_expert_offset", 0)
    tokens = arguments["hidden_states"].double()
    scales = arguments["hidden_states_scale"].double().t()
    tokens *= scales.repeat_interleave(128, dim=1)

    output = torch.zeros_like(tokens)
    for token, x in enumerate(tokens):
        for expert, weight in chosen_of(layer_key, arguments, token):
            local = expert - offset
            if 0 <= local < len(arguments["gemm1_weights"]):
                output[token] += weight * row_of(x, arguments, local)
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
    arguments = inputs(seq_len, offset, layer_key)
    wanted = one_row_at_a_time(layer_key, arguments)
    assert wanted.abs().max() > 0

    output = built(layer_key)(*arguments.values())
    assert relative_error(output, wanted) < 4e-3  # bf16 rounds to 2^-9


def built(layer_key):
    """FIB's build of the committed JSON: a module of its own, with nothing of this repository in
    reach.
    """
    text = paths.definition_file(definition_name(layer_key)).read_text()
    definition = Definition.model_validate_json(text)
    return BuilderRegistry.get_instance().build_reference(definition)


def test_fib_judges_it_as_low_bit():
    for definition in PUBLIC:
        assert resolve_evaluator(definition) is LowBitEvaluator, definition.name


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
    folder = paths.ROOT / "definitions"
    suffixes = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert suffixes == {".json", ".toml", ".csv"}
