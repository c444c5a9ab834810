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
    assert set(catalogue.routed()).issuperset(inside)
    assert set(catalogue.fp8_moe()) - set(inside.values()) == routed.NOT_ROUTED
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
    inputs = arguments(inside, 20, "cpu", offset=offset)
    del inputs["output"]
    expected = reference(inside).run(**inputs)
    assert expected.any()

    routing = routing_of(inside, inputs)
    append_shared_experts(routing, offset, catalogue.layer_sizes()[inside], "seed")
    for name in ("gemm1_weights", "gemm1_weights_scale"):
        inputs[name] = halves_swapped(inputs[name])
    inputs["hidden_states_scale"] = inputs["hidden_states_scale"].t().contiguous()

    inputs |= routing | {"local_expert_offset": offset}
    names = catalogue.definition(f"{inside}-routed").inputs
    output = reference(f"{inside}-routed").run(**{name: inputs[name] for name in names})
    assert torch.equal(output, expected)


def inputs_of(offset):
    """Return inputs of the small layer, half of whose ids are local."""
    inputs = arguments("small-routed", 16, "cpu", offset=offset)
    del inputs["output"]
    return inputs


def test_an_id_outside_costs_nothing():
    inputs = inputs_of(32)
    ids = inputs["topk_ids"]
    is_local = (ids >= 32) & (ids < 64)
    assert is_local.any()
    assert (~is_local).any(0).all()
    expected = routed.run(**inputs)

    no_experts = torch.tensor([-1, -(2**31), 2**31 - 1, 64, 31, 256, 96, 0]).int()
    inputs["topk_ids"] = torch.where(is_local, ids, no_experts)
    inputs["topk_weights"][~is_local] = torch.nan
    assert torch.equal(routed.run(**inputs), expected)


def test_an_expert_that_comes_twice_counts_twice():
    inputs = inputs_of(32)
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
    assert list(map(tokens_of, chosen)) == list(map(tokens_of, cases_inside.values()))

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
    for routing in (stored, expected):
        routing["topk_ids"], order = routing["topk_ids"].sort(1)
        routing["topk_weights"] = routing["topk_weights"].gather(1, order)
    torch.testing.assert_close(stored["topk_ids"], expected["topk_ids"], rtol=0, atol=0)
    torch.testing.assert_close(stored["topk_weights"], expected["topk_weights"])


def tensors_of(layer_key, name):
    """Return the tensors of the case with this name."""
    (case,) = [case for case in catalogue.ROUTED.cases(layer_key) if case.name == name]
    return catalogue.ROUTED.tensors(case)


@each_small
def test_a_padded_batch_ends_without_experts(layer_key):
    padded = tensors_of(layer_key, "padded-batch")
    assert (padded["topk_ids"][-1] == -1).all()
    assert padded["topk_weights"][-1].isnan().all()


@each_small
def test_slots_have_every_number_that_is_no_expert(layer_key):
    ids = tensors_of(layer_key, "slots-without-expert")["topk_ids"]
    num_experts = catalogue.layer_sizes()[layer_key]["num_experts"]
    assert set(ids.flatten().tolist()).issuperset([*routed.NO_EXPERT, num_experts])


@each_small
def test_an_expert_comes_twice(layer_key):
    ids = tensors_of(layer_key, "experts-twice")["topk_ids"]
    assert torch.equal(ids[::2, 0], ids[::2, -1])


@each_small
def test_harsh_scales_lie_by_tokens(layer_key):
    """As in the layer with the router inside, whose first token's are zeros."""
    scales = tensors_of(layer_key, "harsh-scales")["hidden_states_scale"]
    assert not scales[0].any()
    assert scales[1].any()
    assert scales.min() < -16
