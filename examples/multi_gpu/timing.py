"""What a call takes on several GPUs: dispatch, experts and combine apart, all of it eagerly, and as
a CUDA graph.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from statistics import median

import torch
import torch.distributed as dist

WARMUP = 5
CALLS = 30
# some 2 ms, that a GPU sleeps while its host launches what is timed
AHEAD_CYCLES = 4_000_000


def timed(steps: Callable[[], Iterable], with_host: bool) -> list[float]:
    """Return the median ms of each step of a call, of the slowest rank.

    All ranks begin together. with_host: launching counts.
    """
    together = torch.zeros(1, device="cuda")
    calls = []
    for _ in range(WARMUP + CALLS):
        dist.barrier()
        torch.cuda.synchronize()
        if not with_host:
            torch.cuda._sleep(AHEAD_CYCLES)
            dist.all_reduce(together)  # hosts leave the barrier some time apart
        calls.append(step_times(steps))

    return slowest_medians(calls[WARMUP:])


def step_times(steps: Callable[[], Iterable]) -> list[float]:
    """Return the ms of each step of one call on this rank."""
    events = [recorded_event()]
    for _ in steps():
        events.append(recorded_event())
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in pairwise(events)]


def recorded_event() -> torch.cuda.Event:
    """Return an event that stands in the current stream behind what was launched so far."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def measure(steps: Callable[[], Iterable], as_graph: bool) -> list[float]:
    """Return the ms of dispatch, experts, combine, a call, and, if wanted, a call as a CUDA graph.

    steps: a call of a way.
    """

    def all_steps() -> list:
        return [list(steps())]

    times = timed(steps, with_host=False)
    times += timed(all_steps, with_host=True)
    if as_graph:
        graph = captured(all_steps)
        times += timed(lambda: [graph.replay()], with_host=False)
    return times


def graph_us(models: dict[str, Callable], rounds: int, layers: int) -> dict[str, float]:
    """Return us a layer of each model as a CUDA graph: the median of its replays, of the slowest
    rank. The models take turns, so that a change of the clock meets all of them.
    """
    graphs = [captured(model) for model in models.values()]
    ms_of_rounds = []
    for _ in range(rounds):
        ms_of_rounds.append([replay_ms(graph) for graph in graphs])

    medians = slowest_medians(ms_of_rounds)
    us = {}
    for name, ms in zip(models, medians, strict=True):
        us[name] = ms * 1000 / layers
    return us


def replay_ms(graph: torch.cuda.CUDAGraph) -> float:
    """Return the ms of a replay that begins on all ranks together.

    Hosts leave the barrier some time apart. That is little beside the many layers of such a graph,
    so this does without what `timed` does about it for one short call.
    """
    dist.barrier()
    begin = recorded_event()
    graph.replay()
    end = recorded_event()
    end.synchronize()
    return begin.elapsed_time(end)


def slowest_medians(ms_of_rounds: list[list[float]]) -> list[float]:
    """Return the median over rounds of each time, of the rank where it is greatest."""
    rounds_of_each = zip(*ms_of_rounds, strict=True)
    medians = [median(ms) for ms in rounds_of_each]
    slowest = torch.tensor(medians, device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.tolist()


def captured(call: Callable) -> torch.cuda.CUDAGraph:
    """Return the graph of what a function launches, which has run once before and is replayed
    twice.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    dist.barrier()

    graph = torch.cuda.CUDAGraph()
    # NCCL's watchdog asks for events meanwhile
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        call()
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    return graph
