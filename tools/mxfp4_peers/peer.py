"""A peer: somebody's kernels for the layer, with weights prepared as a server does once."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import torch
import triton
from batch import Batch
from moebench.core.provenance import cuda_driver
from moebench.judging.tolerances import matched_ratios
from moebench.reports.layer_times import PeerPoint

CALLS = 20  # in a graph
REPEATS = 15  # replays of the graph, of which the median is printed
FLUSHED_BYTES = 256_000_000


@dataclass(frozen=True)
class Peer:
    """Kernels with all arguments of a call but the output."""

    name: str
    call: Callable[[torch.Tensor], None]  # writes the output that it is given
    prepare_ms: float = 0.0  # ms of preparing the weights


def timed(function: Callable) -> tuple[object, float]:
    """Return a function's result, and the ms that it took on host and device."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = function()
    torch.cuda.synchronize()
    return result, (time.perf_counter() - start) * 1e3


def graph_ms(call: Callable[[], None]) -> float:
    """Return the median time in ms of a call in a graph of CALLS calls."""
    call()  # the first call may compile, tune and allocate
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()

    times = []
    for _ in range(REPEATS):
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / CALLS)
    return sorted(times)[REPEATS // 2]


def time_without_flush(peer: Peer, output: torch.Tensor) -> float:
    """Return the ms of a call after a flush of L2, less those of the flush."""
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device="cuda")

    def flush_and_call() -> None:
        flushed.zero_()
        peer.call(output)

    return graph_ms(flush_and_call) - graph_ms(flushed.zero_)


def point_of(peer: Peer, key: str, batch: Batch, card: int) -> PeerPoint:
    """Compare a peer's output with the reference, time a call, and return both."""
    output = torch.full_like(batch.expected, float("nan"))
    peer.call(output)
    matched = matched_ratios(output, batch.expected)
    ms = time_without_flush(peer, output)
    return PeerPoint(
        gpu=torch.cuda.get_device_name(),
        card=card,
        driver=cuda_driver(),
        torch=torch.__version__,
        triton=triton.__version__,
        date=datetime.now(UTC).date().isoformat(),
        definition=key,
        tokens=len(batch.expected),
        peer=peer.name,
        us=round(1e3 * ms, 2),
        prepared_ms=round(peer.prepare_ms, 2),
        matched=matched,
    )
