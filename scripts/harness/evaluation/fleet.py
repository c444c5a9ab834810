"""The cells of a run on a Ray cluster, whose nodes judge them as a run on one machine does.

Ray starts an actor on each device, which is a process, and notices what dies. An actor lives as long as the run, since
its start takes longer than most cells to judge, and is given workloads one by one, so that no device waits for another.
"""

import os
import signal
import socket
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

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
    """What actors run on. options: Ray's for each of them; slots: how many there can be at once.

    here: they are this machine's, and this process sees the same GPUs.
    """

    options: dict
    slots: int
    text: str
    here: bool = False


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """A connection to the cluster, or without an address to this machine's, which is started where there is none.

    Ctrl-C ends it here, and Ray then ends the actors. Raises CannotRun without Ray and without a cluster.
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


class Judge:
    """An actor: one device, on which it judges whatever it is given, in the order in which that comes.

    solutions: by geometry and name. notes: by geometry, as `selection.first_uses` has them. conditions: by geometry,
    what `run.judging` takes beside what is known here.
    """

    def __init__(
        self,
        solutions: dict[str, dict[str, Solution]],
        notes: dict[str, dict[str, str]],
        conditions: dict[str, dict],
    ):
        self.solutions, self.notes, self.conditions = solutions, notes, conditions
        self.geometry, self.opened = None, ExitStack()

    def judge(self, cells: Cells) -> run.Judged:
        if cells.geometry != self.geometry:
            self.open(cells.geometry)
        return self.judge_workload(cells.label, cells.workload, cells.names)

    def open(self, geometry: str) -> None:
        """Make ready for a definition, in place of the one before."""
        self.close()
        packed, cache = self.solutions[geometry], get_fib_cache_path()
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / "fleet.lock"):  # once a node, not once a process
            workloads.make(geometry)
            build_slow(packed, self.notes[geometry], print)
        here = {"device": device_here(), "host": provenance.host()}
        self.judge_workload = self.opened.enter_context(
            run.judging(geometry, packed, **self.conditions[geometry], **here)
        )
        self.geometry = geometry

    def close(self) -> None:
        self.geometry = None
        self.opened.close()


def outcomes(
    cells: list[Cells],
    fleet: Fleet,
    solutions: dict[str, dict[str, Solution]],
    notes: dict[str, dict[str, str]],
    conditions: dict[str, dict],
    say: Say,
) -> Iterator[list[tuple[Cells, run.Judged]]]:
    """The cells and what became of them, as they come: a list of all that have come since the last one.

    solutions, notes, conditions: see `Judge`. What an actor was at when it died is tried again, each solution alone,
    and lost when that fails too; another actor takes its place.
    """
    import ray

    create = ray.remote(Judge).options(**fleet.options)
    known = ray.put(solutions), notes, conditions
    waiting, tries = deque(cells), Counter()
    given = {}  # actor -> (result to come, cells) in the order in which they were given to it

    def give(actor) -> None:
        ahead = len(waiting) > 2 * fleet.slots  # the next one already, so that it does not wait for this process
        while waiting and len(given[actor]) < 1 + ahead:
            given[actor].append((actor.judge.remote(waiting[0]), waiting.popleft()))

    def start() -> None:
        actor = create.remote(*known)
        given[actor] = deque()
        give(actor)

    def collect(actor) -> list[tuple[Cells, run.Judged]]:
        """Its result, or what is lost by its death, and what it does next. Ray ends an actor that nothing refers to."""
        result, cells = given[actor].popleft()
        try:
            arrived = [(cells, ray.get(result))]
        except ray.exceptions.RayError as error:
            waiting.extendleft(reversed([not_begun for _, not_begun in given.pop(actor)]))
            ray.kill(actor)
            arrived = []
            for name in cells.names:
                alone = replace(cells, names=(name,))
                tries[cells.geometry, cells.workload.uuid, name] += 1
                if tries[cells.geometry, cells.workload.uuid, name] < TRIES:
                    say(f"{cells.label}  {name}  is tried again: {type(error).__name__}")
                    waiting.append(alone)
                else:
                    arrived.append((alone, run.Judged(cells.label, {}, lost={name: str(error)})))
            if waiting:
                start()
            return arrived
        give(actor)
        if not given[actor]:
            del given[actor]
            actor.close.remote()
        return arrived

    while waiting and len(given) < fleet.slots:
        start()
    while given:
        results = {work[0][0]: actor for actor, work in given.items()}
        ray.wait(list(results), num_returns=1)
        ready, _ = ray.wait(list(results), num_returns=len(results), timeout=0)
        arrived = [outcome for result in ready for outcome in collect(results.pop(result))]
        del results  # and its references to actors
        if arrived:
            yield arrived
