"""What a call takes on several GPUs: dispatch, experts and combine apart, all of it eagerly, and as a CUDA graph."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import median

import torch
import torch.distributed as dist

WARMUP, CALLS = 5, 30
AHEAD = 4_000_000  # cycles, some 2 ms, that a GPU sleeps while its host launches what is timed


def timed(call: Callable[..., object], device: str, with_host: bool) -> list[float]:
    """ms between the marks that a call sets: medians, of the slowest rank. All ranks begin a call together.

    with_host: the time that launching takes counts, too.
    """
    calls, together = [], torch.zeros(1, device=device)
    for _ in range(WARMUP + CALLS):
        events = []

        def mark(events: list = events) -> None:
            events.append(torch.cuda.Event(enable_timing=True))
            events[-1].record()

        dist.barrier()
        torch.cuda.synchronize()
        if not with_host:
            torch.cuda._sleep(AHEAD)
            dist.all_reduce(together)  # hosts leave the barrier some time apart
        call(mark=mark)
        torch.cuda.synchronize()
        calls.append([a.elapsed_time(b) for a, b in pairwise(events)])
    slowest = torch.tensor([median(ms) for ms in zip(*calls[WARMUP:], strict=True)], device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.tolist()


def measure(forward: Callable[..., torch.Tensor], device: str, as_graph: bool) -> list[float | None]:
    """ms of dispatch, experts, combine, a call, and a call as a CUDA graph. forward: of a way, without its `mark`."""

    def whole(call: Callable[[], object], mark: Callable[[], None]) -> None:
        mark(), call(), mark()

    found = timed(forward, device, with_host=False) + timed(partial(whole, forward), device, with_host=True)
    if not as_graph:
        return [*found, None]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's watchdog asks for events meanwhile
        forward()
    return found + timed(partial(whole, graph.replay), device, with_host=False)
