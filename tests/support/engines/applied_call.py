"""FlashInfer's MoE call where its Trace Apply is on.

python applied_call.py KEY T [--beside SOLUTION] prints what it has seen of a layer with T tokens as
JSON: see `Answer`. Without a GPU Triton's interpreter runs the kernels.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass

import flashinfer
import layer_inputs
import torch
from flashinfer.fused_moe import trtllm_fp8_block_scale_moe
from flashinfer.trace_apply import stats_snapshot
from flashinfer_bench.compile import BuilderRegistry
from moebench.core.errors import first_line
from moebench.judging.tolerances import matched_ratios
from moebench.operators import catalogue
from moebench.packing.pack import pack

HOST_CALLS = 100


@dataclass
class Answer:
    """What was seen. Shares are those of elements inside each tolerance.

    matched: against the reference. beside: against the solution that --beside names. same_in_graph:
    whether a CUDA graph of the call gives the same bits. host_us: of a call. clamp_error: of a call
    with a clamp, which the layer has not. counts: Trace Apply's own, of the first call and the one
    with a clamp.
    """

    device: str
    flashinfer: str
    torch: str
    definition: str
    tokens: int
    matched: dict[str, float]
    beside: dict[str, float] | None
    same_in_graph: bool | None
    host_us: float
    clamp_error: str
    counts: dict[str, int]


def call(inputs, sizes, clamp=None):
    return trtllm_fp8_block_scale_moe(
        **inputs,
        num_experts=sizes["num_experts"],
        top_k=sizes["top_k"],
        n_group=sizes["num_groups"],
        topk_group=sizes["kept_groups"],
        intermediate_size=sizes["intermediate_size"],
        local_num_experts=sizes["num_local_experts"],
        routing_method_type=2,
        gemm1_clamp_limit=clamp,
    )


def error_with_clamp(inputs, sizes):
    """Return the error that a call with a clamp ends in, "" if in none."""
    clamp = torch.ones(sizes["num_local_experts"], device=layer_inputs.DEVICE)
    try:
        call(inputs, sizes, clamp)
    except Exception as error:
        return first_line(error)
    return ""


def output_of_solution(name, key, inputs):
    """Return the output of a solution that is called by FlashInfer-Bench."""
    layer = catalogue.definition(key)
    runnable = BuilderRegistry.get_instance().build(layer, pack(name)[key])
    output = torch.empty_like(inputs["hidden_states"], dtype=torch.bfloat16)
    runnable(*inputs.values(), output)
    return output


def output_in_graph(inputs, sizes):
    """Return what a CUDA graph of the call gives."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call(inputs, sizes)
    graph.replay()
    return output


def host_us_of(inputs, sizes):
    """Return the us of a call on the host; the GPU's where that is slower."""
    start = time.perf_counter()
    for _ in range(HOST_CALLS):
        call(inputs, sizes)
    return (time.perf_counter() - start) / HOST_CALLS * 1e6


def answer(key, tokens, beside):
    sizes = catalogue.layer_sizes()[key]
    on_gpu = layer_inputs.DEVICE == "cuda"
    if not on_gpu:
        # FlashInfer asks whether a graph is being captured; torch without CUDA cannot answer
        torch.cuda.is_current_stream_capturing = lambda: False

    inputs = layer_inputs.arguments(key, tokens)
    inputs.pop("output")
    expected = layer_inputs.reference(key).run(**inputs)
    output = call(inputs, sizes)
    clamp_error = error_with_clamp(inputs, sizes)
    (counts,) = stats_snapshot().values()

    shares = None
    if beside:
        shares = matched_ratios(output, output_of_solution(beside, key, inputs))
    return Answer(
        device=torch.cuda.get_device_name() if on_gpu else "cpu",
        flashinfer=flashinfer.__version__,
        torch=torch.__version__,
        definition=key,
        tokens=tokens,
        matched=matched_ratios(output, expected),
        beside=shares,
        same_in_graph=torch.equal(output, output_in_graph(inputs, sizes))
        if on_gpu
        else None,
        host_us=host_us_of(inputs, sizes) if on_gpu else 0.0,
        clamp_error=clamp_error,
        counts=counts,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("key")
    parser.add_argument("tokens", type=int)
    parser.add_argument("--beside", metavar="SOLUTION")
    args = parser.parse_args()
    print(json.dumps(asdict(answer(args.key, args.tokens, args.beside))))


if __name__ == "__main__":
    main()
