"""The cells of a run on a Ray cluster, whose nodes judge them as a run on one machine does.

Ray starts an actor on each device, which is a process, and notices what dies. An actor lives as long as the run, since
its start takes longer than most cells to judge, and is given workloads one by one, so that no device waits for another.
"""

import os
import signal
import socket
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator
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
from harness.judging import run
from harness.judging.calling import device_here, first_line
from harness.judging.selection import Device, Say, build_slow, survey
from harness.operators import workloads

TRIES = 2
FAILED_STARTS = 3  # of actors in a row, for each slot, until the run is given up
SILENCE = 60.0  # s without a result, after which it is looked whether there are devices at all
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
    if gpu == "unknown" and len(kinds) > 1:
        raise UserError(f"--gpu: got 'unknown', which Ray cannot ask for alone, the cluster has: {listed}")
    if not kinds:
        slots = int(sum(node.get("CPU", 0) for node in nodes))
        if not slots:
            raise CannotRun("--ray: the cluster has neither a GPU nor a CPU to judge on")
        return Fleet({"num_cpus": 1}, slots, f"{slots} CPUs of {counted(len(nodes), 'node')}", here)
    kind, counts = gpu or next(iter(kinds)), kinds[gpu or next(iter(kinds))]
    pinned = {} if kind == "unknown" else {"accelerator_type": kind}
    text = f"{sum(counts)} {kind} GPUs of {counted(len(counts), 'node')}"
    return Fleet({"num_gpus": 1, "num_cpus": 0} | pinned, sum(counts), text, here)


def surveyed(fleet: Fleet, modules: list[str]) -> Device:
    """As `selection.survey`, of one of the fleet's devices. Raises CannotRun where that fails."""
    if fleet.here:  # saves a task, whose process takes seconds to start
        return survey(modules)
    import ray

    try:
        return ray.get(ray.remote(survey).options(**fleet.options).remote(modules))
    except ray.exceptions.RayError as error:
        raise CannotRun(f"--ray: a node cannot run tasks of this repository: {last_line(error)}") from error


def last_line(error: Exception) -> str:
    """Of Ray's; those above say where."""
    return str(error).strip().splitlines()[-1]


def available(fleet: Fleet) -> bool:
    """Whether the cluster still has what the fleet's actors need."""
    import ray

    return ray.cluster_resources().get("GPU" if "num_gpus" in fleet.options else "CPU", 0) > 0


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

    def ready(self) -> None:
        """Answers when the actor runs."""

    def judge(self, cells: Cells) -> run.Judged:
        if cells.geometry != self.geometry:
            self.open(cells.geometry)
        return self.judge_workload(cells.label, cells.workload, cells.names)

    def open(self, geometry: str) -> None:
        """Make ready for a definition, in place of the one before."""
        self.close()
        packed, cache = self.solutions[geometry], get_fib_cache_path()
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / "fleet.lock"):  # one process of a node after the other: the first one does the work
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


def taken(waiting: dict[str, deque[Cells]], mine: str | None, others: Collection[str]) -> Cells:
    """The next one out of the queue, by definition, for an actor that is ready for `mine`, as a change takes seconds.

    That is one of its own definition, else of the first that no other actor is at, else of the first.
    """
    left = [geometry for geometry, cells in waiting.items() if cells]
    taken_by_others = set(others)
    geometry = next((g for g in left if g not in taken_by_others), left[0])
    return waiting[mine if waiting.get(mine) else geometry].popleft()


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
    and lost when that fails too; another actor takes its place. So is a workload whose reference failed, all together.
    Raises CannotRun where actors cannot be started.
    """
    import ray

    create = ray.remote(Judge).options(**fleet.options)
    known = ray.put(solutions), notes, conditions
    waiting, tries, failed_starts = defaultdict(deque), Counter(), 0
    for piece in cells:
        waiting[piece.geometry].append(piece)
    given = {}  # actor -> (result to come, cells; None for its start) in the order in which they were given to it
    ready_for = {}  # actor -> the definition of what it was given last

    def left() -> int:
        return sum(map(len, waiting.values()))

    def start() -> None:
        """As many actors as there is work for. None has any yet: one that is never placed must not keep it."""
        starting = sum(work[0][1] is None for work in given.values())
        for _ in range(min(left() - starting, fleet.slots - len(given))):
            actor = create.remote(*known)
            given[actor] = deque([(actor.ready.remote(), None)])

    def give(actor) -> None:
        ahead = left() > 2 * fleet.slots  # the next one already, so that it does not wait for this process
        while left() and len(given[actor]) < 1 + ahead:
            mine = ready_for.pop(actor, None)
            cells = taken(waiting, mine, ready_for.values())
            ready_for[actor] = cells.geometry
            given[actor].append((actor.judge.remote(cells), cells))
        if not given[actor]:
            del given[actor]
            ready_for.pop(actor, None)
            actor.close.remote()  # Ray ends it after that, as nothing refers to it any more

    def replaced(actor) -> None:
        """By another one, as it is dead or cannot be trusted. What was behind it is given to others."""
        for _, behind in reversed(given.pop(actor)):
            waiting[behind.geometry].appendleft(behind)
        ready_for.pop(actor, None)
        ray.kill(actor)

    def again(part: Cells, why: str) -> bool:
        """Whether it is tried again, as it was not before."""
        key = part.geometry, part.workload.uuid, part.names
        tries[key] += 1
        if tries[key] < TRIES:
            say(f"{part.label}  {', '.join(part.names)}  is tried again: {why}")
            waiting[part.geometry].append(part)
        return tries[key] < TRIES

    def collect(actor) -> list[tuple[Cells, run.Judged]]:
        """Its result, or what is lost by its death, and what it does next."""
        nonlocal failed_starts
        result, piece = given[actor].popleft()
        try:
            outcome = ray.get(result)
        except ray.exceptions.RayError as error:
            replaced(actor)
            if piece is None:
                failed_starts += 1
                if failed_starts > FAILED_STARTS * fleet.slots:
                    raise CannotRun(f"--ray: no process can be started: {last_line(error)}") from error
                return []
            parts = [replace(piece, names=(name,)) for name in piece.names]
            lost = [part for part in parts if not again(part, type(error).__name__)]
            return [(part, run.Judged(part.label, {}, lost={part.names[0]: str(error)})) for part in lost]
        failed_starts = 0
        if piece and outcome.error and again(piece, outcome.error):  # by the state of its GPU, perhaps
            replaced(actor)
            return []
        give(actor)
        return [(piece, outcome)] if piece else []

    start()
    while left() or any(work[-1][1] for work in given.values()):
        results = {work[0][0]: actor for actor, work in given.items()}
        if not ray.wait(list(results), num_returns=1, timeout=SILENCE)[0] and not available(fleet):
            say("No device of this run is left in the cluster: waiting for one. Ctrl-C keeps what is done.")
            ray.wait(list(results), num_returns=1)
        ready, _ = ray.wait(list(results), num_returns=len(results), timeout=0)
        arrived = [outcome for result in ready for outcome in collect(results.pop(result))]
        del results  # and its references to actors
        start()
        if arrived:
            yield arrived
    for actor in given:
        ray.kill(actor)  # it has not started yet
