"""The FP8 layer behind a router: interface, reference and workloads, beside those with the router
inside.
"""

import pytest
import torch
from every_solution import relative_error
from layer_inputs import arguments, halves_swapped, reference
from moebench.operators import catalogue, workloads
from moebench.operators.fp8 import routed
from moebench.operators.fp8.layer import append_shared_experts

each_small = pytest.mark.parametrize("layer_key", catalogue.ROUTED.small())


# ---- the definition ----


def test_every_layer_with_the_router_inside_has_this_form():
    inside = routed.router_inside()
    assert set(catalogue.routed()) >= inside.keys()
    without_this_form = set(catalogue.fp8_moe()) - set(inside.values())
    assert without_this_form == routed.NOT_ROUTED
    assert catalogue.layer_key_named("full-routed") == "deepseek-v3-ep8-routed"


# ---- the reference ----


def routing_of(inside, inputs):
    """Return what the reference's router makes of a layer's inputs."""
    router_inputs = [inputs["routing_logits"]]
    if "routing_bias" in inputs:
        router_inputs += [inputs["routing_bias"], 2.5]
    ids, weights = reference(inside).route(*router_inputs)
    return {"topk_ids": ids.int(), "topk_weights": weights}


@pytest.mark.parametrize(
    ("inside", "offset"),
    [("small", 64), ("small-renorm", 0), ("small-shared", 0), ("small-shared", 224)],
)
def test_it_is_the_layer_with_the_router_inside(inside, offset):
    """With top-k in place of logits, gate ahead of up, and scales row by row."""
    inputs = inputs_of(inside, 20, offset)
    expected = reference(inside).run(**inputs)
    assert expected.any()

    sizes = catalogue.layer_sizes()[inside]
    routing = routing_of(inside, inputs)
    append_shared_experts(routing, offset, sizes, "seed")
    for name in ("gemm1_weights", "gemm1_weights_scale"):
        inputs[name] = halves_swapped(inputs[name])
    x_scale = inputs["hidden_states_scale"]
    inputs["hidden_states_scale"] = x_scale.t().contiguous()
    inputs["local_expert_offset"] = offset
    inputs |= routing

    layer_key = f"{inside}-routed"
    names = catalogue.definition(layer_key).inputs
    operands = [inputs[name] for name in names]
    output = reference(layer_key).run(*operands)
    assert torch.equal(output, expected)


def inputs_of(layer_key, num_tokens, offset):
    """Return inputs by name; half of the ids are local."""
    inputs = arguments(layer_key, num_tokens, "cpu", offset=offset)
    del inputs["output"]
    return inputs


def test_an_id_outside_costs_nothing():
    inputs = inputs_of("small-routed", 16, offset=32)
    ids = inputs["topk_ids"]
    is_local = (ids >= 32) & (ids < 64)
    assert is_local.any()
    assert (~is_local).any(0).all()
    expected = routed.run(**inputs)

    int32 = torch.iinfo(torch.int32)
    no_experts = torch.tensor([-1, int32.min, int32.max, 64, 31, 256, 96, 0]).int()
    inputs["topk_ids"] = ids.where(is_local, no_experts)
    inputs["topk_weights"][~is_local] = torch.nan
    assert torch.equal(routed.run(**inputs), expected)


def test_an_expert_that_comes_twice_counts_twice():
    inputs = inputs_of("small-routed", 16, offset=32)
    inputs["topk_ids"][:, :2] = 40
    twice = routed.run(**inputs)

    weights = inputs["topk_weights"]
    weights[:, 1] += weights[:, 0]
    weights[:, 0] = 0
    assert relative_error(twice, routed.run(**inputs)) < 2**-7


# ---- workloads ----


def tokens_of(case):
    return case.name, case.seq_len, case.offset


@pytest.mark.parametrize("layer_key", routed.router_inside())
def test_workloads_are_those_with_the_router_inside(layer_key):
    inside = routed.router_inside()[layer_key]
    cases = catalogue.ROUTED.cases(layer_key)
    cases_inside = workloads.cases_by_uuid(inside)
    chosen = [case for case in cases if case.ids == "chosen"]
    tokens = [tokens_of(case) for case in chosen]
    tokens_inside = [tokens_of(case) for case in cases_inside.values()]
    assert tokens == tokens_inside

    uuids = {case.uuid for case in cases}
    assert len(uuids) == len(cases)
    assert uuids.isdisjoint(cases_inside)

    counts = workloads.recorded_counts(layer_key)
    counts_inside = workloads.recorded_counts(inside)
    for case in chosen:
        assert counts[case.uuid] == counts_inside[case.like.uuid]


@each_small
def test_routing_is_the_references(layer_key):
    inside = routed.router_inside()[layer_key]
    sizes = catalogue.layer_sizes()[inside]
    for case in catalogue.ROUTED.cases(layer_key):
        if case.ids != "chosen":
            continue
        stored = routed.form_inside(inside).tensors(case.like)
        expected = routing_of(inside, stored)
        append_shared_experts(expected, case.offset, sizes, case.uuid)
        assert_same_routing(catalogue.ROUTED.tensors(case), expected)


def assert_same_routing(stored, expected):
    """Check stored experts and weights, in whatever order of a token's slots."""
    ids, weights = by_expert(stored)
    expected_ids, expected_weights = by_expert(expected)
    torch.testing.assert_close(ids, expected_ids, rtol=0, atol=0)
    torch.testing.assert_close(weights, expected_weights)


def by_expert(routing):
    """Return ids and weights, each token's sorted by id."""
    ids, order = routing["topk_ids"].sort(1)
    return ids, routing["topk_weights"].gather(1, order)
