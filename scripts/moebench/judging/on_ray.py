"""A plan's tasks on a Ray cluster, whose nodes evaluate them as this machine would.

An actor, a process on a device, lives as long as the run, and is given tasks one by one, so no
device waits. Ray's ActorPool does not say which task died with an actor, and gives tasks to actors
that have not started, which a dead node keeps.
"""

import os
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from filelock import FileLock
from flashinfer_bench.env import get_fib_cache_path

from moebench.core import provenance
from moebench.core.errors import CannotRun, UserError
from moebench.core.interruption import on_interrupt
from moebench.judging import dataset
from moebench.judging.calling import first_line
from moebench.judging.evaluate import Evaluator, Outcome
from moebench.judging.plan import Plan, Task
from moebench.judging.selection import Device, Say, build_slow, survey
from moebench.operators import workloads

TRIES = 2
FAILED_STARTS = 3  # of actors in a row, for each slot, until the run is given up
SECONDS = 10  # to reach a cluster's head; Ray itself tries for minutes
NOT_INSTALLED = "--ray: Ray is not installed: run `make setup-fleet`, or pip install '.[fleet]'"
NEITHER = "--ray: the cluster has neither a GPU nor a CPU to evaluate on"


@contextmanager
def connected(address: str | None) -> Iterator["Cluster"]:
    """The cluster's devices; without an address this machine's, on which a cluster is started where
    there is none.

    Ctrl-C ends it here, and Ray then ends the actors. Raises UserError for what is no HOST:PORT,
    CannotRun without Ray.
    """
    try:
        import ray  # pyright: ignore[reportMissingImports]  an extra
    except ModuleNotFoundError as error:
        raise CannotRun(NOT_INSTALLED) from error

    if address is not None:
        check_address(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        dashboard = False if address is None else None
        ray.init(address=address, logging_level="ERROR", include_dashboard=dashboard)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise CannotRun(f"--ray {address or 'on this machine'}: {first_line(error)}") from error

    try:
        with on_interrupt(signal.default_int_handler):
            yield cluster()
    finally:
        ray.shutdown()


def check_address(address: str) -> None:
    """Raise UserError for what is no HOST:PORT, CannotRun where nobody answers."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise UserError(
            f"--ray: got {address!r}, want HOST:PORT of a cluster's head, as `ray start` prints it"
        )
    try:
        socket.create_connection((host, int(port)), timeout=SECONDS).close()
    except (OSError, OverflowError) as error:
        raise CannotRun(f"--ray {address}: nobody answers there: {first_line(error)}") from error


def cluster() -> "Cluster":
    """Return the GPUs of the cluster, or its CPUs where it has none.

    Raises UserError where GPUs are of several kinds.
    """
    import ray  # pyright: ignore[reportMissingImports]  an extra

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = gpus_by_kind(nodes)
    if len(gpus) > 1:
        listed = ", ".join(f"{kind} ({count})" for kind, count in sorted(gpus.items()))
        raise UserError(
            f"--ray: the cluster has {listed}, want one kind of GPU; a table never mixes them"
        )

    for kind, count in gpus.items():
        text = f"{count} {kind}s of {len(nodes)} nodes"
        return Cluster({"num_gpus": 1, "num_cpus": 0}, count, text)

    cpus = int(sum(node.get("CPU", 0) for node in nodes))
    if not cpus:
        raise CannotRun(NEITHER)
    return Cluster({"num_cpus": 1}, cpus, f"{cpus} CPUs of {len(nodes)} nodes")


def gpus_by_kind(nodes: list[dict]) -> Counter:
    """Return how many GPUs of each kind nodes have, as Ray calls them. nodes: their resources."""
    gpus = Counter()
    for node in nodes:
        if not node.get("GPU"):
            continue
        kinds = [name for name in node if name.startswith("accelerator_type:")]
        kind = kinds[0].partition(":")[2] if kinds else "GPU"
        gpus[kind] += int(node["GPU"])
    return gpus


@dataclass(frozen=True)
class Cluster:
    """What actors run on. options: Ray's for each of them; slots: how many there can be at once."""

    options: dict
    slots: int
    text: str

    def survey(self) -> Device:
        """Return one of its devices. Raises CannotRun where that fails."""
        import ray  # pyright: ignore[reportMissingImports]  an extra

        try:
            return ray.get(ray.remote(survey).options(**self.options).remote())
        except ray.exceptions.RayError as error:
            raise CannotRun(
                f"--ray: a node cannot run tasks of this repository: {last_line(error)}"
            ) from error

    def outcomes(self, plan: Plan, say: Say) -> Iterator[Outcome]:
        """Yield outcomes as they come. Raises CannotRun where actors cannot be started."""
        yield from Run(self, plan, say).outcomes()


class Actor:
    """One device, on which it evaluates whatever it is given."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.evaluator = Evaluator(plan, provenance.host())
        self.prepared: set[str] = set()

    def ready(self) -> None:
        """Answers when the actor runs."""

    def evaluate(self, task: Task) -> Outcome:
        if task.definition not in self.prepared:
            self.prepare(task.definition)
            self.prepared.add(task.definition)
        return self.evaluator.evaluate(task)

    def prepare(self, definition: str) -> None:
        """Make tensors that are missing, and build; the first process of a node does the work."""
        part = self.plan.parts[definition]
        cache = get_fib_cache_path()
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / "fleet.lock"):
            dataset.labelled(definition, part.root)
            build_slow(part.ours, print)

    def close(self) -> None:
        self.evaluator.close()


def last_line(error: Exception) -> str:
    """Return the last line of an error of Ray's; those above say where."""
    return str(error).strip().splitlines()[-1]


@dataclass(frozen=True)
class Assignment:
    """What an actor is at: Ray's reference to the result, and the task, or None while it starts."""

    result: object
    task: Task | None


class Run:
    """Which actor is at what, and which tasks wait. An actor gets its first task once it runs, so
    that a dead node keeps none.
    """

    def __init__(self, cluster: Cluster, plan: Plan, say: Say):
        import ray  # pyright: ignore[reportMissingImports]  an extra

        self.ray = ray
        self.cluster = cluster
        self.say = say
        self.new_actor = ray.remote(Actor).options(**cluster.options)
        self.plan = ray.put(plan)
        self.waiting = in_order(plan)
        self.assignments: dict[object, Assignment] = {}
        self.tries = Counter()
        self.failed_starts = 0

    def outcomes(self) -> Iterator[Outcome]:
        """Yield outcomes as they come, until no task waits or is evaluated."""
        self.start_actors()
        while self.waiting or any(each.task for each in self.assignments.values()):
            for actor in self.wait_for_some():
                yield from self.collect(actor)
                del actor  # Ray ends it once nothing refers to it any more
            self.start_actors()

        for actor in self.assignments:
            self.ray.kill(actor)  # it has not started yet

    def wait_for_some(self) -> Iterator[object]:
        """Yield actors whose results are there, once there is one."""
        results = [each.result for each in self.assignments.values()]
        self.ray.wait(results, num_returns=1)
        done, _ = self.ray.wait(results, num_returns=len(results), timeout=0)
        for result in done:
            yield next(actor for actor, each in self.assignments.items() if each.result == result)

    def start_actors(self) -> None:
        """Start as many actors as there is work for, and place."""
        starting = sum(each.task is None for each in self.assignments.values())
        wanted = len(self.waiting) - starting
        free = self.cluster.slots - len(self.assignments)
        for _ in range(min(wanted, free)):
            actor = self.new_actor.remote(self.plan)
            self.assignments[actor] = Assignment(actor.ready.remote(), None)

    def collect(self, actor) -> list[Outcome]:
        """Return the outcome of an actor's task, or what is lost by its death; none where the actor
        has only started, or the task is tried again.

        The actor goes on with its next task, unless it is dead or its GPU may be.
        """
        assignment = self.assignments.pop(actor)
        task = assignment.task
        try:
            outcome = self.ray.get(assignment.result)
        except self.ray.exceptions.RayError as error:
            self.ray.kill(actor)
            return self.failed_start(error) if task is None else self.lost(task, error)

        self.failed_starts = 0
        if task is None:
            self.give_next(actor)
            return []

        if outcome.lost:
            why = next(iter(outcome.lost.values()))
            if self.is_tried_again(task, why):
                # that the reference did not run may be the state of its GPU
                self.ray.kill(actor)
                return []

        self.give_next(actor)
        return [outcome]

    def give_next(self, actor) -> None:
        if self.waiting:
            task = self.waiting.pop(0)
            self.assignments[actor] = Assignment(actor.evaluate.remote(task), task)
        else:
            actor.close.remote()  # Ray ends it after that

    def failed_start(self, error: Exception) -> list[Outcome]:
        """Return no outcome. Raises CannotRun after too many starts in a row that failed."""
        self.failed_starts += 1
        if self.failed_starts > FAILED_STARTS * self.cluster.slots:
            raise CannotRun(f"--ray: no process can be started: {last_line(error)}") from error
        return []

    def lost(self, task: Task, error: Exception) -> list[Outcome]:
        """Return outcomes of what is not tried again, each solution apart, after an actor died."""
        outcomes = []
        for name in task.names:
            alone = replace(task, names=(name,))
            if not self.is_tried_again(alone, type(error).__name__):
                why = f"what ran it died twice: {last_line(error)}"
                outcomes.append(Outcome(alone, lost={name: why}))
        return outcomes

    def is_tried_again(self, task: Task, why: str) -> bool:
        """Whether a task waits again, as it was not tried again before."""
        key = task.definition, task.workload.uuid, task.names
        self.tries[key] += 1
        if self.tries[key] >= TRIES:
            return False

        self.say(f"{task.label}  {', '.join(task.names)}  is tried again: {why}")
        self.waiting.append(task)
        return True


def in_order(plan: Plan) -> list[Task]:
    """Return tasks in the plan's groups, as a change takes seconds; in each the longest first, or
    it would keep the others waiting.
    """
    tasks = list(plan)
    groups = list(dict.fromkeys((task.definition, task.names) for task in tasks))

    def place(task: Task) -> tuple[int, int]:
        return groups.index((task.definition, task.names)), -workloads.tokens(task.workload)

    return sorted(tasks, key=place)
