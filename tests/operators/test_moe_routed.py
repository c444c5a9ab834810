"""The FP8 layer behind a router: interface, reference and workloads, beside those with the router
inside.
"""

import committed_workloads
import pytest
import torch
from committed_workloads import make_below
from flashinfer_bench import Definition, Workload
from flashinfer_bench.bench.utils import gen_inputs, load_safetensors
from flashinfer_bench.compile import BuilderRegistry
from moebench.core import paths
from moebench.operators import catalogue, workloads
from moebench.operators.fp8 import routed
from moebench.operators.fp8 import sigmoid_bias as ds_routing

SMALL = catalogue.ROUTED.small()


# ---- the definition ----


def test_every_layer_with_the_router_inside_has_this_form():
    full = set(catalogue.full())
    inside = [routed.router_inside().get(key) for key in full & set(catalogue.routed())]
    assert {key for key in inside if key} == full & set(catalogue.fp8_moe())
    assert catalogue.layer_key_named("full-routed") == "deepseek-v3-ep8-routed"


# ---- the reference ----


def built(layer_key):
    """FIB's build of the committed JSON: a module of its own, with nothing of this repository in
    reach.
    """
    text = paths.definition_file(catalogue.definition_name(layer_key)).read_text()
    return BuilderRegistry.get_instance().build_reference(Definition.model_validate_json(text))


def drawn(layer_key, seq_len, offset):
    """FIB's random inputs by name; experts are chosen at random, half of them local, and none
    twice.
    """
    definition, of = catalogue.definition(layer_key), catalogue.layer_sizes()[layer_key]
    specs = {name: {"type": "random"} for name in definition.inputs}
    specs["local_expert_offset"] = {"type": "scalar", "value": offset}
    torch.manual_seed(seq_len)
    workload = Workload(uuid="test", axes={"seq_len": seq_len}, inputs=specs)
    found = dict(zip(definition.inputs, gen_inputs(definition, workload, "cpu"), strict=True))
    local = of["num_local_experts"]
    order = torch.rand(seq_len, 2 * local).argsort(1)[:, : of["top_k"]]
    found["topk_ids"] = (order + offset - local // 2).to(torch.int32)
    found["topk_weights"] = torch.rand(seq_len, of["top_k"])
    return found


@pytest.mark.parametrize(
    ("layer_key", "inside", "kept"),
    [("small-routed", "small", (4, 8)), ("small-renorm-routed", "small-renorm", None)],
)
def test_it_is_the_layer_with_the_router_inside(layer_key, inside, kept):
    given, offset = drawn(layer_key, 7, 64 if kept else 0), 64 if kept else 0
    x = {
        "hidden_states": given["hidden_states"],
        "hidden_states_scale": given["hidden_states_scale"].t().contiguous(),
    }
    experts = {}
    for name in ("gemm1_weights", "gemm1_weights_scale"):
        gate, up = given[name].chunk(2, dim=1)
        experts[name] = torch.cat([up, gate], 1)
    experts |= {name: given[name] for name in ("gemm2_weights", "gemm2_weights_scale")}
    logits = torch.randn(7, catalogue.layer_sizes()[inside]["num_experts"])
    if kept:
        bias = torch.zeros(256).bfloat16()
        ids, weights = ds_routing.route(logits, bias, 2.5)
        wanted = ds_routing.run(
            logits, bias, **x, **experts, local_expert_offset=offset, routed_scaling_factor=2.5
        )
    else:
        scope = {}
        exec(catalogue.RENORM.reference_source(inside), scope)
        ids, weights = scope["route"](logits.bfloat16())
        wanted = scope["run"](logits.bfloat16(), **x, **experts)
    got = built(layer_key)(
        *(given | {"topk_ids": ids.to(torch.int32), "topk_weights": weights}).values()
    )
    assert wanted.any() and torch.equal(got, wanted)


def test_an_id_outside_costs_nothing():
    given = drawn("small-routed", 5, 32)
    ids, local = given["topk_ids"], (given["topk_ids"] >= 32) & (given["topk_ids"] < 64)
    none = torch.tensor([-1, -(2**31), 2**31 - 1, 64, 31, 256, 96, 0])
    changed = given | {
        "topk_ids": torch.where(local, ids, none).to(torch.int32),
        "topk_weights": torch.where(local, given["topk_weights"], torch.nan),
    }
    assert (~local).any(0).all() and local.any()
    assert torch.equal(routed.run(**changed), routed.run(**given))


def test_an_expert_that_comes_twice_counts_twice():
    given = drawn("small-routed", 5, 32)
    given["topk_ids"][:, 0] = given["topk_ids"][:, 1] = 40
    apart = given | {"topk_weights": given["topk_weights"].clone()}
    apart["topk_weights"][:, 1] += apart["topk_weights"][:, 0]
    apart["topk_weights"][:, 0] = 0
    twice, once = (routed.run(**one).float() for one in (given, apart))
    assert torch.allclose(twice, once, rtol=2**-7, atol=2**-7 * float(once.abs().max()))


# ---- workloads ----


@pytest.fixture(scope="module", params=[*SMALL])
def made(request, tmp_path_factory):
    """A small layer_key, and a data set with its tensors."""
    return request.param, make_below(tmp_path_factory.mktemp("data_set"), request.param)


@pytest.mark.parametrize("layer_key", routed.router_inside())
def test_workloads_are_those_with_the_router_inside(layer_key):
    inside = routed.router_inside()[layer_key]
    ours = [
        (case.name, case.seq_len, case.offset)
        for case in catalogue.ROUTED.cases(layer_key)
        if case.ids == "chosen"
    ]
    theirs = workloads.cases_by_uuid(inside).values()
    assert ours == [(case.name, case.seq_len, case.offset) for case in theirs]
    uuids = {case.uuid for case in catalogue.ROUTED.cases(layer_key)}
    assert len(uuids) == len(catalogue.ROUTED.cases(layer_key)) and not uuids & {
        case.uuid for case in theirs
    }
    for case in catalogue.ROUTED.cases(layer_key)[:3]:
        pairs = (layer_key, case.uuid), (inside, case.like.uuid)
        least, other = (committed_workloads.bound(*pair) for pair in pairs)
        assert (least.rows, least.active, least.flops) == (other.rows, other.active, other.flops)


@pytest.mark.parametrize("layer_key", SMALL)
def test_routing_is_the_references(layer_key):
    inside = routed.router_inside()[layer_key]
    scope = {}
    exec(catalogue.operator(inside).reference_source(inside), scope)
    for case in catalogue.ROUTED.cases(layer_key):
        if case.ids != "chosen":
            continue
        stored = routed.form_inside(inside).tensors(case.like)
        bias = () if "routing_bias" not in stored else (stored["routing_bias"], 2.5)
        ids, weights = scope["route"](stored["routing_logits"], *bias)
        found = catalogue.ROUTED.tensors(case)
        assert (found["topk_ids"].dtype, found["topk_weights"].dtype) == (
            torch.int32,
            torch.float32,
        )
        wanted, order = ids.sort(1)
        got, got_order = found["topk_ids"].sort(1)
        assert torch.equal(got, wanted.to(torch.int32)), case.name
        assert torch.allclose(
            found["topk_weights"].gather(1, got_order), weights.gather(1, order), rtol=1e-5
        )


def test_hard_cases_are_as_hard_as_they_say(made):
    layer_key, root = made
    definition, by_name = (
        catalogue.definition(layer_key),
        {case.name: case for case in catalogue.ROUTED.cases(layer_key)},
    )
    recorded = {w.uuid: w for w in workloads.recorded(layer_key)}

    def stored(name):
        return load_safetensors(definition, recorded[by_name[name].uuid], root)

    padded = stored("padded-batch")
    assert (padded["topk_ids"][-1] == -1).all() and padded["topk_weights"][-1].isnan().all()
    spoilt = stored("slots-without-expert")["topk_ids"].flatten().tolist()
    assert {*routed.NO_EXPERT, catalogue.layer_sizes()[layer_key]["num_experts"]} <= set(spoilt)
    ids = stored("experts-twice")["topk_ids"]
    first, end = (
        by_name["experts-twice"].offset,
        by_name["experts-twice"].offset + catalogue.layer_sizes()[layer_key]["num_local_experts"],
    )
    twice = ids[::2, 0]
    assert torch.equal(twice, ids[::2, -1]) and ((twice >= first) & (twice < end)).any()
    harsh = stored("harsh-scales")["hidden_states_scale"]
    assert not harsh[0].any() and harsh[1].any() and harsh.min() < -16
