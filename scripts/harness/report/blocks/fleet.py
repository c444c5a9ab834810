"""The table of docs/fleet.md: what a cluster would make of the recorded jobs, by a simulation of the schedule."""

import heapq
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from statistics import median

from flashinfer_bench import Trace

from harness.core import paths
from harness.core.provenance import of_trace
from harness.evaluation.fleet import Cells
from harness.operators.catalogue import FULL, definition_name
from harness.report.table import Table
from harness.results import trace_files

START = 15.0  # s that a process takes before it judges; assumed
WRITE = 0.5e-3  # s for each trace in a file that is read and written again; assumed
CAPTION = (
    f"A simulation: cell times from traces/; {START:.0f} s to start a process and {1000 * WRITE:g} ms for each "
    "trace in a file that is written again are assumptions. idle: share of the GPUs' time in which no cell is judged. "
    "write lag: s after the last cell until its trace is in the file, if that is written again for each result, or "
    "once for all that have come."
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
    """Workload's uuid -> Times, by the times between the traces of one command: the last that judged the most at once.

    The first workload is left out, which has what is done once in a process.
    """
    by_command = defaultdict(list)
    for trace in sorted(traces, key=lambda trace: trace.evaluation.timestamp):
        by_command[of_trace(trace).command].append(trace)
    found = max(by_command.values(), key=lambda run: (len({t.solution for t in run}), run[-1].evaluation.timestamp))
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
        uuid: Times(max(0.0, seconds - typical[uuid]), {name: own[uuid].get(name, typical[uuid]) for name in solutions})
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
) -> tuple[float, list[float]]:
    """Each goes to the GPU that is free first: s in which cells are judged; when each result comes, in order.

    actors: a GPU's process is started once, and not for each.
    """
    free, busy, arrivals = [(0.0, START)] * gpus, 0.0, []  # when, and what it takes then to begin
    for piece in cells:
        at, start = heapq.heappop(free)
        seconds = times[piece.geometry, piece.workload.uuid].of(piece.names)
        at, busy = at + start + seconds, busy + seconds
        arrivals.append(at)
        heapq.heappush(free, (at, 0.0 if actors else START))
    return busy, sorted(arrivals)


def written(arrivals: list[float], together: bool) -> float:
    """When the last result is in the trace file, which is written again for each result, or for all that wait."""
    at, done = 0.0, 0
    while done < len(arrivals):
        at = max(at, arrivals[done])
        done = bisect_right(arrivals, at) if together else done + 1
        at += WRITE * done
    return at


def block() -> str:
    """Markdown: makespan, idle share and the trace file, by number of cells, of GPUs and what a process judges."""
    once, times = recorded()
    sections = []
    for scale in SCALES:
        cells = once * scale
        count = sum(len(piece.names) for piece in cells)
        apart = [replace(piece, names=(name,)) for piece in cells for name in piece.names]
        rows = []
        for gpus in GPUS:
            for kind, pieces, actors in (("one cell", apart, False), ("workloads from the queue", cells, True)):
                busy, arrivals = schedule(pieces, times, gpus, actors)
                end = arrivals[-1]
                lag = [written(arrivals, together) - end for together in (False, True)]
                lags = (f"{s:.0f}" if s >= 10 else f"{s:.1f}" for s in lag)
                rows.append([count, gpus, kind, f"{end:.0f}", f"{1 - busy / (gpus * end):.0%}", *lags])
        sections.append(rows)
    head = ["cells", "GPUs", "a process judges", "makespan, s", "idle", "write lag, each", "write lag, together"]
    return Table(head, sections, words=3, caption=CAPTION).markdown()
