"""The cells of a run as tasks of a Ray cluster, whose nodes judge them as a run on one machine does.

Ray places the tasks, starts their processes and notices what dies. A task is a batch of cells and not one, since on a
GPU it is a process of its own, which takes longer to start than most cells to judge; it hands over each result at once.
"""

import math
import os
import signal
import socket
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

import torch
from filelock import FileLock
from flashinfer_bench import Solution, Workload
from flashinfer_bench.env import get_fib_cache_path

from harness.core import provenance
from harness.core.errors import CannotRun, UserError
from harness.core.interruption import on_interrupt
from harness.core.names import counted
from harness.evaluation import run
from harness.evaluation.calling import device_here, first_line
from harness.evaluation.selection import Device, Say, build_slow, survey
from harness.operators import workloads

TRIES = 2
# Ray 2.60 sends no token to an explicit address unless this is set, and its error does not mention tokens.
TOKEN_HINT = "; if its nodes were started with a token, have the same one here and set RAY_AUTH_MODE=token"


@dataclass(frozen=True)
class Cells:
    """A workload, and the solutions to judge on it in one go."""

    geometry: str
    label: str
    workload: Workload
    names: tuple[str, ...]


def names_of(some: list[Cells]) -> set[str]:
    """Solutions that are to be judged."""
    return {name for cells in some for name in cells.names}


@dataclass(frozen=True)
class Fleet:
    """What tasks run on. options: Ray's for each of them; slots: how many run at once.

    here: they are this machine's, and this process sees the same GPUs.
    """

    options: dict
    slots: int
    text: str
    here: bool = False


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """A connection to the cluster, or without an address to this machine's, which is started where there is none.

    Ctrl-C ends it here, and Ray then ends the tasks. Raises CannotRun without Ray and without a cluster.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise CannotRun("--ray: Ray is not installed: run `make setup-fleet`, or pip install '.[fleet]'") from error
    if address:
        check_address(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address=address, logging_level="ERROR", include_dashboard=False if address is None else None)
    except (ConnectionError, ValueError, RuntimeError) as error:
        hint = TOKEN_HINT if address and "RAY_AUTH_MODE" not in os.environ else ""
        raise CannotRun(f"--ray {address or 'on this machine'}: {first_line(error)}{hint}") from error
    try:
        with on_interrupt(signal.default_int_handler):
            yield
    finally:
        ray.shutdown()


def check_address(address: str) -> None:
    """Raise UserError for what is no HOST:PORT, CannotRun where nobody answers: Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise UserError(f"--ray: got {address!r}, want HOST:PORT of a cluster's head, as `ray start` prints it")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise CannotRun(f"--ray {address}: nobody answers there: {first_line(error)}") from error


def fleet_of(gpu: str | None) -> Fleet:
    """The GPUs of the cluster that are of this kind, as Ray calls it (H200), or of the only one; CPUs without any.

    Raises UserError for a kind that is not there, and where there are several and none is named.
    """
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    nodes = [node["Resources"] for node in alive]
    here = {node["NodeManagerHostname"] for node in alive} == {socket.gethostname()}
    here = here and torch.cuda.device_count() == sum(node.get("GPU", 0) for node in nodes)
    kinds = defaultdict(list)  # kind -> GPUs of each node
    for node in nodes:
        label = next((name for name in node if name.startswith("accelerator_type:")), "accelerator_type:unknown")
        if node.get("GPU"):
            kinds[label.partition(":")[2]].append(int(node["GPU"]))
    listed = ", ".join(f"{kind} ({sum(counts)})" for kind, counts in sorted(kinds.items())) or "no GPU"
    if gpu and gpu not in kinds:
        raise UserError(f"--gpu: got {gpu!r}, the cluster has: {listed}")
    if len(kinds) > 1 and not gpu:
        raise UserError(f"--ray: the cluster has {listed}: name one with --gpu; a table never mixes them")
    if not kinds:
        slots = int(sum(node.get("CPU", 0) for node in nodes))
        return Fleet({"num_cpus": 1}, slots, f"{slots} CPUs of {counted(len(nodes), 'node')}", here)
    kind, counts = gpu or next(iter(kinds)), kinds[gpu or next(iter(kinds))]
    pinned = {} if kind == "unknown" else {"accelerator_type": kind}
    text = f"{sum(counts)} {kind} GPUs of {counted(len(counts), 'node')}"
    return Fleet({"num_gpus": 1} | pinned, sum(counts), text, here)


def surveyed(fleet: Fleet, modules: list[str]) -> Device:
    """As `selection.survey`, of one of the fleet's devices. Raises CannotRun where that fails."""
    if fleet.here:  # saves a task, whose process takes seconds to start
        return survey(modules)
    import ray

    try:
        return ray.get(ray.remote(survey).options(**fleet.options).remote(modules))
    except ray.exceptions.RayError as error:
        last = str(error).strip().splitlines()[-1]  # those above say where
        raise CannotRun(f"--ray: a node cannot run tasks of this repository: {last}") from error


def judge_batch(
    batch: list[Cells],
    solutions: dict[str, dict[str, Solution]],
    notes: dict[str, str],
    conditions: dict[str, dict],
) -> Iterator[run.Judged]:
    """The task that judges some cells, one definition's after the other's.

    solutions: by geometry and name. notes: as `selection.first_uses` has them. conditions: by geometry, what
    `run.judging` takes beside what is known here.
    """
    here, cache = {"device": device_here(), "host": provenance.host()}, get_fib_cache_path()
    cache.mkdir(parents=True, exist_ok=True)
    for geometry, group in groupby(batch, key=attrgetter("geometry")):
        part, packed = list(group), solutions[geometry]
        with FileLock(cache / "fleet.lock"):  # once a node, not once a process
            workloads.make(geometry)
            build_slow(packed, {name: note for name, note in notes.items() if name in names_of(part)}, print)
        with run.judging(geometry, packed, **conditions[geometry], **here) as judge:
            for cells in part:
                yield judge(cells.label, cells.workload, cells.names)


def batches(cells: list[Cells], slots: int) -> list[list[Cells]]:
    """In their order, about as many batches as slots, equal by the number of solutions on workloads.

    Neighbours in a batch that are of one workload are judged in one go, with one run of the reference.
    """
    size = math.ceil(sum(len(piece.names) for piece in cells) / slots)
    found, filled = [], size
    for piece in cells:
        if filled >= size:
            found.append([])
            filled = 0
        filled += len(piece.names)
        last = found[-1][-1] if found[-1] else None
        if last and last.workload.uuid == piece.workload.uuid:
            found[-1][-1] = replace(last, names=last.names + piece.names)
        else:
            found[-1].append(piece)
    return found


def outcomes(
    cells: list[Cells],
    fleet: Fleet,
    solutions: dict[str, dict[str, Solution]],
    notes: dict[str, str],
    conditions: dict[str, dict],
    say: Say,
) -> Iterator[list[tuple[Cells, run.Judged]]]:
    """The cells and what became of them, as they come: a list of all that have come since the last one.

    solutions, notes, conditions: see `judge_batch`. What a task was at when it died is tried again, each solution
    alone, and lost when that fails too; the rest of its batch goes on as a batch.
    """
    import ray

    task = ray.remote(judge_batch).options(**fleet.options, max_retries=0)  # Ray would run the whole batch again
    stored, tries, running = ray.put(solutions), Counter(), {}

    def submit(batch: list[Cells]) -> None:
        running[task.remote(batch, stored, notes, conditions)] = list(batch)

    for batch in batches(cells, fleet.slots):
        submit(batch)
    while running:
        ray.wait(list(running), num_returns=1)
        ready, _ = ray.wait(list(running), num_returns=len(running), timeout=0)
        arrived = []
        for stream in ready:
            left = running[stream]
            try:
                outcome = ray.get(next(stream))
                arrived.append((left.pop(0), outcome))
            except StopIteration:
                del running[stream]
            except ray.exceptions.RayError as error:
                del running[stream]
                if not left:  # it died after its last result
                    continue
                failed, *rest = left
                if rest:
                    submit(rest)
                for name in failed.names:
                    alone = replace(failed, names=(name,))
                    tries[failed.geometry, failed.workload.uuid, name] += 1
                    if tries[failed.geometry, failed.workload.uuid, name] < TRIES:
                        say(f"{failed.label}  {name}  is tried again: {type(error).__name__}")
                        submit([alone])
                    else:
                        arrived.append((alone, run.Judged(failed.label, {}, lost={name: str(error)})))
        if arrived:
            yield arrived
