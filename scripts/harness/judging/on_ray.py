"""A plan's cells on a Ray cluster, whose nodes judge them as this machine would.

Ray starts an actor on each device, which is a process, and notices what dies. An actor lives as long as the run, since
its start takes longer than most cells to judge, and is given cells one by one, so that no device waits for another.
"""

import os
import signal
import socket
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from filelock import FileLock
from flashinfer_bench.env import get_fib_cache_path

from harness.core import provenance
from harness.core.errors import CannotRun, UserError
from harness.core.interruption import on_interrupt
from harness.core.names import counted
from harness.judging.calling import first_line
from harness.judging.judge import Judge, Outcome
from harness.judging.plan import Cell, Plan
from harness.judging.selection import Device, Say, build_slow, dependencies, first_uses, survey
from harness.operators import workloads

TRIES = 2
FAILED_STARTS = 3  # of actors in a row, for each slot, until the run is given up
SILENCE = 60.0  # s without a result, after which it is looked whether there are devices at all
# Ray 2.60 sends no token to an explicit address unless this is set, and its error does not mention tokens.
TOKEN_HINT = "; if its nodes were started with a token, have the same one here and set RAY_AUTH_MODE=token"


@contextmanager
def connected(address: str | None, gpu: str | None) -> Iterator["Cluster"]:
    """The cluster's devices, or without an address this machine's, on which a cluster is started where there is none.

    Ctrl-C ends it here, and Ray then ends the actors. gpu: as `cluster_of` has it. Raises CannotRun without Ray and
    without a cluster.
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
            yield cluster_of(gpu)
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


def cluster_of(gpu: str | None) -> "Cluster":
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
    if len(kinds) > 1 and gpu in (None, "unknown"):  # Ray cannot ask for what it has no name for alone
        raise UserError(f"--gpu: got {gpu}, the cluster has {listed}: name one; a table never mixes them")
    if not kinds:
        slots = int(sum(node.get("CPU", 0) for node in nodes))
        if not slots:
            raise CannotRun("--ray: the cluster has neither a GPU nor a CPU to judge on")
        return Cluster({"num_cpus": 1}, slots, f"{slots} CPUs of {counted(len(nodes), 'node')}", here)
    kind, counts = gpu or next(iter(kinds)), kinds[gpu or next(iter(kinds))]
    pinned = {} if kind == "unknown" else {"accelerator_type": kind}
    text = f"{sum(counts)} {kind} GPUs of {counted(len(counts), 'node')}"
    return Cluster({"num_gpus": 1, "num_cpus": 0} | pinned, sum(counts), text, here)


@dataclass(frozen=True)
class Cluster:
    """What actors run on. options: Ray's for each of them; slots: how many there can be at once.

    here: they are this machine's, and this process sees the same GPUs.
    """

    options: dict
    slots: int
    text: str
    here: bool = False

    def survey(self) -> Device:
        """One of its devices. Raises CannotRun where that fails."""
        if self.here:  # saves a task, whose process takes seconds to start
            return survey(dependencies())
        import ray

        try:
            return ray.get(ray.remote(survey).options(**self.options).remote(dependencies()))
        except ray.exceptions.RayError as error:
            raise CannotRun(f"--ray: a node cannot run tasks of this repository: {last_line(error)}") from error

    def outcomes(self, plan: Plan, say: Say) -> Iterator[Outcome]:
        """As they come. Raises CannotRun where actors cannot be started."""
        run = Run(self, plan, say)
        run.start()
        while run.unfinished:
            yield from run.arrived()
            run.start()
        run.end()


class Actor:
    """One device, on which it judges whatever it is given, in the order in which that comes."""

    def __init__(self, plan: Plan):
        self.plan, self.judging, self.made = plan, Judge(plan, provenance.host()), set()

    def ready(self) -> None:
        """Answers when the actor runs."""

    def judge(self, cell: Cell) -> Outcome:
        if cell.geometry not in self.made:
            cache, packed = get_fib_cache_path(), self.plan.parts[cell.geometry].solutions
            cache.mkdir(parents=True, exist_ok=True)
            with FileLock(cache / "fleet.lock"):  # one process of a node after the other: the first one does the work
                workloads.make(cell.geometry)
                build_slow(packed, first_uses(packed), print)
            self.made.add(cell.geometry)
        return self.judging(cell)

    def close(self) -> None:
        self.judging.__exit__()


def last_line(error: Exception) -> str:
    """Of Ray's; those above say where."""
    return str(error).strip().splitlines()[-1]


def taken(waiting: dict[str, deque[Cell]], mine: str | None, others: Collection[str]) -> Cell:
    """The next one out of the queue, by definition, for an actor that is ready for `mine`, as a change takes seconds.

    That is one of its own definition, else of the first that no other actor is at, else of the first.
    """
    left = [geometry for geometry, cells in waiting.items() if cells]
    geometry = next((g for g in left if g not in set(others)), left[0])
    return waiting[mine if waiting.get(mine) else geometry].popleft()


class Run:
    """Which actor is at what, and what waits. An actor has no cell until it runs: a node that is dead keeps none."""

    def __init__(self, cluster: Cluster, plan: Plan, say: Say):
        import ray

        self.ray, self.cluster, self.say = ray, cluster, say
        self.create, self.plan = ray.remote(Actor).options(**cluster.options), ray.put(plan)
        self.waiting, self.tries, self.failed_starts = defaultdict(deque), Counter(), 0
        # the longest first: one that begins last would keep the others waiting
        for cell in sorted(plan, key=lambda cell: -cell.workload.axes["seq_len"]):
            self.waiting[cell.geometry].append(cell)
        self.given = {}  # actor -> (result to come, cell; None for its start)
        self.ready_for = {}  # actor -> the definition of what it was given last

    @property
    def left(self) -> int:
        return sum(map(len, self.waiting.values()))

    @property
    def unfinished(self) -> bool:
        return self.left > 0 or any(cell for _, cell in self.given.values())

    def start(self) -> None:
        """As many actors as there is work for, and place."""
        starting = sum(cell is None for _, cell in self.given.values())
        for _ in range(min(self.left - starting, self.cluster.slots - len(self.given))):
            actor = self.create.remote(self.plan)
            self.given[actor] = actor.ready.remote(), None

    def arrived(self) -> Iterator[Outcome]:
        """What actors are done with; no reference to an actor stays here, which would keep it on its device."""
        for actor in self.waited_for():
            yield from self.collect(actor)

    def waited_for(self) -> list:
        """Actors that are done with something, or dead."""
        results = {result: actor for actor, (result, _) in self.given.items()}
        if not self.ray.wait(list(results), num_returns=1, timeout=SILENCE)[0]:
            kind = "GPU" if "num_gpus" in self.cluster.options else "CPU"
            if not self.ray.cluster_resources().get(kind):
                self.say("No device of this run is left in the cluster: waiting for one. Ctrl-C keeps what is done.")
        ready, _ = self.ray.wait(list(results), num_returns=len(results), timeout=0)
        return [results[result] for result in ready]

    def collect(self, actor) -> Iterator[Outcome]:
        """Its outcome, or what is lost by its death; it gets its next cell, or another actor its place."""
        result, cell = self.given.pop(actor)
        geometry = self.ready_for.pop(actor, None)
        try:
            outcome = self.ray.get(result)
        except self.ray.exceptions.RayError as error:
            self.ray.kill(actor)
            if cell is None:
                self.failed_starts += 1
                if self.failed_starts > FAILED_STARTS * self.cluster.slots:
                    raise CannotRun(f"--ray: no process can be started: {last_line(error)}") from error
                return
            for part in (replace(cell, names=(name,)) for name in cell.names):
                if not self.again(part, type(error).__name__):
                    yield Outcome(part, lost={part.names[0]: str(error)})
            return
        self.failed_starts = 0
        if cell and outcome.error and self.again(cell, outcome.error):  # by the state of its GPU, perhaps
            self.ray.kill(actor)
            return
        if self.left:
            following = taken(self.waiting, geometry, self.ready_for.values())
            self.given[actor] = actor.judge.remote(following), following
            self.ready_for[actor] = following.geometry
        else:
            actor.close.remote()  # Ray ends it after that, as nothing refers to it any more
        if cell:
            yield outcome

    def again(self, cell: Cell, why: str) -> bool:
        """Whether it is tried again, as it was not before."""
        key = cell.geometry, cell.workload.uuid, cell.names
        self.tries[key] += 1
        if self.tries[key] < TRIES:
            self.say(f"{cell.label}  {', '.join(cell.names)}  is tried again: {why}")
            self.waiting[cell.geometry].append(cell)
        return self.tries[key] < TRIES

    def end(self) -> None:
        for actor in self.given:
            self.ray.kill(actor)  # it has not started yet
