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
from moebench.operators import catalogue, workloads
from moebench.operators.catalogue import definition_name

from definitions import moe_fp8_block_scale as moe
from definitions import moe_fp8_block_scale_renorm as renorm

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


@pytest.mark.parametrize("geometry", [*catalogue.FP8_MOE, *catalogue.ROUTED])
def test_a_definitions_name_axes_and_inputs_are_the_public_ones(geometry):
    """A solution of the public data set must fit: FIB finds it by name and passes inputs by
    position.
    """
    definition = catalogue.definition(geometry)
    kind = definition.name.removeprefix("moe_fp8_block_scale_").partition("_")[0]
    named = {
        key: int(number) for key, number in re.findall(r"_(topk|ng|kg|e|h|i)(\d+)", definition.name)
    }
    assert {axis: spec.value for axis, spec in definition.axes.items() if spec.type == "const"} == {
        "num_local_experts": named["e"],
        "hidden_size": named["h"],
        "intermediate_size": named["i"],
        "gemm1_out_size": 2 * named["i"],
        "num_hidden_blocks": named["h"] // 128,
        "num_intermediate_blocks": named["i"] // 128,
        "num_gemm1_out_blocks": 2 * named["i"] // 128,
    } | {
        "ds": {"num_experts": catalogue.GEOMETRIES[geometry]["num_experts"]},
        "renorm": {},
        "routed": {"top_k": named["topk"]},
    }[kind]
    names, dtype = INPUTS[kind]
    assert list(definition.inputs) == names and list(definition.outputs) == ["output"]
    assert definition.inputs[names[0]].dtype == dtype
    if kind != "routed":
        assert f"TOP_K = {named['topk']}\n" in definition.reference
    if kind == "ds":
        assert f"NUM_GROUPS = {named['ng']}\nKEPT_GROUPS = {named['kg']}\n" in definition.reference


def inputs(seq_len, offset=64, geometry="small"):
    family = renorm if geometry in renorm.GEOMETRIES else moe
    definition = family.definition(geometry)
    specs = {name: {"type": "random"} for name in definition.inputs}
    if family is moe:
        scalars = {"local_expert_offset": offset, "routed_scaling_factor": 2.5}
        specs |= {name: {"type": "scalar", "value": value} for name, value in scalars.items()}
    torch.manual_seed(seq_len)
    workload = Workload(uuid="test", axes={"seq_len": seq_len}, inputs=specs)
    return gen_inputs(definition, workload, "cpu")


def chosen_by_hand(geometry, logits, bias, factor):
    """[(expert, weight)] of one token, straight from the description, in Python's floats."""
    of = (renorm if bias is None else moe).GEOMETRIES[geometry]
    if bias is None:
        logits = logits.double().tolist()
        best = sorted(range(len(logits)), key=lambda e: logits[e])[-of["top_k"] :]
        total = sum(math.exp(logits[e]) for e in best)
        return [(e, math.exp(logits[e]) / total) for e in best]
    s = torch.sigmoid(logits)
    biased = (s + bias.float()).tolist()
    size = of["num_experts"] // of["num_groups"]
    members = [range(g * size, g * size + size) for g in range(of["num_groups"])]
    order = sorted(
        range(of["num_groups"]), key=lambda g: sum(sorted(biased[e] for e in members[g])[-2:])
    )
    chosen = sorted(
        (e for g in order[-of["kept_groups"] :] for e in members[g]), key=lambda e: biased[e]
    )
    best = chosen[-of["top_k"] :]
    total = sum(s[e].item() for e in best) + 1e-20
    return [(e, s[e].item() / total * factor) for e in best]


def one_row_at_a_time(geometry, args):
    """The operator again, straight from its description, in fp64 and without any sharing."""
    logits, *rest = args
    bias = None if geometry in renorm.GEOMETRIES else rest.pop(0)
    x8, x_scale, w13, w13_scale, w2, w2_scale, *scalars = rest
    offset, factor = scalars or (0, 1)
    num_tokens, hidden = x8.shape
    inter = w2.shape[2]
    output = torch.zeros(num_tokens, hidden, dtype=torch.float64)
    for token in range(num_tokens):
        x = x8[token].double() * x_scale[:, token].double().repeat_interleave(128)
        for e, weight in chosen_by_hand(geometry, logits[token], bias, factor):
            if not 0 <= e - offset < w13.shape[0]:
                continue
            scale = torch.kron(w13_scale[e - offset].double(), torch.ones(128, 128).double())
            up, gate = (w13[e - offset].double() * scale @ x).split(inter)
            scale = torch.kron(w2_scale[e - offset].double(), torch.ones(128, 128).double())
            h = up * gate * torch.sigmoid(gate)
            output[token] += weight * (w2[e - offset].double() * scale @ h)
    return output


@pytest.mark.parametrize(
    ("geometry", "seq_len", "offset"),
    [
        ("small", 1, 40),
        ("small", 6, 40),
        ("small-one-group", 1, 20),
        ("small-one-group", 6, 20),
        ("small-renorm", 6, 0),
    ],
)
def test_reference_computes_what_the_design_describes(geometry, seq_len, offset):
    args = inputs(seq_len, offset, geometry)
    wanted = one_row_at_a_time(geometry, args)
    assert wanted.abs().max() > 0
    error = (built(geometry)(*args).double() - wanted).norm() / wanted.norm()
    assert error < 4e-3  # bf16 rounds to 2^-9


def built(geometry):
    """FIB's build of the committed JSON: a module of its own, with nothing of this repository in
    reach.
    """
    text = paths.definition_file(definition_name(geometry)).read_text()
    return BuilderRegistry.get_instance().build_reference(Definition.model_validate_json(text))


def test_fib_judges_it_as_low_bit():
    for geometry in (*catalogue.FP8_MOE, *catalogue.ROUTED):
        assert resolve_evaluator(catalogue.definition(geometry)) is LowBitEvaluator, geometry


def test_the_committed_json_is_what_the_command_writes(tmp_path, monkeypatch):
    """Otherwise FIB judges by a reference that nobody can read."""
    committed = {
        path.name: path.read_text() for path in (paths.ROOT / "definitions").glob("*/*.json")
    }
    monkeypatch.setattr(paths, "definition_file", lambda name: tmp_path / f"{name}.json")
    monkeypatch.setattr(workloads, "make", lambda geometry: (0, 0))
    assert cli.main(["data", "--write"]) == 0
    assert {path.name: path.read_text() for path in tmp_path.glob("*.json")} == committed
