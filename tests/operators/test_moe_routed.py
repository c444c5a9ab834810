"""The FP8 layer behind a router: interface, reference and workloads, beside those with the router
inside.
"""

from dataclasses import dataclass
from pathlib import Path

import committed_workloads
import pytest
import torch
from committed_workloads import make_below
from flashinfer_bench import Definition, Workload
from flashinfer_bench.bench.utils import gen_inputs, load_safetensors
from flashinfer_bench.compile import BuilderRegistry
from layer_inputs import halves_swapped
from moebench.core import paths
from moebench.operators import catalogue, workloads
from moebench.operators.fp8 import routed
from moebench.operators.fp8 import sigmoid_bias as ds_routing
from moebench.operators.fp8.layer import append_shared_experts

SMALL = catalogue.ROUTED.small()


# ---- the definition ----


def test_every_layer_with_the_router_inside_has_this_form():
    full = set(catalogue.full())
    router_inside = routed.router_inside()
    inside = set()
    for key in full & set(catalogue.routed()):
        if key in router_inside:
            inside.add(router_inside[key])
    assert inside == full & set(catalogue.fp8_moe())
    assert catalogue.layer_key_named("full-routed") == "deepseek-v3-ep8-routed"


# ---- the reference ----


def built(layer_key):
    """FIB's build of the committed JSON: a module of its own, with nothing of this repository in
    reach.
    """
    file = paths.definition_file(catalogue.definition_name(layer_key))
    definition = Definition.model_validate_json(file.read_text())
    return BuilderRegistry.get_instance().build_reference(definition)


def drawn(layer_key, seq_len, offset):
    """FIB's random inputs by name; experts are chosen at random, half of them local, and none
    twice.
    """
    definition = catalogue.definition(layer_key)
    specs = {name: {"type": "random"} for name in definition.inputs}
    specs["local_expert_offset"] = {"type": "scalar", "value": offset}
    torch.manual_seed(seq_len)
    workload = Workload(uuid="test", axes={"seq_len": seq_len}, inputs=specs)
    values = gen_inputs(definition, workload, "cpu")
    arguments = dict(zip(definition.inputs, values, strict=True))

    sizes = catalogue.layer_sizes()[layer_key]
    num_local = sizes["num_local_experts"]
    top_k = sizes["top_k"]
    order = torch.rand(seq_len, 2 * num_local).argsort(1)
    ids = order[:, :top_k] + offset - num_local // 2
    arguments["topk_ids"] = ids.to(torch.int32)
    arguments["topk_weights"] = torch.rand(seq_len, top_k)
    return arguments


def for_router_inside(arguments):
    """Return what both forms take, as the one with the router inside has it."""
    values = {name: arguments[name] for name in ("gemm2_weights", "gemm2_weights_scale")}
    values["hidden_states"] = arguments["hidden_states"]
    values["hidden_states_scale"] = arguments["hidden_states_scale"].t().contiguous()
    for name in ("gemm1_weights", "gemm1_weights_scale"):
        values[name] = halves_swapped(arguments[name])
    return values


def with_top_k(arguments, ids, weights):
    """Return the arguments with this routing, in their order."""
    return arguments | {"topk_ids": ids.to(torch.int32), "topk_weights": weights}


def test_it_is_the_layer_with_sigmoid_routing_inside():
    arguments = drawn("small-routed", 7, 64)
    logits = torch.randn(7, 256)
    bias = torch.zeros(256).bfloat16()
    ids, weights = ds_routing.route(logits, bias, 2.5)
    wanted = ds_routing.run(
        logits,
        bias,
        **for_router_inside(arguments),
        local_expert_offset=64,
        routed_scaling_factor=2.5,
    )
    output = built("small-routed")(*with_top_k(arguments, ids, weights).values())
    assert wanted.any()
    assert torch.equal(output, wanted)


def test_it_is_the_layer_with_softmax_routing_inside():
    arguments = drawn("small-renorm-routed", 7, 0)
    scope = {}
    exec(catalogue.RENORM.reference_source("small-renorm"), scope)
    logits = torch.randn(7, 40).bfloat16()
    ids, weights = scope["route"](logits)
    wanted = scope["run"](logits, **for_router_inside(arguments))

    output = built("small-renorm-routed")(*with_top_k(arguments, ids, weights).values())
    assert wanted.any()
    assert torch.equal(output, wanted)


def test_an_id_outside_costs_nothing():
    arguments = drawn("small-routed", 5, 32)
    ids = arguments["topk_ids"]
    weights = arguments["topk_weights"]
    is_local = (ids >= 32) & (ids < 64)
    assert is_local.any()
    assert (~is_local).any(0).all()

    no_experts = torch.tensor([-1, -(2**31), 2**31 - 1, 64, 31, 256, 96, 0])
    other_ids = torch.where(is_local, ids, no_experts)
    other_weights = torch.where(is_local, weights, torch.nan)
    changed = with_top_k(arguments, other_ids, other_weights)
    assert torch.equal(routed.run(**changed), routed.run(**arguments))


def test_an_expert_that_comes_twice_counts_twice():
    arguments = drawn("small-routed", 5, 32)
    arguments["topk_ids"][:, :2] = 40
    twice = routed.run(**arguments).float()

    weights = arguments["topk_weights"].clone()
    weights[:, 1] += weights[:, 0]
    weights[:, 0] = 0
    once = routed.run(**with_top_k(arguments, arguments["topk_ids"], weights)).float()
    step = 2**-7
    largest = float(once.abs().max())
    assert torch.allclose(twice, once, rtol=step, atol=step * largest)


# ---- workloads ----


@dataclass(frozen=True)
class DataSet:
    """A small definition, and the data set at root with its tensors."""

    layer_key: str
    root: Path

    def stored(self, case):
        """Return a case's tensors."""
        definition = catalogue.definition(self.layer_key)
        for workload in workloads.recorded(self.layer_key):
            if workload.uuid == case.uuid:
                return load_safetensors(definition, workload, self.root)
        raise KeyError(case.name)


@pytest.fixture(scope="module", params=[*SMALL])
def data_set(request, tmp_path_factory):
    root = make_below(tmp_path_factory.mktemp("data_set"), request.param)
    return DataSet(request.param, root)


def tokens_of(case):
    return case.name, case.seq_len, case.offset


@pytest.mark.parametrize("layer_key", routed.router_inside())
def test_workloads_are_those_with_the_router_inside(layer_key):
    inside = routed.router_inside()[layer_key]
    cases = catalogue.ROUTED.cases(layer_key)
    likes = workloads.cases_by_uuid(inside)
    chosen = [tokens_of(case) for case in cases if case.ids == "chosen"]
    assert chosen == [tokens_of(like) for like in likes.values()]

    uuids = {case.uuid for case in cases}
    assert len(uuids) == len(cases)
    assert uuids.isdisjoint(likes)

    for case in cases[:3]:
        least = committed_workloads.bound(layer_key, case.uuid)
        like = committed_workloads.bound(inside, case.like.uuid)
        assert (least.rows, least.active, least.flops) == (like.rows, like.active, like.flops)


@pytest.mark.parametrize("layer_key", SMALL)
def test_routing_is_the_references(layer_key):
    inside = routed.router_inside()[layer_key]
    form = routed.form_inside(inside)
    scope = {}
    exec(catalogue.operator(inside).reference_source(inside), scope)
    for case in catalogue.ROUTED.cases(layer_key):
        if case.ids == "chosen":
            stored = form.tensors(case.like)
            router_inputs = [stored["routing_logits"]]
            if "routing_bias" in stored:
                router_inputs += [stored["routing_bias"], 2.5]
            ids, weights = scope["route"](*router_inputs)
            expected = {"topk_ids": ids.to(torch.int32), "topk_weights": weights}
            sizes = routed.routers()[layer_key]
            append_shared_experts(expected, case.offset, sizes, case.uuid)
            assert_same_routing(catalogue.ROUTED.tensors(case), expected)


def assert_same_routing(stored, expected):
    """Check stored experts and weights, in whatever order of a token's slots."""
    assert stored["topk_ids"].dtype == torch.int32
    assert stored["topk_weights"].dtype == torch.float32
    wanted_ids, wanted_order = expected["topk_ids"].sort(1)
    stored_ids, stored_order = stored["topk_ids"].sort(1)
    assert torch.equal(stored_ids, wanted_ids)

    wanted_weights = expected["topk_weights"].gather(1, wanted_order)
    stored_weights = stored["topk_weights"].gather(1, stored_order)
    assert torch.allclose(stored_weights, wanted_weights, rtol=1e-5)


def test_hard_cases_are_as_hard_as_they_say(data_set):
    by_name = {case.name: case for case in catalogue.ROUTED.cases(data_set.layer_key)}
    sizes = catalogue.layer_sizes()[data_set.layer_key]

    padded = data_set.stored(by_name["padded-batch"])
    assert (padded["topk_ids"][-1] == -1).all()
    assert padded["topk_weights"][-1].isnan().all()

    spoilt = data_set.stored(by_name["slots-without-expert"])
    no_experts = {*routed.NO_EXPERT, sizes["num_experts"]}
    assert no_experts <= set(spoilt["topk_ids"].flatten().tolist())

    case = by_name["experts-twice"]
    ids = data_set.stored(case)["topk_ids"]
    local = ids[::2, 0] - case.offset
    assert torch.equal(ids[::2, 0], ids[::2, -1])
    assert ((local >= 0) & (local < sizes["num_local_experts"])).any()

    harsh = data_set.stored(by_name["harsh-scales"])["hidden_states_scale"]
    assert not harsh[0].any()
    assert harsh[1].any()
    assert harsh.min() < -16
