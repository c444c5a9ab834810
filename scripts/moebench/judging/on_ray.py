"""Evaluate a plan's tasks on a Ray cluster, whose nodes do it as this machine would.

An Actor is a process on a node with a device of its own, and gets one task after another, so that
no device waits. A task that dies with its actor is tried once more, on another one.

Ray has an ActorPool, but that does not say which task died with an actor, and gives tasks to actors
that have not started, where a dead node keeps them. Ray's own retries would blame a task for a
broken node.
"""

import os
import signal
import socket
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from filelock import FileLock
from flashinfer_bench.env import get_fib_cache_path

from moebench.core import provenance
from moebench.core.errors import CannotRun, UserError, first_line
from moebench.core.interruption import on_interrupt
from moebench.judging import dataset
from moebench.judging.building import Say, build_slow
from moebench.judging.device import Device, survey
from moebench.judging.evaluate import Evaluator, Outcome
from moebench.judging.plan import Plan, Task
from moebench.operators import workloads

FAILED_STARTS = 3  # in a row, times the cluster's slots: then the run is given up
SECONDS = 10  # to reach a cluster's head; Ray itself tries for minutes
# before the kind of GPU, as in "accelerator_type:H200": 1.0
ACCELERATOR = "accelerator_type:"
NOT_INSTALLED = (
    "--ray: Ray is not installed: run `make setup-fleet`, or pip install '.[fleet]'"
)
NEITHER = "--ray: the cluster has neither a GPU nor a CPU to evaluate on"


@contextmanager
def connected(address: str | None) -> Iterator["Cluster"]:
    """Connect to the cluster at an address, HOST:PORT, or None for one on this machine, which is
    started where there is none. Yield it; the connection ends with the context.

    Ctrl-C interrupts this process alone, and Ray then ends the actors. Raises UserError for another
    text than HOST:PORT, CannotRun where there is no Ray or no cluster.
    """
    try:
        import ray  # pyright: ignore[reportMissingImports]  an extra
    except ModuleNotFoundError as error:
        raise CannotRun(NOT_INSTALLED) from error

    if address is not None:
        check_address(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    dashboard = False if address is None else None
    try:
        ray.init(address=address, logging_level="ERROR", include_dashboard=dashboard)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise CannotRun(
            f"--ray {address or 'on this machine'}: {first_line(error)}"
        ) from error

    try:
        with on_interrupt(signal.default_int_handler):
            yield cluster()
    finally:
        ray.shutdown()


def check_address(address: str) -> None:
    """Raise UserError for another text than HOST:PORT, CannotRun where nobody answers there."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise UserError(
            f"--ray: got {address!r}, want HOST:PORT of a cluster's head, as `ray start` prints it"
        )
    try:
        socket.create_connection((host, int(port)), timeout=SECONDS).close()
    except (OSError, OverflowError) as error:
        raise CannotRun(
            f"--ray {address}: nobody answers there: {first_line(error)}"
        ) from error


def cluster() -> "Cluster":
    """Return the cluster that this process is connected to, with a slot for each GPU, or for each
    CPU where it has no GPU.

    Raises UserError where its GPUs are of several kinds, CannotRun where it has neither.
    """
    import ray  # pyright: ignore[reportMissingImports]  an extra

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = gpus_by_kind(nodes)
    if len(gpus) > 1:
        counts = [f"{kind} ({count})" for kind, count in sorted(gpus.items())]
        raise UserError(
            f"--ray: the cluster has {', '.join(counts)}, want one kind of GPU;"
            " a table never mixes them"
        )
    if gpus:
        ((kind, count),) = gpus.items()
        options = {"num_gpus": 1, "num_cpus": 0}
        return Cluster(options, count, f"{count} {kind}s of {len(nodes)} nodes")

    cpus = sum(int(resources.get("CPU", 0)) for resources in nodes)
    if cpus:
        return Cluster({"num_cpus": 1}, cpus, f"{cpus} CPUs of {len(nodes)} nodes")
    raise CannotRun(NEITHER)


def gpus_by_kind(nodes: list[dict[str, float]]) -> Counter[str]:
    """Return kind of GPU -> how many there are. nodes: Ray's resources of each."""
    gpus = Counter()
    for resources in nodes:
        if resources.get("GPU"):
            kinds = [name for name in resources if name.startswith(ACCELERATOR)]
            kind = kinds[0].removeprefix(ACCELERATOR) if kinds else "GPU"
            gpus[kind] += int(resources["GPU"])
    return gpus


@dataclass(frozen=True)
class Cluster:
    """A cluster that actors run on.

    options: Ray's for one actor, which say what it takes of a node. slots: how many actors there
    can be at once. text: "8 H200s of 2 nodes".
    """

    options: dict
    slots: int
    text: str

    def survey(self) -> Device:
        """Return one of its devices, which stands for all. Raises CannotRun where that fails."""
        import ray  # pyright: ignore[reportMissingImports]  an extra

        try:
            task = ray.remote(survey).options(**self.options)
            return ray.get(task.remote())
        except ray.exceptions.RayError as error:
            raise CannotRun(
                f"--ray: a node cannot run tasks of this repository: {last_line(error)}"
            ) from error

    def outcomes(self, plan: Plan, say: Say) -> Iterator[Outcome]:
        """Yield the plan's outcomes as they come. say: takes a line on what is tried again.

        Raises CannotRun where actors cannot be started.
        """
        yield from ClusterRun(self, plan, say).outcomes()


class Actor:
    """A process on a node that evaluates tasks on one device."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.evaluator = Evaluator(plan, provenance.host())
        self.prepared: set[str] = set()

    def ready(self) -> None:
        """Do nothing: once this has an answer, the actor runs."""

    def evaluate(self, task: Task) -> Outcome:
        """Return what became of a task. Before a definition's first task its tensors are written
        and its solutions built, by one actor of a node for all.
        """
        part = self.plan.parts[task.definition_name]
        if task.definition_name not in self.prepared:
            cache = get_fib_cache_path()
            cache.mkdir(parents=True, exist_ok=True)
            with FileLock(cache / "fleet.lock"):
                # the first process of a node does the work
                dataset.labelled(task.definition_name, part.root)
                build_slow(part.ours_to_run, print)
            self.prepared.add(task.definition_name)
        return self.evaluator.evaluate(task)

    def close(self) -> None:
        """End this process, so that Ray gives its device to an actor that waits for one."""
        import ray  # pyright: ignore[reportMissingImports]  an extra

        self.evaluator.close()
        ray.actor.exit_actor()


def last_line(error: Exception) -> str:
    """Return the last line of one of Ray's errors; the lines above it say where it was raised."""
    return str(error).strip().splitlines()[-1]


@dataclass(frozen=True)
class Assignment:
    """What an actor does: it evaluates a task, or starts, where there is no task."""

    actor: object
    task: Task | None


class ClusterRun:
    """A plan's run on a cluster: what each actor does, and which tasks wait.

    An actor gets its first task once it runs, so that no task is kept by a dead node, or lost by
    one without this repository.
    """

    def __init__(self, cluster: Cluster, plan: Plan, say: Say):
        import ray  # pyright: ignore[reportMissingImports]  an extra

        self.ray = ray
        self.slots = cluster.slots
        self.say = say
        self.new_actor = ray.remote(Actor).options(**cluster.options)
        self.plan = ray.put(plan)
        self.waiting = tasks_in_order(plan)
        self.tried_again: list[Task] = []
        self.idle: list[object] = []
        # by Ray's reference to what it returns
        self.assignments: dict[object, Assignment] = {}
        self.failed_starts = 0

    def outcomes(self) -> Iterator[Outcome]:
        """Yield outcomes as they come, until no task waits or is evaluated."""
        while self.waiting or self.evaluating():
            self.assign()
            (result,), _ = self.ray.wait(list(self.assignments))
            assignment = self.assignments.pop(result)
            task = assignment.task
            try:
                outcome = self.ray.get(result)
            except self.ray.exceptions.RayError as error:
                self.ray.kill(assignment.actor)
                yield from self.after_death(task, error)
                continue

            self.failed_starts = 0
            if task is None:
                self.idle.append(assignment.actor)
            else:
                yield from self.after_answer(assignment.actor, outcome)

    def evaluating(self) -> int:
        """Return how many actors evaluate a task; the others of `assignments` start."""
        assignments = self.assignments.values()
        return sum(assignment.task is not None for assignment in assignments)

    def assign(self) -> None:
        """Give idle actors waiting tasks, or end them; start actors for what waits, if there are
        slots.
        """
        for actor in self.idle:
            if not self.waiting:
                actor.close.remote()
                continue
            task = self.waiting.pop(0)
            self.assignments[actor.evaluate.remote(task)] = Assignment(actor, task)
        self.idle = []

        assigned = len(self.assignments)
        starting = assigned - self.evaluating()
        wanted = min(len(self.waiting) - starting, self.slots - assigned)
        for _ in range(wanted):
            actor = self.new_actor.remote(self.plan)
            self.assignments[actor.ready.remote()] = Assignment(actor, None)

    def after_answer(self, actor: object, outcome: Outcome) -> Iterator[Outcome]:
        """Have what an actor did not evaluate of its task tried again, and yield what it did. Yield
        the outcome as it is where all was evaluated, or the rest was tried again before.
        """
        rest = replace(outcome.task, names=tuple(outcome.lost))
        reasons = list(outcome.lost.values())
        if not reasons or not self.try_again(rest, reasons[0]):
            self.idle.append(actor)
            yield outcome
            return

        # the state of its GPU may be why the reference did not run, or a worker was not replaced
        self.ray.kill(actor)
        if outcome.evaluated:
            yield Outcome(outcome.task, outcome.evaluated)

    def after_death(self, task: Task | None, error: Exception) -> Iterator[Outcome]:
        """Have the task of an actor that died tried again, each of its solutions apart. Yield the
        outcome of each that was tried again before.

        task: None where the actor had not started. Raises CannotRun after too many failed starts.
        """
        if task is None:
            self.failed_starts += 1
            if self.failed_starts > FAILED_STARTS * self.slots:
                raise CannotRun(
                    f"--ray: no process can be started: {last_line(error)}"
                ) from error
            return

        for name in task.names:
            alone = replace(task, names=(name,))
            reason = type(error).__name__
            if not self.try_again(alone, reason):
                lost = f"what ran it died twice: {last_line(error)}"
                yield Outcome(alone, lost={name: lost})

    def try_again(self, task: Task, reason: str) -> bool:
        """Put a task back, unless that was done before; return whether it waits again."""
        if task in self.tried_again:
            return False

        self.say(f"{task.label}  {', '.join(task.names)}  is tried again: {reason}")
        self.tried_again.append(task)
        self.waiting.append(task)
        return True


def tasks_in_order(plan: Plan) -> list[Task]:
    """Return a plan's tasks in the order in which actors get them.

    Those of one definition and the same solutions follow each other, as an actor needs seconds to
    change. Among them the longest are first: begun last, one would keep the run waiting.
    """
    groups = defaultdict(list)
    for task in plan:
        groups[task.definition_name, task.names].append(task)

    tasks = []
    for group in groups.values():
        tasks += sorted(
            group, key=lambda task: workloads.tokens(task.workload), reverse=True
        )
    return tasks
