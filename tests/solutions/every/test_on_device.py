"""Every solution on a GPU: the current stream, CUDA graphs, scratch memory, a second device.

`layer` is a built solution, `layer_key` names a definition that it serves (`serving`).
"""

import pytest
import torch
from every_solution import OUTPUT, assert_same_bits, cloned, run, serving
from layer_inputs import DEVICE
from layer_inputs import arguments as layer_arguments
from moebench.judging.calling import seeded_inputs
from moebench.judging.fib import load_safetensors
from moebench.operators import catalogue

LAYERS = ("full", "deepseek-v3-ep8-routed", "bf16")


@serving(*LAYERS)
def test_runs_on_the_current_stream(layer, layer_key):
    """Catches kernels on another stream, which do not wait for inputs that are written on this
    one.
    """
    arguments = layer_arguments(layer_key, 80)
    other = layer_arguments(layer_key, 80, seed=1)["hidden_states"]
    expected = run(layer, arguments | {"hidden_states": other})
    output = torch.full_like(expected, torch.nan)
    torch.cuda.synchronize()

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        # some 50 ms: a kernel that does not wait reads the old tokens
        torch.cuda._sleep(100_000_000)
        arguments["hidden_states"].copy_(other)
        layer(*(arguments | {OUTPUT: output}).values())
    stream.synchronize()

    assert torch.equal(output, expected)


def token_inputs(layer_key):
    """Return the names of the inputs that have a value or a row for each token."""
    names = []
    for name, spec in catalogue.definition(layer_key).inputs.items():
        if spec.shape and "seq_len" in spec.shape:
            names.append(name)
    return names


@serving(*LAYERS)
@pytest.mark.parametrize("num_tokens", [7, 80, 300, 1100])
def test_replays_of_a_cuda_graph_follow_their_inputs(layer, layer_key, num_tokens):
    """Catches a layer that cannot be captured, as it waits for the GPU, and one whose launches
    depend on the tokens that it was captured with.
    """
    arguments = layer_arguments(layer_key, num_tokens)
    output = torch.full_like(arguments[OUTPUT], torch.nan)
    run(layer, arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer(*(arguments | {OUTPUT: output}).values())

    for seed in (0, 1, 2):
        other = layer_arguments(layer_key, num_tokens, seed=seed)
        for name in token_inputs(layer_key):
            arguments[name].copy_(other[name])
        output.fill_(torch.nan)
        graph.replay()
        assert_same_bits(output, run(layer, arguments), f"replay {seed}")


MOST_SCRATCH = 1.5e9  # bytes that a model which fills the device leaves free


@serving(
    "full",
    flashinfer_cutlass="its workspace takes 10.3 GB",
    torch_moe="all of it is in fp32",
    deepgemm="its GEMMs want all rows in one operand, T x 8 of them in the worst case: y alone "
    "takes 1.6 GB",
)
def test_scratch_of_the_largest_workload_is_small(layer, layer_key, records):
    """Catches a solution that runs out of memory next to a model that fills the device."""
    recorded = records(layer_key)
    workload = max(recorded.workloads, key=lambda workload: workload.axes["seq_len"])
    definition = catalogue.definition(layer_key)
    stored = load_safetensors(definition, workload, recorded.root)
    (values,) = seeded_inputs(definition, workload, 1, DEVICE, stored)
    values = cloned(values)
    hidden = catalogue.layer_sizes()[layer_key]["hidden_size"]
    output = torch.empty(
        workload.axes["seq_len"], hidden, dtype=torch.bfloat16, device=DEVICE
    )

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    layer(*values, output)
    torch.cuda.synchronize()

    assert torch.cuda.max_memory_allocated() - before < MOST_SCRATCH


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@serving("full")
def test_runs_on_the_device_of_its_inputs(layer, layer_key):
    """Catches kernels that are launched on the current device, where the inputs are not."""
    arguments = layer_arguments(layer_key, 80, "cuda:0")
    expected = run(layer, arguments)
    elsewhere = {}
    for name, value in arguments.items():
        elsewhere[name] = value.to("cuda:1") if torch.is_tensor(value) else value

    torch.cuda.set_device(0)
    output = run(layer, elsewhere)

    assert output.device.index == 1
    assert torch.cuda.current_device() == 0
    assert torch.equal(output.to("cuda:0"), expected)
    assert torch.equal(run(layer, arguments), expected)
