"""What a call takes on several GPUs: its exchange there, its products, its exchange back, and all of it in chunks."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from statistics import median

import torch
import torch.distributed as dist

from harness.expert_parallel.check import DTYPES
from harness.expert_parallel.forward import WAYS, Rank, forward
from harness.expert_parallel.layer import tokens_of
from harness.expert_parallel.record import Point

WARMUP, CALLS = 5, 30
AHEAD = 4_000_000  # cycles, some 2 ms, that a GPU sleeps while its host launches what is timed


def slowest(values: list[float], device: str) -> list[float]:
    """Of all ranks, each value."""
    found = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found.tolist()


def timed(steps: Callable[[], Iterator[None]], device: str, host: bool) -> list[float]:
    """ms of each step of a call, which yields before the first one and after each: medians, of the slowest rank.

    All ranks begin a call together. host: with the time that it takes to launch, not only where the call waits for it.
    """
    calls, together = [], torch.zeros(1, device=device)
    for _ in range(WARMUP + CALLS):
        dist.barrier()
        torch.cuda.synchronize()
        if not host:
            torch.cuda._sleep(AHEAD)
            dist.all_reduce(together)  # hosts leave the barrier some time apart
        events = []
        for _ in steps():
            events.append(torch.cuda.Event(enable_timing=True))
            events[-1].record()
        torch.cuda.synchronize()
        calls.append([a.elapsed_time(b) for a, b in pairwise(events)])
    return slowest([median(values) for values in zip(*calls[WARMUP:], strict=True)], device)


def measure(rank: Rank, each: int, dtype: str, device: str, chunks: list[int], as_graph: bool) -> Point:
    """Of `each` tokens a rank. chunks: what a whole call is cut into. as_graph: also as a CUDA graph, if it can be."""
    counts, sum_in, way = [each] * dist.get_world_size(), DTYPES[dtype], WAYS[rank.way]
    tokens = tokens_of(rank.layer, counts, dist.get_rank(), device)

    def apart() -> Iterator[None]:
        yield
        (sent,) = way.dispatch(rank.layer, tokens, counts)
        sent.work.wait()
        yield
        part = way.compute(sent, rank.part)
        yield
        way.finish(way.combine(sent, part, sum_in))
        yield

    def whole(call: Callable[[], object]) -> Callable[[], Iterator[None]]:
        def steps() -> Iterator[None]:
            yield
            call()
            yield

        return steps

    there, products, back = timed(apart, device, host=False)
    calls = {}
    for pieces in chunks:
        if pieces <= each:
            call = whole(partial(forward, rank, tokens, counts, sum_in, pieces))
            (calls[pieces],) = timed(call, device, host=True)
    graph_ms = None
    if as_graph and not way.HOST_WAITS:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's watchdog asks for events meanwhile
            forward(rank, tokens, counts, sum_in)  # what is called for the first time has been called above
        (graph_ms,) = timed(whole(graph.replay), device, host=False)
    (sent,) = way.dispatch(rank.layer, tokens, counts)
    sent.work.wait()
    there_bytes, back_bytes = map(int, slowest([*map(float, way.sent_bytes(sent, sum_in))], device))
    return Point(
        way=rank.way,
        sum_in=dtype,
        tokens=each,
        there_bytes=there_bytes,
        back_bytes=back_bytes,
        there_ms=there,
        products_ms=products,
        back_ms=back,
        call_ms=calls,
        graph_ms=graph_ms,
    )
