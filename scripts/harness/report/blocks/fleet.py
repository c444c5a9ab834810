"""The table of docs/fleet.md: what a cluster would make of the recorded jobs, by a simulation of the schedule."""

import heapq
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from operator import itemgetter
from statistics import median

from flashinfer_bench import Trace

from harness.core import paths
from harness.core.provenance import of_trace
from harness.judging.fleet import Cells, taken
from harness.operators.catalogue import FULL, definition_name
from harness.report.table import Table
from harness.results import trace_files

START = 15.0  # s that a process takes before it judges; assumed
WRITE = 0.5e-3  # s for each trace in a file that is read and written again; assumed
CHANGE = 9.0  # s until a process judges another definition; seen on an H100
CAPTION = (
    f"A simulation: cell times from traces/; {START:.0f} s to start a process and {1000 * WRITE:g} ms for each trace "
    f"in a file that is written again are assumptions, {CHANGE:.0f} s to go on to another definition was seen once. "
    "idle: share of the GPUs' time in which no cell is judged. write lag: s after the last cell until its trace is in "
    "the file, if that is written again for each result, or once for all that have come."
)
GPUS = (2, 64, 1000)
SCALES = (1, 100)  # the recorded jobs, and a hundred times as many cells


@dataclass(frozen=True)
class Times:
    """Seconds that a workload takes by itself, for inputs and the reference, and that each solution adds."""

    shared: float
    own: dict[str, float]

    def of(self, names: Iterable[str]) -> float:
        return self.shared + sum(self.own[name] for name in names)


def measured(traces: list[Trace]) -> dict[str, Times]:
    """Workload's uuid -> Times, by the times between the traces of one command on one GPU.

    It is the last of those that judged the most solutions. The first workload is left out, which has what is done once
    in a process.
    """
    by_run = defaultdict(list)
    for trace in sorted(traces, key=lambda trace: trace.evaluation.timestamp):
        by = of_trace(trace)
        by_run[by.command, by.hardware, by.host].append(trace)
    found = max(by_run.values(), key=lambda run: (len({t.solution for t in run}), run[-1].evaluation.timestamp))
    solutions = {trace.solution for trace in found}
    shared, own = {}, defaultdict(dict)
    for before, trace in pairwise(found):
        earlier, later = (datetime.fromisoformat(t.evaluation.timestamp) for t in (before, trace))
        seconds, uuid = (later - earlier).total_seconds(), trace.workload.uuid
        if before.workload.uuid == uuid:
            own[uuid][trace.solution] = seconds
        else:
            shared[uuid] = seconds
    typical = {uuid: median(of.values()) for uuid, of in own.items()}
    return {
        uuid: Times(
            max(0.0, seconds - typical.get(uuid, 0.0)),
            {name: own[uuid].get(name, typical.get(uuid, 0.0)) for name in solutions},
        )
        for uuid, seconds in shared.items()
        if len(own[uuid]) == len(solutions) - 1
    }


def recorded() -> tuple[list[Cells], dict[tuple[str, str], Times]]:
    """Every workload with its solutions, in the order in which `run --ray` gives them away, and how long each takes."""
    cells, times = [], {}
    for geometry in FULL:
        traces = trace_files.load(paths.trace_file(definition_name(geometry)))
        known = measured(traces) if traces else {}
        workloads = {trace.workload.uuid: trace.workload for trace in traces if trace.workload.uuid in known}
        for uuid, workload in sorted(workloads.items(), key=lambda item: -item[1].axes["seq_len"]):
            times[geometry, uuid] = known[uuid]
            cells.append(Cells(geometry, f"T={workload.axes['seq_len']}", workload, tuple(sorted(known[uuid].own))))
    return cells, times


def schedule(
    cells: list[Cells], times: dict[tuple[str, str], Times], gpus: int, actors: bool
) -> tuple[float, list[tuple[float, int]]]:
    """Each GPU takes the next when it is free: s in which cells are judged; when so many traces come, in order.

    actors: a GPU's process is started once, and is made ready again for another definition; else once for each.
    """
    free, busy, arrivals, waiting = [(0.0, gpu) for gpu in range(gpus)], 0.0, [], defaultdict(deque)
    for piece in cells:
        waiting[piece.geometry].append(piece)
    ready_for: dict[int, str] = {}
    for _ in cells:
        at, gpu = heapq.heappop(free)
        mine = ready_for.pop(gpu, None) if actors else None
        piece = taken(waiting, mine, ready_for.values() if actors else ())
        if not actors or mine is None:
            at += START
        elif mine != piece.geometry:
            at += CHANGE
        ready_for[gpu] = piece.geometry
        seconds = times[piece.geometry, piece.workload.uuid].of(piece.names)
        at, busy = at + seconds, busy + seconds
        arrivals.append((at, len(piece.names)))
        heapq.heappush(free, (at, gpu))
    return busy, sorted(arrivals)


def written(arrivals: list[tuple[float, int]], together: bool) -> float:
    """When the last trace is in the file, which is written again for each arrival, or for all that wait."""
    at, done, held = 0.0, 0, 0
    while done < len(arrivals):
        at = max(at, arrivals[done][0])
        upto = bisect_right(arrivals, at, key=itemgetter(0)) if together else done + 1
        held += sum(count for _, count in arrivals[done:upto])
        at, done = at + WRITE * held, upto
    return at


def block() -> str:
    """Markdown: makespan, idle share and the trace file, by number of cells, of GPUs and what a process judges."""
    once, times = recorded()
    sections = []
    for scale in SCALES:
        cells = [piece for piece in once for _ in range(scale)]
        count = sum(len(piece.names) for piece in cells)
        apart = [replace(piece, names=(name,)) for piece in cells for name in piece.names]
        rows = []
        for gpus in GPUS:
            for kind, pieces, actors in (("one cell", apart, False), ("workloads from the queue", cells, True)):
                busy, arrivals = schedule(pieces, times, gpus, actors)
                end = arrivals[-1][0]
                lag = [written(arrivals, together) - end for together in (False, True)]
                lags = (f"{s:.0f}" if s >= 10 else f"{s:.1f}" for s in lag)
                rows.append([count, gpus, kind, f"{end:.0f}", f"{1 - busy / (gpus * end):.0%}", *lags])
        sections.append(rows)
    head = ["cells", "GPUs", "a process judges", "makespan, s", "idle", "write lag, each", "write lag, together"]
    return Table(head, sections, words=3, caption=CAPTION).markdown()
