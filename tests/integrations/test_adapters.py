"""Adapters of packages without their engines: what they refuse; vLLM's is held against two
releases' signatures.

What it imports is built from tests/samples/engine_signatures.json, which
tests/support/engine_signatures.py reads from vLLM's sources, and called as vLLM calls it. So this
shows that names, arguments and fields exist, not that it runs; test_vllm_on_cpu.py and
test_sglang_on_cpu.py run the engines' own classes.
"""

import abc
import ast
import dataclasses
import enum
import importlib
import inspect
import json
import pickle
import re
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from layer_inputs import arguments, reference, wanted
from moebench.operators import catalogue, swiglu
from moebench.packing import python_package

from solutions.common.triton.quantise_tokens import quantise_tokens_ref

RECORDED = json.loads(
    (Path(__file__).parents[1] / "samples" / "engine_signatures.json").read_text()
)
MOE = "model_executor/layers/fused_moe"
GEOMETRY = "small-routed"
SIZES = catalogue.GEOMETRIES[GEOMETRY]
DEFINITION = catalogue.definition_name(GEOMETRY)
LOCAL, TOP_K, H, INTER = (
    SIZES[key] for key in ("num_local_experts", "top_k", "hidden_size", "intermediate_size")
)
RANK = 2  # of expert-parallel ranks, so ids 2 * LOCAL to 3 * LOCAL are local
LIMITS = {"silu": 0, "clamp": 10.0, "swigluoai": 7.0, "swiglustep": 7.0}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The name of a package in reach."""
    parent = tmp_path_factory.mktemp("engine")
    (folder,) = python_package.pack_packages(["triton_fused_v2"], parent, [GEOMETRY])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(parent)
        yield folder.name


@pytest.fixture
def ours(package, monkeypatch):
    """Engine -> its adapter's module; the kernels are replaced by the reference, after the
    package's own check.
    """
    host = importlib.import_module(f"{package}.common.host.arguments")

    def run_bf16(x, ids, weights, w13, s13, w2, s2, offset, output):
        host.check_arguments(host.ROUTED_BF16, (x, ids, weights, w13, s13, w2, s2, offset, output))
        output.copy_(
            reference(GEOMETRY).run(*quantise_tokens_ref(x), ids, weights, w13, s13, w2, s2, offset)
        )

    def module(engine):
        for name in (
            f"{package}.for_{engine}",
            f"{package}.for_{engine}_experts",
        ):  # they keep classes of one release
            monkeypatch.setitem(sys.modules, name, None)  # gone, or as it was, after the test
            del sys.modules[name]
        monkeypatch.setattr(importlib.import_module(package), "run_bf16", run_bf16)
        return importlib.import_module(f"{package}.for_{engine}")

    return module


@pytest.fixture(params=LIMITS)
def compiled_for(request, package, monkeypatch):
    """The package says that it is compiled for this activation, a key of LIMITS."""
    found = importlib.import_module(f"{package}.common.host.problem")
    for key, value in swiglu.constants(sizes_of(request.param)).items():
        monkeypatch.setattr(found, key.upper(), value)
    return request.param


def sizes_of(activation):
    return {
        "activation": "silu" if activation == "clamp" else activation,
        "swiglu_limit": LIMITS[activation],
    }


def told(refusal, folder):
    """Whether an error has the commands for a package of the layer of folder/config.json, on four
    ranks.
    """
    found = re.search(
        r"moebench model (\S+) --ep 4 --add KEY .*pack (\S+) .*--definition (\S+)", str(refusal)
    )
    return found and found.groups() == (f"{folder}/config.json", "triton_fused_v2", "KEY-routed")


def check_activations(compiled_for, models, call):
    """call(**config) is served for the model that the package is compiled for, and refused for the
    others.
    """
    for model, config in models.items():
        with (
            nullcontext()
            if model == compiled_for
            else pytest.raises(ValueError, match="got|reason")
        ):
            call(**config)


def test_transformers_activation_is_the_packages(ours, compiled_for):
    """A clamped model taken for one without the clamp."""
    gate, up = torch.linspace(-30, 30, 121), torch.linspace(30, -30, 121).roll(7)
    exec(f"import torch\n{swiglu.source(sizes_of(compiled_for))}", found := {})
    assert torch.allclose(ours("transformers").activation(gate, up), found["swiglu"](gate, up))


# ---- stand-ins, built from what is recorded ----


def signature(parameters):
    return inspect.Signature(
        inspect.Parameter(
            name, getattr(inspect.Parameter, kind), default=default or inspect.Parameter.empty
        )
        for name, kind, default in parameters
    )


def value(text):
    try:
        return ast.literal_eval(text)
    except ValueError:  # field(...), an enum's member
        return None


def record_class(description, name):
    """A class with the recorded fields, keyword arguments of its constructor."""
    fields = description["fields"].items()
    required = [(field, object) for field, default in fields if default is None]
    others = [(field, object, value(default)) for field, default in fields if default is not None]
    return dataclasses.make_dataclass(name, required + others)


def install(monkeypatch, engine, contents):
    """Modules whose attributes these are: path of a file below the engine's folder ->
    attributes.
    """
    monkeypatch.setitem(sys.modules, engine, ModuleType(engine))
    for path, attributes in contents.items():
        dotted = [engine, *path.removesuffix(".py").removesuffix("/__init__").split("/")]
        for end in range(2, len(dotted) + 1):
            name = ".".join(dotted[:end])
            if name not in sys.modules or not hasattr(sys.modules[name], "stand_in"):
                monkeypatch.setitem(sys.modules, name, ModuleType(name))
                sys.modules[name].stand_in = True
                setattr(
                    sys.modules[".".join(dotted[: end - 1])], dotted[end - 1], sys.modules[name]
                )
        vars(sys.modules[".".join(dotted)]).update(attributes)


# ---- SGLang: test_sglang_on_cpu.py has its own classes ----


def sglang_check(ours, weights=None, **config):
    """As the fused function begins, with a MoeRunnerConfig of defaults but for `config`."""
    config = {"is_gated": True, "apply_router_weight_on_input": False, "no_combine": False} | config
    info = {"use_fp8": True, "is_fp4_experts": False, "use_mxfp8": False, "block_shape": [128, 128]}
    info |= {"w2_weight": torch.empty(LOCAL, H, INTER)} | (weights or {})
    dispatched = SimpleNamespace(topk_output=SimpleNamespace(topk_ids=torch.zeros(1, TOP_K)))
    ours("sglang").check(
        dispatched, SimpleNamespace(**info), SimpleNamespace(activation="silu", **config)
    )


@pytest.mark.parametrize(
    "weights", [{"block_shape": None}, {"use_mxfp8": True}, {"is_fp4_experts": True}], ids=str
)
def test_sglang_is_refused_other_weights(ours, weights):
    """Bf16 experts read as FP8. They come with use_fp8, and no block_shape."""
    with pytest.raises(ValueError, match="^weights: got "):
        sglang_check(ours, weights)


def test_sglang_gets_the_activation_of_its_model(ours, compiled_for):
    """A package with a clamp that computes for a model without."""
    models = {"silu": {}, "clamp": {"swiglu_limit": 10.0}, "swiglustep": {"gemm1_clamp_limit": 7.0}}
    models["swigluoai"] = {
        "gemm1_alpha": 1.702,
        "gemm1_clamp_limit": 7.0,
        "gate_up_interleaved": False,
    }
    check_activations(compiled_for, models, partial(sglang_check, ours))


# ---- vLLM ----

FP8 = "model_executor/layers/quantization/fp8.py"
UNSUPPORTED = "vLLM's reason"


def abstract_class(name, description, bases=()):
    """With the recorded abstract methods, and the names of all."""
    body = {
        method: abc.abstractmethod(lambda *_: None)
        for method, of in description["methods"].items()
        if "abstractmethod" in of["kinds"]
    }
    return abc.ABCMeta(name, bases, body)


@pytest.fixture(params=list(RECORDED))
def vllm(request, monkeypatch, tmp_path):
    """What is recorded, and the stand-ins of vLLM's own classes."""
    recorded, registered, logged = RECORDED[request.param], {}, []
    info_once = signature(recorded["logger.py::_VllmLogger"]["methods"]["info_once"]["parameters"])
    logger = SimpleNamespace(
        info_once=lambda *args: logged.append(info_once.bind(None, *args).args[1])
    )
    config = SimpleNamespace(model_config=SimpleNamespace(model=tmp_path))
    assert recorded["config/vllm.py::get_current_vllm_config"] == []
    experts = abstract_class(
        "FusedMoEExperts", recorded[f"{MOE}/modular_kernel.py::FusedMoEExperts"]
    )

    def __init__(self, moe_config, quant_config):
        self.moe_config, self.quant_config = moe_config, quant_config

    def is_supported_config(cls, moe_config, weight_key, activation_key, activation_format):
        supported = (
            cls._supports_activation(moe_config.activation),
            activation_format == cls.activation_format(),
        )
        supported += (cls._supports_quant_scheme(weight_key, activation_key),)
        return all(supported) and cls._supports_parallel_config(
            moe_config.moe_parallel_config
        ), UNSUPPORTED

    experts.__init__, experts.is_supported_config = __init__, staticmethod(is_supported_config)
    experts.w1_scale = property(lambda self: self.quant_config.w1_scale)
    experts.w2_scale = property(lambda self: self.quant_config.w2_scale)
    modular = recorded[f"{MOE}/modular_kernel.py::FusedMoEExpertsModular"]
    enums = {
        name: enum.Enum(
            name, {member: value(text) for member, text in recorded[key]["fields"].items()}
        )
        for key in recorded
        if (name := key.split("::")[1])
        in ("FusedMoEActivationFormat", "MoEActivation", "Fp8MoeBackend")
    }

    class Fp8MoEMethod:
        def __init__(self, quant_config, layer):
            self.moe = layer.moe_config

    class Fp8Config:
        weight_block_size = [128, 128]

        def get_quant_method(self, layer, prefix):
            return Fp8MoEMethod(self, layer) if hasattr(layer, "moe_config") else "linear"

    expected = signature(
        recorded["model_executor/layers/quantization/__init__.py::register_quantization_config"]
    )

    def register_quantization_config(*args, **kwargs):
        (name,) = expected.bind(*args, **kwargs).arguments.values()
        return lambda cls: registered.setdefault(name, cls)

    reduce = type("TopKWeightAndReduceNoOP", (), {"apply": lambda self, output, *rest: output})
    contents = {
        "config/__init__.py": {"get_current_vllm_config": lambda: config},
        "logger.py": {"init_logger": lambda name: logger if name.startswith("vllm.") else None},
        f"{MOE}/modular_kernel.py": {
            "FusedMoEExpertsModular": abstract_class("FusedMoEExpertsModular", modular, (experts,)),
            "FusedMoEActivationFormat": enums["FusedMoEActivationFormat"],
        },
        f"{MOE}/activation.py": {"MoEActivation": enums["MoEActivation"]},
        f"{MOE}/oracle/fp8.py": {"Fp8MoeBackend": enums["Fp8MoeBackend"]},
        f"{MOE}/topk_weight_and_reduce.py": {"TopKWeightAndReduceNoOP": reduce},
        "model_executor/layers/quantization/__init__.py": {
            "register_quantization_config": register_quantization_config
        },
        FP8: {"Fp8Config": Fp8Config, "Fp8MoEMethod": Fp8MoEMethod},
        "model_executor/layers/quantization/utils/quant_utils.py": {
            name: recorded[f"model_executor/layers/quantization/utils/quant_utils.py::{name}"]
            for name in ("kFp8Dynamic128Sym", "kFp8Static128BlockSym")
        },
    }
    install(monkeypatch, "vllm", contents)
    return SimpleNamespace(
        recorded=recorded, registered=registered, logged=logged, Fp8Config=Fp8Config, **enums
    )


def moe_layer(vllm, **changed):
    """A layer with a FusedMoEConfig of the recorded fields."""
    config = record_class(vllm.recorded[f"{MOE}/config.py::FusedMoEConfig"], "FusedMoEConfig")
    sizes = {
        "num_experts": 4 * LOCAL,
        "num_logical_experts": 4 * LOCAL,
        "num_local_experts": LOCAL,
        "hidden_dim": H,
    }
    sizes |= {
        "experts_per_token": TOP_K,
        "intermediate_size": INTER,
        "intermediate_size_per_partition": INTER,
    }
    parallel = SimpleNamespace(use_all2all_kernels=False, use_ag_rs_all2all_kernels=False)
    others = {"activation": vllm.MoEActivation.SILU, "device": "cpu", "routing_method": None}
    others |= {"moe_parallel_config": parallel, "in_dtype": torch.bfloat16}
    of_layer = {"apply_router_weight_on_input": changed.pop("apply_router_weight_on_input", False)}
    return SimpleNamespace(moe_config=config(**sizes | others | changed), **of_layer)


def vllm_method(vllm, ours, **changed):
    vllm.registered.clear()
    ours("vllm").register()
    return vllm.registered["fp8"]().get_quant_method(
        moe_layer(vllm, **changed), "model.layers.3.mlp.experts"
    )


@pytest.mark.parametrize(("in_turn", "shared"), [(True, False), (True, True), (False, True)])
def test_vllm_gets_the_layer(vllm, ours, package, in_turn, shared):
    """An argument that this release calls otherwise, ids that are not mapped to
    this rank's.

    in_turn: whether the rank's experts have consecutive ids. shared: whether vLLM's result is a
    copy of `output`.
    """
    of, method = (
        SimpleNamespace(**arguments(GEOMETRY, 5, "cpu", offset=RANK * LOCAL)),
        vllm_method(vllm, ours),
    )
    x = torch.randn(5, H, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert method.fp8_backend is vllm.Fp8MoeBackend.TRITON
    assert all(name in vllm.logged[0] for name in (package, "triton_fused_v2", DEFINITION))
    # as make_fp8_moe_kernel constructs it; a method that is still abstract raises here
    experts = method.experts_cls(
        moe_config=method.moe,
        quant_config=SimpleNamespace(
            w1_scale=of.gemm1_weights_scale, w2_scale=of.gemm2_weights_scale
        ),
    )
    shapes = experts.workspace_shapes(
        len(x), 2 * INTER, H, TOP_K, 4 * LOCAL, LOCAL, None, vllm.MoEActivation.SILU
    )
    assert shapes[2] == x.shape and experts.expects_unquantized_inputs
    expert_map = torch.full((4 * LOCAL,), -1, dtype=torch.int32)
    expert_map[RANK * LOCAL : (RANK + 1) * LOCAL] = torch.arange(LOCAL, dtype=torch.int32)
    if not in_turn:
        others = torch.arange(4 * LOCAL)
        others[[RANK * LOCAL, RANK * LOCAL + 1]] = others[[RANK * LOCAL + 1, RANK * LOCAL]]
        expert_map, of.engine_ids = (
            expert_map[others],
            torch.where(of.topk_ids < 0, -1, others[of.topk_ids]).int(),
        )
    workspace, result = torch.full_like(x, torch.nan), torch.full_like(x, torch.nan)
    output = workspace if shared else result
    given = {"output": output, "hidden_states": x, "w1": of.gemm1_weights, "w2": of.gemm2_weights}
    given |= {"expert_map": expert_map, "topk_weights": of.topk_weights}
    given |= {
        "topk_ids": vars(of).pop("engine_ids", of.topk_ids),
        "workspace13": workspace.view(-1)[:0],
    }
    apply = vllm.recorded[f"{MOE}/modular_kernel.py::FusedMoEExpertsModular"]["methods"]["apply"][
        "parameters"
    ]
    assert experts.apply(**{name: given.get(name) for name, *_ in apply[1:]}) is None
    of.hidden_states, of.hidden_states_scale = quantise_tokens_ref(x)
    reduce = experts.finalize_weight_and_reduce_impl()
    reduce.apply(result, output, of.topk_weights, given["topk_ids"], False)
    assert (
        result.any() and torch.equal(result, wanted(GEOMETRY, vars(of))) and workspace.isnan().all()
    )


def test_vllm_keeps_its_other_layers(vllm, ours):
    """Linear layers and attention without their quantisation, a process that
    cannot be spawned.
    """
    ours("vllm").register()
    config = vllm.registered["fp8"]
    assert type(pickle.loads(pickle.dumps(config()))) is config
    assert issubclass(config, vllm.Fp8Config)
    assert (
        config().get_quant_method(SimpleNamespace(), "model.layers.3.self_attn.o_proj") == "linear"
    )


def test_methods_for_vllm_have_its_parameters(vllm, ours):
    """Every method that replaces one of vLLM's takes what that one takes."""
    known = {}
    for name in ("FusedMoEExperts", "FusedMoEExpertsModular"):
        known |= vllm.recorded[f"{MOE}/modular_kernel.py::{name}"]["methods"]
    method = vllm_method(vllm, ours)
    for name, function in vars(method.experts_cls).items():
        if isinstance(function, staticmethod) or inspect.isfunction(function):
            got = list(inspect.signature(getattr(function, "__func__", function)).parameters)
            assert got == [parameter for parameter, *_ in known[name]["parameters"]], name
    for name in ("__init__", "get_quant_method"):
        of, cls = (
            ("Fp8MoEMethod", type(method))
            if name == "__init__"
            else ("Fp8Config", vllm.registered["fp8"])
        )
        expected = [
            parameter
            for parameter, *_ in vllm.recorded[f"{FP8}::{of}"]["methods"][name]["parameters"]
        ]
        assert list(inspect.signature(getattr(cls, name)).parameters) == expected
    of_layer = vllm.recorded[f"{MOE}/routed_experts.py::RoutedExperts"]["methods"]["__init__"][
        "parameters"
    ]
    assert "apply_router_weight_on_input" in [name for name, *_ in of_layer]
    parallel = vllm.recorded[f"{MOE}/config.py::FusedMoEParallelConfig"]["methods"]
    assert {"use_all2all_kernels", "use_ag_rs_all2all_kernels"} <= set(parallel)


VLLM_FAULTS = {"swiglu_limit": 7.0, "swiglu_alpha": 1.7}
VLLM_FAULTS |= dict.fromkeys(("has_bias", "is_lora_enabled", "apply_router_weight_on_input"), True)
VLLM_FAULTS = {name: {name: value} for name, value in VLLM_FAULTS.items()} | {
    "sizes": {"intermediate_size_per_partition": INTER // 2},
    UNSUPPORTED: {
        "moe_parallel_config": SimpleNamespace(
            use_all2all_kernels=True, use_ag_rs_all2all_kernels=False
        )
    },
}


@pytest.mark.parametrize("name", VLLM_FAULTS)
def test_vllm_is_refused_what_is_not_served(vllm, ours, name, tmp_path):
    """A model whose clamp or bias is left out, or experts that tensor
    parallelism has split.
    """
    (tmp_path / "config.json").touch()
    with pytest.raises(ValueError, match=f"^{name}: got |: {name}$") as refusal:
        vllm_method(vllm, ours, **VLLM_FAULTS[name])
    assert name != "sizes" or told(refusal.value, tmp_path)


def test_vllm_gets_the_activation_of_its_model(vllm, ours, compiled_for):
    """A package with a clamp that computes for a model without."""
    models = {
        "silu": {},
        "clamp": {"swiglu_limit": 10.0},
        "swiglustep": {"activation": vllm.MoEActivation.SWIGLUSTEP},
    }
    models["swigluoai"] = {"swiglu_limit": 7.0, "swiglu_alpha": 1.702, "swiglu_beta": 1.0}
    models["swigluoai"]["activation"] = vllm.MoEActivation.SWIGLUOAI_UNINTERLEAVE
    check_activations(compiled_for, models, partial(vllm_method, vllm, ours))
