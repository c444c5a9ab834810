"""A forward pass over all layers: launch by launch, or as a CUDA graph, and how long it takes.

rounds.py makes the pass of a solution by `forward_of`, its replay by `capture`, and times either by
`median_ms`.
"""

import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from flashinfer_bench.compile import Runnable

from moebench.judging.calling import with_outputs
from moebench.judging.fib import normalize_result
from moebench.operators.catalogue import definition

Forward = Callable[[], torch.Tensor]  # runs all layers; returns the last one's output


def forward_of(
    runnable: Runnable, layers: list[list], layer_key: str, device: str
) -> Forward:
    """Return the forward pass of a solution. layers: the arguments of each layer.

    All layers write to the same output tensor, as a model uses one buffer again and again. Before
    the first pass it is all NaN.
    """
    full = definition(layer_key)
    inputs_count = len(layers[0])
    arguments = with_outputs(full, runnable, layers[0], device)
    outputs = arguments[inputs_count:]
    for output in outputs:
        output.fill_(float("nan"))

    @torch.no_grad()
    def forward() -> torch.Tensor:
        for inputs in layers:
            result = runnable(*inputs, *outputs)
        if outputs:
            return outputs[0]
        return normalize_result(full, result, device)[0]

    return forward


def capture(forward: Forward) -> Forward:
    """Return the replay of a forward pass as one CUDA graph.

    Raises whatever the solution or CUDA raises.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = forward()

    def replay() -> torch.Tensor:
        graph.replay()
        return output

    output.fill_(float("nan"))
    return replay


def median_ms(forward: Forward, count: int, device: str) -> float:
    """Return the median ms of `count` forward passes, without a wait between them.

    On a CPU it is the time of a single pass.
    """
    if device == "cpu":
        begin = time.perf_counter()
        forward()
        return 1e3 * (time.perf_counter() - begin)

    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        forward()
        event.record()
    torch.cuda.synchronize()

    spans_ms = [start.elapsed_time(end) for start, end in pairwise(events)]
    return statistics.median(spans_ms)
