"""MoE layers of vLLM's own classes on one of two ranks, without a GPU.

python vllm_layer.py REQUEST ANSWER RANK, with vLLM in reach: test_vllm_layers_on_cpu.py writes the
one and reads the other. Ranks exchange what they have by gloo. A request has several `layers`, by
name, which share what takes long: the start of the processes.
"""

import importlib
import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
from moebench.core import interpreter  # noqa: F401  put right, before the package imports Triton
from quantised import quantise_tokens
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.config.parallel import ParallelConfig
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers import fused_moe
from vllm.model_executor.layers.fused_moe import utils as moe_utils
from vllm.model_executor.layers.quantization import get_quantization_config
from vllm.plugins import load_general_plugins
from vllm.v1.worker import workspace

# its name before 0.32 and since
NEW_LAYER = getattr(fused_moe, "FusedMoEFactory", None) or fused_moe.FusedMoE
RANKS = 2


def engine_config(request, additional_config):
    """Return what `vllm serve` makes of its options, as far as a layer asks for it."""
    parallel = ParallelConfig(
        tensor_parallel_size=RANKS, enable_expert_parallel=request["expert_parallel"]
    )
    config = VllmConfig(parallel_config=parallel, additional_config=additional_config)
    hf_config = SimpleNamespace(expert_dtype="fp4", quantization_config={})
    config.model_config = SimpleNamespace(
        model=request["model"], dtype=torch.bfloat16, is_moe=True, hf_config=hf_config
    )
    return config


def connect(rank, rendezvous):
    # releases before 0.32 want their scratch memory, which empties a GPU's cache
    workspace.init_workspace_manager(torch.device("cpu"))
    torch.accelerator.empty_cache = lambda: None
    init_distributed_environment(
        RANKS, rank, f"file://{rendezvous}", rank, backend="gloo"
    )
    initialize_model_parallel(RANKS)


def new_layer(request, **changes):
    """Return vLLM's layer, to which the request's routing is given."""

    def routing(hidden_states, gating_output, topk, renormalize):
        return request["topk_weights"].float(), request["topk_ids"].int()

    quantisation = get_quantization_config(request["quantisation"])
    return NEW_LAYER(
        quant_config=quantisation(True, "dynamic", weight_block_size=[128, 128]),
        prefix="model.layers.0.mlp.experts",
        params_dtype=torch.bfloat16,
        custom_routing_function=routing,
        **request["layer"] | changes,
    )


def load_weights(experts, request):
    """Load all experts as from a checkpoint, of which vLLM takes this rank's part."""
    for ours, theirs in request["names"].items():
        w13 = getattr(experts, f"w13_{theirs}")
        w2 = getattr(experts, f"w2_{theirs}")
        gemm1 = request[f"gemm1_{ours}"]
        gemm2 = request[f"gemm2_{ours}"]
        for expert in range(len(gemm1)):
            gate, up = gemm1[expert].chunk(2)
            w13.weight_loader(w13, gate, theirs, "w1", expert)
            w13.weight_loader(w13, up, theirs, "w3", expert)
            w2.weight_loader(w2, gemm2[expert], theirs, "w2", expert)
    experts.quant_method.process_weights_after_loading(experts)


class PeersWithoutGPUs:
    """Stands in for Peers of a package.

    Attributes:
        launch_tokens: up to so many tokens the package is asked for the sum.
        calls: how often it was, for the present layer.
    """

    launch_tokens = 0
    calls = 0

    def __init__(self, group):
        self.group = group


def stand_in_for_the_sum(package):
    """Give a package the function that sums over ranks, which needs GPUs, and its Peers."""
    module = importlib.import_module(package)

    def run_allreduce_bf16(*arguments, peers):
        PeersWithoutGPUs.calls += 1
        module.run_bf16(*arguments)
        dist.all_reduce(arguments[-1], group=peers.group)

    module.Peers = PeersWithoutGPUs
    module.run_allreduce_bf16 = run_allreduce_bf16


def refusal_of(request, **changes):
    try:
        layer = new_layer(request, **changes)
        load_weights(layer.routed_experts, request)
    except (ValueError, NotImplementedError) as error:
        return str(error)
    return "served"


def output_of(request, config):
    """Return the output of a layer that is made and loaded with this config, and how often the
    package was asked for the sum over ranks.
    """
    PeersWithoutGPUs.calls = 0
    layer = new_layer(request)
    load_weights(layer.routed_experts, request)
    x = request["x"]
    logits = torch.zeros(len(x), request["layer"]["num_experts"])
    with set_forward_context(None, config):
        return layer(x, logits), PeersWithoutGPUs.calls


def answer(request):
    """Return the layer's output, and a refusal for each of the request's changes."""
    answers = {}
    config = engine_config(request, {})
    with set_current_vllm_config(config):
        answers["output"] = output_of(request, config)
        for name, changes in request["faults"].items():
            answers[name] = refusal_of(request, **changes)
    return answers


def sums(request):
    """Return the output of ranks that sum before vLLM has it, where the layer's launch can sum so
    many tokens, and where it can sum all but one.
    """
    stand_in_for_the_sum(request["package"])
    answers = {}
    tokens = len(request["x"])
    for name, launch_tokens in {"summed": tokens, "summed_by_vllm": tokens - 1}.items():
        PeersWithoutGPUs.launch_tokens = launch_tokens
        config = engine_config(request, {"experts_sum_over_ranks": True})
        with set_current_vllm_config(config):
            answers[name] = output_of(request, config)
    return answers


def answers_of(request, rank):
    """Return name -> answers of each layer, of which `alone` is vLLM's without a package."""
    layers = request["layers"]
    first, *_ = layers.values()
    with set_current_vllm_config(engine_config(first, {})):
        connect(rank, request["rendezvous"])

    alone = {}
    for name, layer in layers.items():
        with set_current_vllm_config(engine_config(layer, {})):
            alone[name] = refusal_of(layer)

    load_general_plugins()
    answers = {}
    for name, layer in layers.items():
        answers[name] = answer(layer) | {"alone": alone[name]}
        if layer["can_sum"]:
            answers[name] |= sums(layer)
    return answers


def main():
    request_file, answer_file, rank = sys.argv[1:]
    request = torch.load(request_file)
    moe_utils.per_token_group_quant_fp8 = quantise_tokens
    with torch.inference_mode():
        torch.save(answers_of(request, int(rank)), answer_file)


if __name__ == "__main__":
    main()
