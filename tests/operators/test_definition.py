"""The reference says what the operator is, and the JSON says what the reference says."""

import math
import re
from heapq import nlargest
from itertools import chain

import pytest
import torch
from every_solution import relative_error
from flashinfer_bench.bench.evaluators import resolve_evaluator
from flashinfer_bench.bench.evaluators.lowbit import LowBitEvaluator
from flashinfer_bench.compile import BuilderRegistry
from layer_inputs import WEIGHTS_AND_SCALES, arguments
from moebench import cli
from moebench.core import paths
from moebench.models import add_model
from moebench.operators import catalogue

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


PUBLIC_KEYS = [*catalogue.fp8_moe(), *catalogue.routed()]
PUBLIC = [catalogue.definition(key) for key in PUBLIC_KEYS]
NAMES = [definition.name for definition in PUBLIC]
each_public = pytest.mark.parametrize("definition", PUBLIC, ids=NAMES)


@each_public
def test_a_definitions_axes_are_the_public_ones(definition):
    """A solution of the public data set must fit: FIB finds it by name."""
    axes = {}
    for axis, spec in definition.axes.items():
        if spec.type == "const":
            axes[axis] = spec.value
    numbers = numbers_of(definition)
    hidden = numbers["h"]
    width = numbers["i"]
    expected = {
        "num_local_experts": numbers["e"],
        "hidden_size": hidden,
        "intermediate_size": width,
        "gemm1_out_size": 2 * width,
        "num_hidden_blocks": hidden // 128,
        "num_intermediate_blocks": width // 128,
        "num_gemm1_out_blocks": 2 * width // 128,
    }

    kind = kind_of(definition)
    if kind == "ds":
        layer_key = catalogue.by_name()[definition.name]
        expected["num_experts"] = catalogue.layer_sizes()[layer_key]["num_experts"]
    if kind == "routed":
        expected["top_k"] = numbers["topk"]
    _, is_shared, num_shared = definition.name.rpartition("_shared")
    if is_shared:
        expected["num_shared_experts"] = int(num_shared)
    assert axes == expected


@each_public
def test_a_definitions_inputs_are_the_public_ones(definition):
    """FIB passes them by position."""
    kind = kind_of(definition)
    names = [*BEFORE[kind], *WEIGHTS_AND_SCALES, *BEHIND[kind]]
    assert list(definition.inputs) == names
    assert list(definition.outputs) == ["output"]
    assert definition.inputs[names[0]].dtype == DTYPE[kind]


def chosen_by_softmax(sizes, logits):
    """Return expert -> weight of one token, straight from the description, in Python's floats."""
    powers = [math.exp(logit) for logit in logits.tolist()]
    best = nlargest(sizes["top_k"], range(len(powers)), key=powers.__getitem__)
    total = sum(powers[expert] for expert in best)
    return {expert: powers[expert] / total for expert in best}


def chosen_by_sigmoid(sizes, logits, bias, factor):
    """Return expert -> weight of one token, straight from the description, in Python's floats."""
    scores = torch.sigmoid(logits)
    biased = (scores + bias.float()).tolist()
    scores = scores.tolist()

    def best_two(group):
        return sum(nlargest(2, (biased[expert] for expert in group)))

    num_experts = sizes["num_experts"]
    group_size = num_experts // sizes["num_groups"]
    groups = []
    for first in range(0, num_experts, group_size):
        groups.append(range(first, first + group_size))
    open_groups = nlargest(sizes["kept_groups"], groups, key=best_two)

    best = nlargest(sizes["top_k"], chain(*open_groups), key=biased.__getitem__)
    total = sum(scores[expert] for expert in best) + 1e-20
    return {expert: scores[expert] / total * factor for expert in best}


def dequantised(values, scales):
    """Return fp64 of a matrix with a scale per block of 128 x 128."""
    block = torch.ones(128, 128, dtype=torch.float64)
    return values.double() * torch.kron(scales.double(), block)


def chosen_of(layer_key, arguments, token):
    """Return expert -> weight of one token."""
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
        for expert, weight in chosen_of(layer_key, arguments, token).items():
            local = expert - offset
            if 0 <= local < len(arguments["gemm1_weights"]):
                output[token] += weight * row_of(x, arguments, local)
    return output


@pytest.mark.parametrize(
    ("layer_key", "offset"),
    [("small", 40), ("small-one-group", 20), ("small-renorm", 0)],
)
def test_reference_computes_what_the_design_describes(layer_key, offset):
    """As FIB builds it: a module of its own, with nothing of this repository in reach."""
    inputs = arguments(layer_key, 6, "cpu", offset=offset)
    del inputs["output"]
    expected = one_row_at_a_time(layer_key, inputs)
    assert expected.any()

    definition = catalogue.definition(layer_key)
    run = BuilderRegistry.get_instance().build_reference(definition)
    output = run(*inputs.values())
    assert relative_error(output, expected) < 4e-3  # bf16 rounds to 2^-9


def test_fib_judges_it_as_low_bit():
    for definition in PUBLIC:
        assert resolve_evaluator(definition) is LowBitEvaluator, definition.name


def test_the_committed_json_is_what_the_command_writes(tmp_path, monkeypatch):
    """Otherwise FIB judges by a reference that nobody can read."""
    committed = texts_below(paths.ROOT / "definitions")
    monkeypatch.setattr(
        paths, "definition_file", lambda name: tmp_path / f"{name}.json"
    )
    monkeypatch.setattr(add_model.workload_files, "make", lambda layer_key: (0, 0))
    assert cli.main(["data", "--write"]) == 0
    assert texts_below(tmp_path) == committed


def texts_below(folder):
    """Return name -> text of each JSON file."""
    return {file.name: file.read_text() for file in folder.rglob("*.json")}


def test_definitions_has_data_alone():
    """FIB reads every JSON below it; nothing imports it."""
    folder = paths.ROOT / "definitions"
    suffixes = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert suffixes == {".json", ".toml", ".csv"}
