"""Adapters of packages without their engines: which layers they refuse, and which ids are a rank's.

test_vllm_layers_on_cpu.py, test_vllm_on_cpu.py and test_sglang_on_cpu.py run the engines' own
classes. Of a vLLM that is not installed there, tests/samples/engine_signatures.json has the methods
that an adapter replaces (tests/support/engines/engine_signatures.py).
"""

import enum
import importlib
import inspect
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from layer_inputs import reference
from moebench.operators import catalogue
from moebench.operators.fp8 import swiglu
from moebench.packing import python_package
from signatures import recorded
from stand_ins import stand_in

from solutions.common.triton.rows.quantise_tokens import quantise_tokens_ref

LAYER_KEY = "small-routed"
SIZES = catalogue.layer_sizes()[LAYER_KEY]
LOCAL = SIZES["num_local_experts"]
TOP_K = SIZES["top_k"]
HIDDEN = SIZES["hidden_size"]
INTER = SIZES["intermediate_size"]
RANKS = 4
ACTIVATIONS = {
    "silu": {"activation": "silu", "swiglu_limit": 0},
    "clamp": {"activation": "silu", "swiglu_limit": 10.0},
    "swigluoai": {"activation": "swigluoai", "swiglu_limit": 7.0},
    "swiglustep": {"activation": "swiglustep", "swiglu_limit": 7.0},
}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The name of a package in reach."""
    parent = tmp_path_factory.mktemp("engine")
    (folder,) = python_package.pack_packages(["triton_fused_v2"], parent, [LAYER_KEY])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(parent)
        yield folder.name


@pytest.fixture
def adapter(package, monkeypatch):
    """A function of an engine that returns its adapter's module, new in each test; the kernels are
    replaced by the reference, after the package's own check.
    """
    host = importlib.import_module(f"{package}.common.host.arguments")

    def run_bf16(x, *others):
        host.check_arguments(host.ROUTED_BF16, (x, *others))
        *inputs, output = others
        output.copy_(reference(LAYER_KEY).run(*quantise_tokens_ref(x), *inputs))

    monkeypatch.setattr(importlib.import_module(package), "run_bf16", run_bf16)

    def load(engine):
        folder = Path(importlib.import_module(package).__file__).parent
        for file in folder.glob("for_*.py"):
            name = f"{package}.{file.stem}"
            monkeypatch.setitem(sys.modules, name, None)  # as it was, after the test
            del sys.modules[name]
        return importlib.import_module(f"{package}.for_{engine}")

    return load


@pytest.fixture(params=ACTIVATIONS)
def compiled_for(request, package, monkeypatch):
    """The package says that it is compiled for this activation."""
    problem = importlib.import_module(f"{package}.common.host.problem")
    for name, value in swiglu.constants(ACTIVATIONS[request.param]).items():
        monkeypatch.setattr(problem, name.upper(), value)
    return request.param


def check_activations(compiled_for, models, serve):
    """Check that the model that the package is compiled for is served, and the others refused."""
    for model, config in models.items():
        if model == compiled_for:
            serve(**config)
        else:
            with pytest.raises(ValueError):
                serve(**config)


def test_transformers_activation_is_the_packages(adapter, compiled_for):
    """A clamped model taken for one without the clamp."""
    gate = torch.linspace(-30, 30, 121)
    up = torch.linspace(30, -30, 121).roll(7)
    definition = {}
    exec(f"import torch\n{swiglu.source(ACTIVATIONS[compiled_for])}", definition)

    output = adapter("transformers").activation(gate, up)

    assert torch.allclose(output, definition["swiglu"](gate, up))


# ---- SGLang: test_sglang_on_cpu.py has its own classes ----


def check_for_sglang(adapter, weights=None, **config):
    """Check a layer as the fused function begins, with a MoeRunnerConfig of defaults but for
    `config`.
    """
    runner_config = SimpleNamespace(
        activation="silu",
        is_gated=True,
        apply_router_weight_on_input=False,
        no_combine=False,
    )
    vars(runner_config).update(config)
    quant_info = SimpleNamespace(
        use_fp8=True,
        is_fp4_experts=False,
        use_mxfp8=False,
        block_shape=[128, 128],
        w13_weight=torch.empty(LOCAL, 2 * INTER, HIDDEN),
        w2_weight=torch.empty(LOCAL, HIDDEN, INTER),
    )
    vars(quant_info).update(weights or {})
    topk_output = SimpleNamespace(topk_ids=torch.zeros(1, TOP_K))
    dispatched = SimpleNamespace(topk_output=topk_output)
    adapter("sglang").check(dispatched, quant_info, runner_config)


@pytest.mark.parametrize(
    "weights",
    [{"block_shape": None}, {"use_mxfp8": True}, {"is_fp4_experts": True}],
    ids=str,
)
def test_sglang_is_refused_other_weights(adapter, weights):
    """Bf16 experts read as FP8. They come with use_fp8, and no block_shape."""
    with pytest.raises(ValueError, match="^weights: got "):
        check_for_sglang(adapter, weights)


SGLANG_MODELS = {
    "silu": {},
    "clamp": {"swiglu_limit": 10.0},
    "swiglustep": {"gemm1_clamp_limit": 7.0},
    "swigluoai": {
        "gemm1_alpha": 1.702,
        "gemm1_clamp_limit": 7.0,
        "gate_up_interleaved": False,
    },
}


def test_sglang_gets_the_activation_of_its_model(adapter, compiled_for):
    """A package with a clamp that computes for a model without."""

    def serve(**config):
        check_for_sglang(adapter, **config)

    check_activations(compiled_for, SGLANG_MODELS, serve)


# ---- SGLang: scales of MXFP4 ----


@pytest.fixture
def e8m0(adapter, package):
    """The function of a package's adapter."""
    adapter("sglang")
    return importlib.import_module(f"{package}.for_sglang_mxfp4").e8m0


def test_powers_of_two_become_their_bytes(e8m0):
    """All of E8M0, the smallest of which float32 has only below its normal numbers."""
    codes = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(e8m0(codes.view(torch.float8_e8m0fnu).float()), codes)


@pytest.mark.parametrize("number", [0.0, -1.0, 1.5, 2.0**-128, float("inf")])
def test_other_scales_of_mxfp4_are_refused(e8m0, number):
    with pytest.raises(ValueError, match="^weight scales: got "):
        e8m0(torch.tensor([1.0, number]))


# ---- vLLM: the checks of a layer; test_vllm_layers_on_cpu.py has its own classes ----

RELEASES = recorded("engine_signatures.json")
MOE = "vllm.model_executor.layers.fused_moe"
EXPERTS = ("FusedMoEExperts", "FusedMoEExpertsModular")
Activation = enum.Enum("Activation", "SILU SWIGLUSTEP SWIGLUOAI_UNINTERLEAVE")


@pytest.fixture
def for_vllm(adapter, package, monkeypatch, tmp_path):
    """A function of a name that returns a module of vLLM's adapter, with empty names in place of
    vLLM's.
    """
    config = SimpleNamespace(
        model_config=SimpleNamespace(model=tmp_path),
        parallel_config=SimpleNamespace(use_ubatching=False),
    )
    names = {
        "vllm.config": {"get_current_vllm_config": lambda: config},
        "vllm.distributed": {
            "get_tp_group": None,
            "tensor_model_parallel_all_reduce": None,
        },
        f"{MOE}.activation": {"MoEActivation": Activation},
        f"{MOE}.modular_kernel": {"FusedMoEExpertsModular": object},
        f"{MOE}.topk_weight_and_reduce": {"TopKWeightAndReduceNoOP": object},
        f"{MOE}.prepare_finalize.no_dp_ep": {
            "MoEPrepareAndFinalizeNoDPEPModular": object
        },
    }
    for dotted, attributes in names.items():
        stand_in(monkeypatch, dotted, **attributes)
    adapter("vllm")
    return lambda name: importlib.import_module(f"{package}.for_vllm_{name}")


def layer_config(**changes):
    """Return what is read of a FusedMoEConfig, but for the changes."""
    values = {
        "num_experts": RANKS * LOCAL,
        "num_local_experts": LOCAL,
        "hidden_dim": HIDDEN,
        "experts_per_token": TOP_K,
        "intermediate_size": INTER,
        "intermediate_size_per_partition": INTER,
        "activation": Activation.SILU,
        "has_bias": False,
        "is_lora_enabled": False,
    }
    return SimpleNamespace(**values | changes)


FAULTS = {
    "swiglu_limit": {"swiglu_limit": 7.0},
    "swiglu_alpha": {"swiglu_alpha": 1.7},
    "has_bias": {"has_bias": True},
    "is_lora_enabled": {"is_lora_enabled": True},
    "sizes": {"intermediate_size": 2 * INTER, "num_local_experts": 2 * LOCAL},
    "intermediate_size": {"intermediate_size_per_partition": INTER // 4},
}


@pytest.mark.parametrize("name", FAULTS)
def test_vllm_is_refused_what_is_not_served(for_vllm, name):
    """A model whose clamp or bias is left out, or a slice of an expert that cuts a block."""
    check_layer = for_vllm("checks").check_layer
    check_layer(layer_config())
    with pytest.raises(ValueError, match=f"^{name}: got "):
        check_layer(layer_config(**FAULTS[name]))


def test_a_refused_layer_is_told_how_to_pack_its_own(for_vllm, tmp_path):
    """The file, the numbers of ranks, the solution and the definition, which can be typed."""
    (tmp_path / "config.json").touch()
    layer = layer_config(
        intermediate_size=4 * INTER, intermediate_size_per_partition=2 * INTER
    )
    with pytest.raises(ValueError) as refusal:
        for_vllm("checks").check_layer(layer)

    commands = (
        r"model (\S+) --ep (\d+) --tp (\d+) --add KEY .*pack (\S+) .*--definition (\S+)"
    )
    values = re.search(commands, str(refusal.value)).groups()
    file = f"{tmp_path}/config.json"
    assert values == (file, str(RANKS), "2", "triton_fused_v2", "KEY-routed")


VLLM_MODELS = {
    "silu": {},
    "clamp": {"swiglu_limit": 10.0},
    "swiglustep": {"activation": Activation.SWIGLUSTEP},
    "swigluoai": {
        "activation": Activation.SWIGLUOAI_UNINTERLEAVE,
        "swiglu_limit": 7.0,
        "swiglu_alpha": 1.702,
        "swiglu_beta": 1.0,
    },
}


def test_vllm_gets_the_activation_of_its_model(compiled_for, for_vllm):
    """A package with a clamp that computes for a model without."""
    checks = for_vllm("checks")

    def serve(**config):
        layer = layer_config(**config)
        checks.check_layer(layer)
        assert checks.ACTIVATION == layer.activation

    check_activations(compiled_for, VLLM_MODELS, serve)


@pytest.mark.parametrize(
    ("local_ids", "ids", "offset"),
    [([4, 5, 6, 7], [6, 5, 0, -1], 4), ([5, 4, 6, 7], [2, 0, -1, -1], 0)],
    ids=["in order", "exchanged"],
)
def test_vllms_ids_become_those_of_this_rank(for_vllm, local_ids, ids, offset):
    """Of eight experts the rank has four; where two are exchanged, ids are no longer in order."""
    expert_map = torch.full((8,), -1, dtype=torch.int32)
    expert_map[local_ids] = torch.arange(4, dtype=torch.int32)
    experts = for_vllm("experts").PackedExperts()
    experts.w1_scale = experts.w2_scale = None
    calls = []
    experts.layer = lambda *arguments: calls.append(arguments)
    arguments = dict.fromkeys(inspect.signature(experts.apply).parameters) | {
        "output": torch.empty(1, HIDDEN),
        "hidden_states": torch.empty(1, HIDDEN),
        "topk_weights": torch.ones(1, 4),
        "topk_ids": torch.tensor([[6, 5, 0, -1]]),
        "expert_map": expert_map,
    }

    experts.apply(**arguments)

    ((_, _, topk_ids, *_, first_expert, _),) = calls
    assert topk_ids.tolist() == [ids]
    assert first_expert == offset
    with pytest.raises(ValueError, match="^apply_router_weight_on_input: got True"):
        experts.apply(**arguments | {"apply_router_weight_on_input": True})


@pytest.mark.parametrize("release", RELEASES)
def test_methods_for_vllm_have_its_parameters(for_vllm, release):
    """Every method that replaces one of vLLM's takes what that one takes; none is left abstract."""
    methods = {}
    for name in EXPERTS:
        methods |= RELEASES[release][name]
    experts = for_vllm("experts").PackedExperts

    replaced = methods.keys() & vars(experts).keys()
    for name in replaced:
        function = getattr(experts, name)
        assert list(inspect.signature(function).parameters) == methods[name], name
    # which class of weights is supported, its subclasses say
    left = RELEASES[release]["abstract"]
    assert set(left) - replaced == {"_supports_quant_scheme"}


# ---- vLLM: the sum over ranks ----


def ranks_config(skip_final_all_reduce=False, **changes):
    """Return a FusedMoEConfig of two tensor-parallel ranks, but for the changes."""
    parallel = {"tp_size": 2, "ep_size": 1, "dp_size": 1, "pcp_size": 1}
    parallel |= {"is_sequence_parallel": False} | changes
    return SimpleNamespace(
        moe_parallel_config=SimpleNamespace(**parallel),
        skip_final_all_reduce=skip_final_all_reduce,
    )


CANNOT_SUM = {
    "one rank": {"tp_size": 1},
    "tokens of their own": {"dp_size": 2},
    "a part of the tokens": {"is_sequence_parallel": True},
    "a sum behind the layer": {"skip_final_all_reduce": True},
}


@pytest.fixture
def can_sum(for_vllm, monkeypatch):
    """The check of ranks in a package that can sum."""
    module = for_vllm("sum")
    monkeypatch.setattr(module, "has_sum", lambda: True)
    return module.check_can_sum


def test_ranks_with_the_same_tokens_can_sum(can_sum):
    can_sum(ranks_config())
    can_sum(ranks_config(tp_size=1, ep_size=2))


@pytest.mark.parametrize("name", CANNOT_SUM)
def test_ranks_that_cannot_sum_are_refused(can_sum, name):
    """Ranks that wait for each other without end, or a sum that is made twice."""
    with pytest.raises(ValueError, match="^experts_sum_over_ranks: got true"):
        can_sum(ranks_config(**CANNOT_SUM[name]))


def test_a_package_that_cannot_sum_is_refused(for_vllm):
    with pytest.raises(ValueError, match="triton_fused_v2 has no run_allreduce"):
        for_vllm("sum").check_can_sum(ranks_config())
