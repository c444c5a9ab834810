"""A plan's cells on a Ray cluster, whose nodes judge them as this machine would.

An actor, a process on a device, lives as long as the run, and is given cells one by one, so no
device waits.
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


@contextmanager
def connected(address: str | None) -> Iterator["Cluster"]:
    """The cluster's devices; without an address this machine's, on which a cluster is started where
    there is none.

    Ctrl-C ends it here, and Ray then ends the actors. Raises UserError for what is no HOST:PORT,
    CannotRun without Ray.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise CannotRun(
            "--ray: Ray is not installed: run `make setup-fleet`, or pip install '.[fleet]'"
        ) from error
    host, _, port = (address or "localhost:0").rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise UserError(
            f"--ray: got {address!r}, want HOST:PORT of a cluster's head, as `ray start` prints it"
        )
    if address:
        try:
            socket.create_connection(
                (host, int(port)), timeout=10
            ).close()  # Ray itself tries for minutes
        except (OSError, OverflowError) as error:
            raise CannotRun(
                f"--ray {address}: nobody answers there: {first_line(error)}"
            ) from error
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(
            address=address,
            logging_level="ERROR",
            include_dashboard=False if address is None else None,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise CannotRun(f"--ray {address or 'on this machine'}: {first_line(error)}") from error
    try:
        with on_interrupt(signal.default_int_handler):
            yield cluster()
    finally:
        ray.shutdown()


def cluster() -> "Cluster":
    """The GPUs of the cluster, or its CPUs where it has none. Raises UserError where GPUs are of
    several kinds.
    """
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    kinds = Counter()  # as Ray calls them -> GPUs
    for node in (node for node in nodes if node.get("GPU")):
        label = next(
            (name for name in node if name.startswith("accelerator_type:")), "accelerator_type:GPU"
        )
        kinds[label.partition(":")[2]] += int(node["GPU"])
    if len(kinds) > 1:
        listed = ", ".join(f"{kind} ({count})" for kind, count in sorted(kinds.items()))
        raise UserError(
            f"--ray: the cluster has {listed}, want one kind of GPU; a table never mixes them"
        )
    for kind, count in kinds.items():
        return Cluster(
            {"num_gpus": 1, "num_cpus": 0}, count, f"{count} {kind}s of {len(nodes)} nodes"
        )
    if not (slots := int(sum(node.get("CPU", 0) for node in nodes))):
        raise CannotRun("--ray: the cluster has neither a GPU nor a CPU to judge on")
    return Cluster({"num_cpus": 1}, slots, f"{slots} CPUs of {len(nodes)} nodes")


@dataclass(frozen=True)
class Cluster:
    """What actors run on. options: Ray's for each of them; slots: how many there can be at once."""

    options: dict
    slots: int
    text: str

    def survey(self) -> Device:
        """One of its devices. Raises CannotRun where that fails."""
        import ray

        try:
            return ray.get(ray.remote(survey).options(**self.options).remote())
        except ray.exceptions.RayError as error:
            raise CannotRun(
                f"--ray: a node cannot run tasks of this repository: {last_line(error)}"
            ) from error

    def outcomes(self, plan: Plan, say: Say) -> Iterator[Outcome]:
        """As they come. Raises CannotRun where actors cannot be started."""
        run = Run(self, plan, say)
        run.start()
        while run.waiting or any(cell for _, cell in run.given.values()):
            results = {result: actor for actor, (result, _) in run.given.items()}
            run.ray.wait(list(results), num_returns=1)
            for result in run.ray.wait(list(results), num_returns=len(results), timeout=0)[0]:
                yield from run.collect(results.pop(result))
            run.start()
        for actor in run.given:
            run.ray.kill(actor)  # it has not started yet


class Actor:
    """One device, on which it judges whatever it is given."""

    def __init__(self, plan: Plan):
        self.plan, self.evaluator, self.made = plan, Evaluator(plan, provenance.host()), set()

    def ready(self) -> None:
        """Answers when the actor runs."""

    def judge(self, cell: Task) -> Outcome:
        if cell.definition not in self.made:
            cache = get_fib_cache_path()
            cache.mkdir(parents=True, exist_ok=True)
            with FileLock(
                cache / "fleet.lock"
            ):  # one process of a node after the other: the first one does the work
                part = self.plan.parts[cell.definition]
                dataset.labelled(cell.definition, part.root)  # which makes tensors that are missing
                build_slow(part.ours, print)
            self.made.add(cell.definition)
        return self.evaluator.evaluate(cell)

    def close(self) -> None:
        self.evaluator.close()


def last_line(error: Exception) -> str:
    """Of Ray's; those above say where."""
    return str(error).strip().splitlines()[-1]


class Run:
    """Which actor is at what, and what waits. An actor has no cell until it runs: a node that is
    dead keeps none.
    """

    def __init__(self, cluster: Cluster, plan: Plan, say: Say):
        import ray

        self.ray, self.cluster, self.say = ray, cluster, say
        self.create, self.plan = ray.remote(Actor).options(**cluster.options), ray.put(plan)
        # in the plan's groups, as a change takes seconds; the longest first, or it would keep the
        # others waiting
        of = [*dict.fromkeys((cell.definition, cell.names) for cell in plan)]
        self.waiting = sorted(
            plan, key=lambda c: (of.index((c.definition, c.names)), -workloads.tokens(c.workload))
        )
        self.given = {}  # actor -> (result to come, cell; None for its start)
        self.tries, self.failed_starts = Counter(), 0

    def start(self) -> None:
        """As many actors as there is work for, and place."""
        starting = sum(cell is None for _, cell in self.given.values())
        for _ in range(min(len(self.waiting) - starting, self.cluster.slots - len(self.given))):
            actor = self.create.remote(self.plan)
            self.given[actor] = actor.ready.remote(), None

    def collect(self, actor) -> list[Outcome]:
        """Its outcome, or what is lost by its death; it gets its next cell, or another actor its
        place.
        """
        result, cell = self.given.pop(actor)
        try:
            outcome = self.ray.get(result)
        except self.ray.exceptions.RayError as error:
            self.ray.kill(actor)
            if cell is None:
                self.failed_starts += 1
                if self.failed_starts > FAILED_STARTS * self.cluster.slots:
                    raise CannotRun(
                        f"--ray: no process can be started: {last_line(error)}"
                    ) from error
                return []
            parts = [replace(cell, names=(name,)) for name in cell.names]
            lost = [part for part in parts if not self.again(part, type(error).__name__)]
            return [
                Outcome(p, lost={p.names[0]: f"what ran it died twice: {last_line(error)}"})
                for p in lost
            ]
        self.failed_starts = 0
        if cell and outcome.lost and self.again(cell, next(iter(outcome.lost.values()))):
            self.ray.kill(actor)  # that the reference did not run may be the state of its GPU
            return []
        if self.waiting:
            following = self.waiting.pop(0)
            self.given[actor] = actor.judge.remote(following), following
        else:
            actor.close.remote()  # Ray ends it after that, as nothing refers to it any more
        return [outcome] if cell else []

    def again(self, cell: Task, why: str) -> bool:
        """Whether it is tried again, as it was not before."""
        key = cell.definition, cell.workload.uuid, cell.names
        self.tries[key] += 1
        if self.tries[key] < TRIES:
            self.say(f"{cell.label}  {', '.join(cell.names)}  is tried again: {why}")
            self.waiting.append(cell)
        return self.tries[key] < TRIES
