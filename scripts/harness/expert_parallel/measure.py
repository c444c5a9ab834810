"""What a call takes on several GPUs: its exchange there, its products, its exchange back, and all of it in chunks."""

from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist

from harness.expert_parallel.check import DTYPES, Rank
from harness.expert_parallel.layer import tokens_of
from harness.expert_parallel.record import Point

WARMUP, CALLS = 5, 30


def slowest(values: list[float], device: str) -> list[float]:
    """Of all ranks, each value."""
    found = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found.tolist()


def timed(steps: Callable[[], list[torch.cuda.Event]], device: str) -> list[float]:
    """ms between the events that a call records: medians over calls, of the slowest rank. All ranks begin together."""
    calls = []
    for _ in range(WARMUP + CALLS):
        dist.barrier()
        torch.cuda.synchronize()
        events = steps()
        torch.cuda.synchronize()
        calls.append([a.elapsed_time(b) for a, b in zip(events, events[1:], strict=False)])
    return slowest([median(values) for values in zip(*calls[WARMUP:], strict=True)], device)


def now() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def measure(rank: Rank, way: str, each: int, dtype: str, device: str, chunks: list[int], as_graph: bool) -> Point:
    """Of `each` tokens a rank. chunks: what a whole call is cut into. as_graph: also as a CUDA graph, if it can be."""
    counts = [each] * dist.get_world_size()
    tokens = tokens_of(rank.layer, counts, dist.get_rank(), device)
    held, sum_in = (rank.run, rank.weights, rank.first_expert), DTYPES[dtype]

    def apart() -> list[torch.cuda.Event]:
        events = [now()]
        sent = rank.way.dispatch(rank.layer, tokens, counts)
        if sent.work:
            sent.work.wait()
        events.append(now())
        part = rank.way.compute(sent, *held)
        events.append(now())
        rank.way.finish(rank.way.combine(sent, part, sum_in))
        return [*events, now()]

    def whole(pieces: int) -> Callable[[], list[torch.cuda.Event]]:
        def call() -> list[torch.cuda.Event]:
            begin = now()
            rank.forward(tokens, counts, sum_in, pieces)
            return [begin, now()]

        return call

    def replay() -> list[torch.cuda.Event]:
        begin = now()
        graph.replay()
        return [begin, now()]

    there, products, back = timed(apart, device)
    calls = {pieces: timed(whole(pieces), device)[0] for pieces in chunks if pieces <= each}
    graph_ms = None
    if as_graph and not rank.way.HOST_WAITS:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # what is called for the first time has been called above
            rank.forward(tokens, counts, sum_in)
        (graph_ms,) = timed(replay, device)
    there_bytes, back_bytes = rank.way.sent_bytes(rank.way.dispatch(rank.layer, tokens, counts), sum_in)
    sent = [int(value) for value in slowest([float(there_bytes), float(back_bytes)], device)]
    figures = {"there_ms": there, "products_ms": products, "back_ms": back, "call_ms": calls, "graph_ms": graph_ms}
    return Point(way=way, sum_in=dtype, tokens=each, there_bytes=sent[0], back_bytes=sent[1], **figures)
