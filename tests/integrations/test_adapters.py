"""Adapters of packages without their engines: what they refuse; vLLM's is held against two
releases' signatures.

What it imports is built from tests/samples/engine_signatures.json, which
tests/support/engines/engine_signatures.py reads from vLLM's sources, and called as vLLM calls it.
So this shows that names, arguments and fields exist, not that it runs; test_vllm_on_cpu.py and
test_sglang_on_cpu.py run the engines' own classes.
"""

import abc
import ast
import enum
import importlib
import inspect
import pickle
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from every_solution import expected_output
from layer_inputs import arguments as layer_arguments
from layer_inputs import reference
from moebench.operators import catalogue
from moebench.operators.fp8 import swiglu
from moebench.packing import python_package
from signatures import recorded, signature_of

from solutions.common.triton.rows.quantise_tokens import quantise_tokens_ref

LAYER_KEY = "small-routed"
SIZES = catalogue.layer_sizes()[LAYER_KEY]
LOCAL = SIZES["num_local_experts"]
TOP_K = SIZES["top_k"]
HIDDEN = SIZES["hidden_size"]
INTER = SIZES["intermediate_size"]
RANKS = 4
RANK = 2
FIRST = RANK * LOCAL  # of the rank's experts
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


# ---- vLLM: a stand-in, built from what is recorded ----

RELEASES = recorded("engine_signatures.json")
MOE = "model_executor/layers/fused_moe"
QUANTIZATION = "model_executor/layers/quantization"
UNSUPPORTED = "vLLM's reason"
OUR_METHODS = ("layer", "run")


def literal(text):
    try:
        return ast.literal_eval(text)
    except ValueError:  # field(...), an enum's member
        return None


def fields_of(description):
    """Return a recorded class's fields with their defaults, None where there is none."""
    fields = {}
    for name, default in description["fields"].items():
        fields[name] = None if default is None else literal(default)
    return fields


def abstract_class(name, description, bases=()):
    """Return a class with the recorded abstract methods."""
    body = {}
    for method, details in description["methods"].items():
        if "abstractmethod" in details["kinds"]:
            body[method] = abc.abstractmethod(lambda *arguments: None)
    return abc.ABCMeta(name, bases, body)


class Fp8MoEMethod:
    def __init__(self, quant_config, layer):
        self.moe = layer.moe_config


class Fp8Config:
    weight_block_size = [128, 128]

    def get_quant_method(self, layer, prefix):
        return Fp8MoEMethod(self, layer) if hasattr(layer, "moe_config") else "linear"


class TopKWeightAndReduceNoOP:
    def apply(self, output, *others):
        return output


class Experts:
    """What FusedMoEExperts does beside its abstract methods."""

    def __init__(self, moe_config, quant_config):
        self.moe_config = moe_config
        self.quant_config = quant_config

    @property
    def w1_scale(self):
        return self.quant_config.w1_scale

    @property
    def w2_scale(self):
        return self.quant_config.w2_scale

    @staticmethod
    def is_supported_config(
        cls, moe_config, weight_key, activation_key, activation_format
    ):
        supported = [
            cls._supports_activation(moe_config.activation),
            cls._supports_quant_scheme(weight_key, activation_key),
            cls._supports_parallel_config(moe_config.moe_parallel_config),
            activation_format == cls.activation_format(),
        ]
        return all(supported), UNSUPPORTED


class Vllm:
    """vLLM as an adapter sees it: the recorded names of a release."""

    def __init__(self, recorded, model):
        self.recorded = recorded
        self.model = model
        self.registered = {}
        self.logged = []
        self.Activation = self.enum(f"{MOE}/activation.py::MoEActivation")
        self.Backend = self.enum(f"{MOE}/oracle/fp8.py::Fp8MoeBackend")
        self.modular = f"{MOE}/modular_kernel.py::FusedMoEExpertsModular"

    def enum(self, key):
        return enum.Enum(key.split("::")[1], fields_of(self.recorded[key]))

    def info_once(self, *arguments):
        logger = self.recorded["logger.py::_VllmLogger"]["methods"]["info_once"]
        signature_of(logger["parameters"]).bind(None, *arguments)
        self.logged.append(arguments[0])

    def register_quantization_config(self, *arguments, **keywords):
        key = f"{QUANTIZATION}/__init__.py::register_quantization_config"
        bound = signature_of(self.recorded[key]).bind(*arguments, **keywords)
        (name,) = bound.arguments.values()
        return lambda cls: self.registered.setdefault(name, cls)

    def current_config(self):
        return SimpleNamespace(
            model_config=SimpleNamespace(model=self.model),
            parallel_config=SimpleNamespace(use_ubatching=False),
            additional_config={},
        )

    def files(self):
        """Return a file below vLLM's folder -> what the adapter finds there."""
        plain = self.recorded[f"{MOE}/modular_kernel.py::FusedMoEExperts"]
        experts = abstract_class("FusedMoEExperts", plain, (Experts,))
        modular = self.recorded[self.modular]
        formats = self.enum(f"{MOE}/modular_kernel.py::FusedMoEActivationFormat")
        keys = f"{QUANTIZATION}/utils/quant_utils.py"
        dynamic = self.recorded[f"{keys}::kFp8Dynamic128Sym"]
        static = self.recorded[f"{keys}::kFp8Static128BlockSym"]
        register = self.register_quantization_config
        return {
            "config/__init__.py": {"get_current_vllm_config": self.current_config},
            "logger.py": {"init_logger": lambda name: self},
            f"{MOE}/modular_kernel.py": {
                "FusedMoEExpertsModular": abstract_class(
                    "Modular", modular, (experts,)
                ),
                "FusedMoEActivationFormat": formats,
            },
            f"{MOE}/activation.py": {"MoEActivation": self.Activation},
            f"{MOE}/prepare_finalize/no_dp_ep.py": {
                "MoEPrepareAndFinalizeNoDPEPModular": object
            },
            "distributed/__init__.py": {
                "get_tp_group": None,
                "tensor_model_parallel_all_reduce": None,
            },
            f"{MOE}/oracle/fp8.py": {"Fp8MoeBackend": self.Backend},
            f"{MOE}/topk_weight_and_reduce.py": {
                "TopKWeightAndReduceNoOP": TopKWeightAndReduceNoOP
            },
            f"{QUANTIZATION}/__init__.py": {"register_quantization_config": register},
            f"{QUANTIZATION}/fp8.py": {
                "Fp8Config": Fp8Config,
                "Fp8MoEMethod": Fp8MoEMethod,
            },
            keys: {"kFp8Dynamic128Sym": dynamic, "kFp8Static128BlockSym": static},
        }

    def layer(self, apply_router_weight_on_input=False, **changes):
        """Return a layer with a FusedMoEConfig of the recorded fields."""
        config = fields_of(self.recorded[f"{MOE}/config.py::FusedMoEConfig"])
        values = {
            "num_experts": RANKS * LOCAL,
            "num_local_experts": LOCAL,
            "hidden_dim": HIDDEN,
            "experts_per_token": TOP_K,
            "intermediate_size": INTER,
            "intermediate_size_per_partition": INTER,
            "activation": self.Activation.SILU,
            "moe_parallel_config": parallel_config(use_all2all_kernels=False),
        }
        assert values.keys() <= config.keys()
        moe_config = SimpleNamespace(**config | values | changes)
        return SimpleNamespace(
            moe_config=moe_config,
            apply_router_weight_on_input=apply_router_weight_on_input,
        )


def parallel_config(use_all2all_kernels):
    return SimpleNamespace(
        use_all2all_kernels=use_all2all_kernels, use_ag_rs_all2all_kernels=False
    )


def install(monkeypatch, engine, files):
    """Put modules with these attributes in reach, and packages around them."""
    modules = {engine: ModuleType(engine)}
    for path, attributes in files.items():
        parent = engine
        for part in path.removesuffix(".py").removesuffix("/__init__").split("/"):
            name = f"{parent}.{part}"
            modules.setdefault(name, ModuleType(name))
            setattr(modules[parent], part, modules[name])
            parent = name
        vars(modules[parent]).update(attributes)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture(params=RELEASES)
def vllm(request, monkeypatch, tmp_path):
    stand_in = Vllm(RELEASES[request.param], model=tmp_path)
    install(monkeypatch, "vllm", stand_in.files())
    return stand_in


@pytest.fixture
def method_of(vllm, adapter):
    """A function of a layer's changes that returns its method, as vLLM asks for it."""

    def get(**changes):
        vllm.registered.clear()
        adapter("vllm").register()
        layer = vllm.layer(**changes)
        return vllm.registered["fp8"]().get_quant_method(
            layer, "model.layers.3.mlp.experts"
        )

    return get


# ---- vLLM: a layer's answer ----


def routed_in_vllm(ids, exchanged):
    """Return ids as vLLM has them and its map to this rank's experts.

    exchanged: whether the first two of these have exchanged their numbers.
    """
    numbers = torch.arange(RANKS * LOCAL, dtype=torch.int32)
    if exchanged:
        numbers[FIRST] = FIRST + 1
        numbers[FIRST + 1] = FIRST
    local = numbers - FIRST
    expert_map = local.where((local >= 0) & (local < LOCAL), -1)
    return numbers[ids].where(ids >= 0, -1), expert_map


def call_experts(vllm, method, tensors, result):
    """Construct a method's experts as make_fp8_moe_kernel does, and call them as this release does.

    tensors: what it hands over, by its names. result: where vLLM wants the sum over experts.
    """
    arguments = tensors["arguments"]
    scales = SimpleNamespace(
        w1_scale=arguments["gemm1_weights_scale"],
        w2_scale=arguments["gemm2_weights_scale"],
    )
    # a method that is still abstract raises here
    experts = method.experts_cls(moe_config=method.moe, quant_config=scales)
    handed_over = tensors | {
        "w1": arguments["gemm1_weights"],
        "w2": arguments["gemm2_weights"],
        "topk_weights": arguments["topk_weights"],
    }
    parameters = vllm.recorded[vllm.modular]["methods"]["apply"]["parameters"]
    names = [name for name, *_ in parameters if name != "self"]
    experts.apply(**{name: handed_over.get(name) for name in names})

    reduce = experts.finalize_weight_and_reduce_impl()
    topk_weights = arguments["topk_weights"]
    reduce.apply(result, tensors["output"], topk_weights, tensors["topk_ids"], False)


@pytest.mark.parametrize(
    ("shared", "exchanged"), [(True, True), (False, True), (False, False)], ids=str
)
def test_vllm_gets_the_layer(vllm, method_of, shared, exchanged):
    """An argument that this release calls otherwise, ids that are not mapped to this rank's.

    shared: whether vLLM's result is a copy of a workspace.
    """
    arguments = layer_arguments(LAYER_KEY, 5, "cpu", offset=FIRST)
    x = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(0)).bfloat16()
    topk_ids, expert_map = routed_in_vllm(arguments["topk_ids"], exchanged)
    workspace = torch.full_like(x, torch.nan)
    result = torch.full_like(x, torch.nan)
    tensors = {
        "arguments": arguments,
        "output": workspace if shared else result,
        "hidden_states": x,
        "topk_ids": topk_ids,
        "expert_map": expert_map,
        "workspace13": workspace.view(-1)[:0],
    }

    call_experts(vllm, method_of(), tensors, result)

    values, scale = quantise_tokens_ref(x)
    quantised = {"hidden_states": values, "hidden_states_scale": scale}
    assert result.any()
    assert torch.equal(result, expected_output(LAYER_KEY, arguments | quantised))
    assert workspace.isnan().all()


def test_vllm_makes_room_and_quantises_nothing(vllm, method_of):
    method = method_of()
    experts = method.experts_cls(moe_config=method.moe, quant_config=None)
    silu = vllm.Activation.SILU

    shapes = experts.workspace_shapes(
        5, 2 * INTER, HIDDEN, TOP_K, RANKS * LOCAL, LOCAL, None, silu
    )

    assert shapes[2] == (5, HIDDEN)
    assert experts.expects_unquantized_inputs
    assert method.fp8_backend is vllm.Backend.TRITON


def test_vllms_log_names_the_package(vllm, method_of, package):
    method_of()
    for name in (package, "triton_fused_v2", catalogue.definition_name(LAYER_KEY)):
        assert name in vllm.logged[0]


def test_vllm_keeps_its_other_layers(vllm, adapter):
    """Linear layers and attention without their quantisation."""
    adapter("vllm").register()
    config = vllm.registered["fp8"]()
    projection = SimpleNamespace()
    assert (
        config.get_quant_method(projection, "model.layers.3.self_attn.o_proj")
        == "linear"
    )


def test_a_config_reaches_the_processes_that_vllm_spawns(vllm, adapter):
    adapter("vllm").register()
    config = vllm.registered["fp8"]()
    assert isinstance(config, Fp8Config)
    assert type(pickle.loads(pickle.dumps(config))) is type(config)


def test_methods_for_vllm_have_its_parameters(vllm, method_of):
    """Every method that replaces one of vLLM's takes what that one takes."""
    methods = {}
    for name in ("FusedMoEExperts", "FusedMoEExpertsModular"):
        methods |= vllm.recorded[f"{MOE}/modular_kernel.py::{name}"]["methods"]

    experts = method_of().experts_cls
    replaced = vars(experts.__base__) | vars(experts)
    for name in replaced.keys() - set(OUR_METHODS):
        # of a static method
        function = inspect.unwrap(inspect.getattr_static(experts, name))
        if inspect.isfunction(function):
            expected = [parameter for parameter, *_ in methods[name]["parameters"]]
            assert list(inspect.signature(function).parameters) == expected, name


def test_vllm_has_what_sums_and_mxfp4_experts_use(vllm):
    """A name or an argument that a release has not; test_vllm_layers_on_cpu.py runs others."""
    recorded = vllm.recorded
    signature_of(recorded[f"{MOE}/oracle/mxfp4.py::make_mxfp4_moe_kernel"]).bind(
        moe_quant_config=None,
        moe_config=None,
        experts_cls=None,
        mxfp4_backend=None,
        routing_tables=None,
    )
    skipped = recorded[f"{QUANTIZATION}/utils/quant_utils.py::is_layer_skipped"]
    signature_of(skipped).bind("prefix", [], {})
    assert (
        "DEEPGEMM_MXFP4"
        in recorded[f"{MOE}/oracle/mxfp4.py::Mxfp4MoeBackend"]["fields"]
    )

    config = recorded["models/deepseek_v4/quant_config.py::DeepseekV4FP8Config"][
        "methods"
    ]
    assert {"expert_dtype", "moe_quant_algo", "get_quant_method"} <= config.keys()
    method = recorded[f"{QUANTIZATION}/mxfp4.py::Mxfp4MoEMethod"]["methods"]
    for name in ("process_weights_after_loading", "get_fused_moe_quant_config"):
        assert [parameter for parameter, *_ in method[name]["parameters"]] == [
            "self",
            "layer",
        ]

    kernel = recorded[f"{MOE}/modular_kernel.py::FusedMoEKernel"]["methods"]["__init__"]
    signature_of(kernel["parameters"]).bind("self", "prepare_finalize", "fused_experts")
    no_exchange = (
        f"{MOE}/prepare_finalize/no_dp_ep.py::MoEPrepareAndFinalizeNoDPEPModular"
    )
    assert "output_is_reduced" in recorded[no_exchange]["methods"]


# ---- vLLM: the sum over ranks ----


def moe_config(skip_final_all_reduce=False, **changes):
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
def for_vllm_sum(vllm, adapter, package, monkeypatch):
    """The module of a package that can sum."""
    adapter("vllm")
    module = importlib.import_module(f"{package}.for_vllm_sum")
    monkeypatch.setattr(module, "has_sum", lambda: True)
    return module


def test_ranks_with_the_same_tokens_can_sum(for_vllm_sum):
    for_vllm_sum.check_can_sum(moe_config())
    for_vllm_sum.check_can_sum(moe_config(tp_size=1, ep_size=2))


@pytest.mark.parametrize("name", CANNOT_SUM)
def test_ranks_that_cannot_sum_are_refused(for_vllm_sum, name):
    """Ranks that wait for each other without end, or a sum that is made twice."""
    with pytest.raises(ValueError, match="^experts_sum_over_ranks: got true"):
        for_vllm_sum.check_can_sum(moe_config(**CANNOT_SUM[name]))


def test_a_package_that_cannot_sum_is_refused(for_vllm_sum, monkeypatch):
    monkeypatch.setattr(for_vllm_sum, "has_sum", lambda: False)
    with pytest.raises(ValueError, match="triton_fused_v2 has no run_allreduce"):
        for_vllm_sum.check_can_sum(moe_config())


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


# ---- vLLM: what is refused ----

FAULTS = {
    "swiglu_limit": {"swiglu_limit": 7.0},
    "swiglu_alpha": {"swiglu_alpha": 1.7},
    "has_bias": {"has_bias": True},
    "is_lora_enabled": {"is_lora_enabled": True},
    "apply_router_weight_on_input": {"apply_router_weight_on_input": True},
    "sizes": {"intermediate_size": 2 * INTER, "num_local_experts": 2 * LOCAL},
    "intermediate_size": {"intermediate_size_per_partition": INTER // 4},
}


@pytest.mark.parametrize("name", FAULTS)
def test_vllm_is_refused_what_is_not_served(method_of, name):
    """A model whose clamp or bias is left out, or a slice of an expert that cuts a block."""
    with pytest.raises(ValueError, match=f"^{name}: got "):
        method_of(**FAULTS[name])


def test_vllm_is_refused_a_parallelism_that_is_not_served(method_of):
    config = parallel_config(use_all2all_kernels=True)
    with pytest.raises(ValueError, match=UNSUPPORTED):
        method_of(moe_parallel_config=config)


def test_a_refused_layer_is_told_how_to_pack_its_own(method_of, tmp_path):
    """The file, the numbers of ranks, the solution and the definition, which can be typed."""
    (tmp_path / "config.json").touch()
    with pytest.raises(ValueError) as refusal:
        method_of(
            intermediate_size=4 * INTER, intermediate_size_per_partition=2 * INTER
        )

    commands = (
        r"model (\S+) --ep (\d+) --tp (\d+) --add KEY .*pack (\S+) .*--definition (\S+)"
    )
    values = re.search(commands, str(refusal.value)).groups()
    assert values == (
        f"{tmp_path}/config.json",
        str(RANKS),
        "2",
        "triton_fused_v2",
        "KEY-routed",
    )


def test_vllm_gets_the_activation_of_its_model(vllm, method_of, compiled_for):
    """A package with a clamp that computes for a model without."""
    oai = {"swiglu_limit": 7.0, "swiglu_alpha": 1.702, "swiglu_beta": 1.0}
    models = {
        "silu": {},
        "clamp": {"swiglu_limit": 10.0},
        "swiglustep": {"activation": vllm.Activation.SWIGLUSTEP},
        "swigluoai": oai | {"activation": vllm.Activation.SWIGLUOAI_UNINTERLEAVE},
    }
    check_activations(compiled_for, models, method_of)
