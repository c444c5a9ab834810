"""`moebench run --ray`: which process gets which task, what becomes of a task whose process or node
dies, and what is left for `--resume`.

Most of it needs no Ray. The slow tests start a cluster of two nodes on this machine, one CPU each.
"""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from types import SimpleNamespace

import judged
import pytest
from moebench.core import paths, provenance
from moebench.core.errors import CannotRun, UserError
from moebench.judging import on_ray
from moebench.judging.evaluate import Outcome
from moebench.judging.plan import Task
from moebench.results import trace_files

SMALL_WORKLOADS = ["16", "19", "24", "33", "37", "70"]  # by T


def on_a_cluster(test):
    """Mark a slow test of the `cluster` fixture: on CPUs, and all in one xdist worker."""
    in_one_worker = pytest.mark.xdist_group("ray")
    return judged.ON_CPU(pytest.mark.slow(in_one_worker(test)))


# What needs no Ray


def new_task(definition, tokens, *names):
    """Return a task with the label "T=<tokens>". names: of the solutions to evaluate."""
    workload = SimpleNamespace(uuid=f"{tokens}", axes={"seq_len": tokens})
    return Task(definition, f"T={tokens}", workload, names)


class RayError(Exception):
    pass


class FakeRay:
    """Stands in for Ray: does calls one after the other, and notes them.

    An actor is known by its number, from 0, in the order in which actors are created; Ray's
    reference to a result is the number of its call.

    deadly_labels: an actor that is given a task with one of these labels dies.
    without_reference: numbers of actors on which the reference of every task fails.
    first_solution_only: numbers of actors that evaluate only the first solution of a task.
    nothing_starts: every actor dies before it runs.
    """

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(
        self,
        deadly_labels=(),
        without_reference=(),
        first_solution_only=(),
        nothing_starts=False,
    ):
        self.deadly_labels = deadly_labels
        self.without_reference = without_reference
        self.first_solution_only = first_solution_only
        self.nothing_starts = nothing_starts
        self.actors = []
        # (actor, task); the task is None in the call that waits for its start
        self.calls = []
        self.ended = []  # actors that were closed or killed, or died
        self.killed = []

    def put(self, plan):
        return plan

    def remote(self, actor):
        creating = SimpleNamespace(remote=self.create)
        return SimpleNamespace(options=lambda **options: creating)

    def create(self, plan):
        number = len(self.actors)
        self.actors.append(number)

        def note(task=None):
            self.calls.append((number, task))
            return len(self.calls) - 1

        return SimpleNamespace(
            number=number,
            ready=SimpleNamespace(remote=note),
            evaluate=SimpleNamespace(remote=note),
            close=SimpleNamespace(remote=lambda: self.ended.append(number)),
        )

    def wait(self, results):
        """Return the first result, and the others.

        No actor may idle while the run waits: each has a call, or was ended and freed its device.
        """
        busy = {self.calls[result][0] for result in results}
        assert busy == set(self.actors) - set(self.ended)
        return results[:1], results[1:]

    def get(self, result):
        number, task = self.calls[result]
        if task is None:
            if self.nothing_starts:
                self.ended.append(number)
                raise RayError("The actor\nnever ran")
            return None

        if task.label in self.deadly_labels:
            self.ended.append(number)
            raise RayError("it died")
        if number in self.without_reference:
            return Outcome(task, lost=dict.fromkeys(task.names, "no reference"))
        if number in self.first_solution_only:
            first, *rest = task.names
            return Outcome(task, {first: None}, dict.fromkeys(rest, "no worker"))
        return Outcome(task, dict.fromkeys(task.names))

    def kill(self, actor):
        self.killed.append(actor.number)
        self.ended.append(actor.number)


@dataclass
class Result:
    """What became of a plan's tasks.

    by_actor: for each actor, (label, *names of solutions) of each task that it was given.
    killed: numbers of the actors that the run killed.
    """

    by_actor: list[list[tuple]]
    outcomes: list[Outcome]
    killed: list[int]


def run_tasks(monkeypatch, tasks, slots, **faults):
    """Run tasks on a fake cluster with so many slots. faults: arguments of FakeRay."""
    ray = FakeRay(**faults)
    monkeypatch.setitem(sys.modules, "ray", ray)
    fake_cluster = on_ray.Cluster({}, slots, "")
    outcomes = list(fake_cluster.outcomes(tasks, lambda text: None))

    by_actor = [[] for _ in ray.actors]
    for number, task in ray.calls:
        if task:
            by_actor[number].append((task.label, *task.names))
    return Result(by_actor, outcomes, ray.killed)


TASKS = [new_task("a", tokens, "x", "y") for tokens in range(9)]


def test_a_free_actor_gets_the_longest_task_that_waits(monkeypatch):
    result = run_tasks(monkeypatch, TASKS, 2)
    assert [len(tasks) for tasks in result.by_actor] == [5, 4]
    first_labels = [tasks[0][0] for tasks in result.by_actor]
    assert first_labels == ["T=8", "T=7"]
    assert result.killed == []
    evaluated = {}
    for outcome in result.outcomes:
        evaluated[outcome.task.label] = set(outcome.evaluated)
    assert evaluated == {task.label: {"x", "y"} for task in TASKS}


def test_there_are_no_more_actors_than_tasks(monkeypatch):
    result = run_tasks(monkeypatch, TASKS[:3], 8)
    assert [len(tasks) for tasks in result.by_actor] == [1, 1, 1]
    assert run_tasks(monkeypatch, [], 2) == Result([], [], [])


def test_an_actor_without_a_reference_is_killed_and_its_task_goes_to_another(
    monkeypatch,
):
    """It fails at once, and would soon have been given all tasks that wait."""
    result = run_tasks(monkeypatch, TASKS, 2, without_reference=[0])
    assert len(result.by_actor[0]) == 1
    assert result.killed == [0]
    assert [set(outcome.evaluated) for outcome in result.outcomes] == [{"x", "y"}] * 9

    result = run_tasks(monkeypatch, TASKS[:1], 1, without_reference=[0, 1])
    lost = [outcome.lost for outcome in result.outcomes]
    assert lost == [{"x": "no reference", "y": "no reference"}]


def test_only_what_an_actor_did_not_evaluate_of_a_task_is_tried_again(monkeypatch):
    """Once, on another actor; what was evaluated is kept."""
    tasks = [new_task("a", 0, "x", "y", "z")]
    result = run_tasks(monkeypatch, tasks, 1, first_solution_only=[0])
    first, second = result.outcomes
    assert result.by_actor == [[("T=0", "x", "y", "z")], [("T=0", "y", "z")]]
    assert result.killed == [0]
    assert first.evaluated.keys() == {"x"}
    assert second.evaluated.keys() == {"y", "z"}
    assert first.lost == second.lost == {}

    result = run_tasks(
        monkeypatch, tasks, 1, first_solution_only=[0], without_reference=[1]
    )
    first, second = result.outcomes
    assert first.evaluated.keys() == {"x"}
    assert first.lost == {}
    assert second.lost == {"y": "no reference", "z": "no reference"}


def test_a_cluster_on_which_nothing_starts_ends_the_run(monkeypatch):
    """No task is blamed: a node may be dead before Ray knows it."""
    with pytest.raises(CannotRun, match="never ran"):
        run_tasks(monkeypatch, TASKS, 2, nothing_starts=True)


def test_solutions_of_a_task_that_kills_its_actor_are_tried_again_one_by_one(
    monkeypatch,
):
    result = run_tasks(monkeypatch, TASKS[:6], 1, deadly_labels=["T=1"])
    calls = list(chain(*result.by_actor))
    for call in (("T=1", "x", "y"), ("T=1", "x"), ("T=1", "y")):
        assert calls.count(call) == 1
    lost = [set(outcome.lost) for outcome in result.outcomes if outcome.lost]
    assert lost == [{"x"}, {"y"}]
    evaluated = {outcome.task.label for outcome in result.outcomes if not outcome.lost}
    assert evaluated == {"T=0", "T=2", "T=3", "T=4", "T=5"}
    assert len(result.outcomes) == len(lost) + len(evaluated)


@pytest.fixture
def nodes(monkeypatch):
    """A function that has Ray list live nodes with these resources, and one dead node."""

    def set_nodes(*resources):
        listed = [{"Alive": True, "Resources": each} for each in resources]
        listed.append({"Alive": False, "Resources": gpu_node("B200")})
        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(nodes=lambda: listed))

    return set_nodes


def gpu_node(kind):
    return {"CPU": 64.0, "GPU": 8.0, f"accelerator_type:{kind}": 1.0}


def test_gpus_of_one_kind_are_used(nodes):
    nodes({"CPU": 4.0}, gpu_node("H200"), gpu_node("H200"))
    cluster = on_ray.cluster()
    assert cluster.slots == 16
    assert cluster.options == {"num_gpus": 1, "num_cpus": 0}


def test_gpus_of_two_kinds_are_refused(nodes):
    """In a table a faster GPU would look like a faster solution."""
    nodes(gpu_node("H100"), gpu_node("H200"))
    with pytest.raises(UserError, match=r"H100 \(8\), H200 \(8\)"):
        on_ray.cluster()


def test_cpus_are_used_where_there_is_no_gpu(nodes):
    nodes({"CPU": 2.0}, {"CPU": 1.0})
    cluster = on_ray.cluster()
    assert cluster.slots == 3
    assert cluster.options == {"num_cpus": 1}
    nodes({"memory": 1.0})
    with pytest.raises(CannotRun):
        on_ray.cluster()


@pytest.mark.parametrize(
    ("address", "status"),
    [("nonsense", 2), ("ray://127.0.0.1:1", 2), ("127.0.0.1:1", 1)],
)
def test_an_address_without_a_cluster_is_refused_in_one_line(
    address, status, monkeypatch, refusal
):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    returned, line = refusal("run", "--ray", address)
    assert returned == status
    assert "--ray" in line
    assert address in line


def test_without_ray_the_run_is_refused_in_one_line(monkeypatch, refusal):
    monkeypatch.setitem(sys.modules, "ray", None)
    status, line = refusal("run", "--ray")
    assert status == 1
    assert "--ray" in line


# On a cluster


@pytest.fixture(scope="module")
def cluster():
    """Two nodes on this machine, with one CPU each."""
    pytest.importorskip("ray", reason="needs Ray: make setup-fleet")
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    small = {"num_cpus": 1, "object_store_memory": 80_000_000}
    nodes = Cluster(
        initialize_head=True, head_node_args={"include_dashboard": False} | small
    )
    nodes.add_node(**small)
    yield nodes
    nodes.shutdown()


@contextmanager
def started(cluster, output, *arguments):
    """Yield a process of `moebench run --ray` on the small workloads, with more arguments."""
    command = [sys.executable, "-m", "moebench", "run", "--ray", cluster.address]
    command += ["--solutions", "triton_fused_v2", "--workloads", *SMALL_WORKLOADS]
    command += ["--output", str(output), *arguments]
    with subprocess.Popen(
        command,
        cwd=paths.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process


def by_uuid(file):
    """Return workload's uuid -> trace, of a file."""
    return {trace.workload.uuid: trace for trace in trace_files.read_saved(file)}


def wait_for_a_trace(output, process):
    deadline = time.monotonic() + 120
    while not trace_files.read_saved(output):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


@on_a_cluster
def test_a_node_whose_survey_fails_cannot_run(cluster, monkeypatch):
    """It is the first that a run does on a node, and fails on one without this repository."""

    def failing_survey():
        raise RuntimeError("no repository")

    monkeypatch.setattr(on_ray, "survey", failing_survey)
    with on_ray.connected(cluster.address) as connected_cluster:
        with pytest.raises(CannotRun, match="RuntimeError"):
            connected_cluster.survey()


@on_a_cluster
def test_ctrl_c_keeps_what_is_done_and_resume_does_the_rest(cluster, tmp_path):
    output = tmp_path / "traces.jsonl"
    with started(cluster, output) as process:
        wait_for_a_trace(output, process)
        process.send_signal(signal.SIGINT)
        shown, errors = process.communicate(timeout=60)

    kept = by_uuid(output)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "interrupted"
    assert 1 <= len(kept) < len(SMALL_WORKLOADS)
    # the table: passed of those that were evaluated
    assert f"{len(kept)}/{len(kept)}" in shown

    with started(cluster, output, "--resume") as process:
        shown, errors = process.communicate(timeout=170)

    left = len(SMALL_WORKLOADS) - len(kept)
    assert process.returncode == 0, shown + errors
    assert f"[{left}/{left}]" in shown
    traces = by_uuid(output)
    assert traces.keys() > kept.keys()
    assert len(traces) == len(SMALL_WORKLOADS)


@on_a_cluster
def test_a_node_that_is_killed_costs_no_trace(cluster, tmp_path):
    """Results are those of a run without Ray, and each trace names its host.

    The last test on the cluster, as it leaves one node.
    """
    output = tmp_path / "traces.jsonl"
    with started(cluster, output) as process:
        wait_for_a_trace(output, process)
        worker, *_ = cluster.worker_nodes
        cluster.remove_node(worker, allow_graceful=False)
        shown, errors = process.communicate(timeout=170)
    assert process.returncode == 0, shown + errors
    assert re.search(r"Actor(Died|Unavailable)Error", shown), shown

    local = tmp_path / "local"
    arguments = ["--solutions", "triton_fused_v2", "--workloads", *SMALL_WORKLOADS[:2]]
    status, traces_alone = judged.recorded(local, *arguments)
    assert status == 0

    traces = by_uuid(output)
    assert len(traces) == len(SMALL_WORKLOADS)
    for alone in traces_alone:
        assert provenance.of_trace(alone).host is None
        on_cluster = traces[alone.workload.uuid]
        assert provenance.of_trace(on_cluster).host == provenance.host()

        expected = alone.evaluation
        assert on_cluster.evaluation.status == expected.status
        shares = pytest.approx(expected.correctness.extra, abs=1e-2)
        assert on_cluster.evaluation.correctness.extra == shares


@pytest.mark.gpu
def test_a_gpu_through_ray(tmp_path):
    """A cluster that is started for the run: each process has one GPU, and every trace says
    which.
    """
    pytest.importorskip("ray", reason="needs Ray: make setup-fleet")
    output = tmp_path / "traces.jsonl"
    options = "--solutions triton_fused_v2 --workloads 1 7"
    options += " --warmup-runs 1 --iterations 3 --num-trials 1"
    command = [sys.executable, "-m", "moebench", "run", "--ray", *options.split()]
    command += ["--output", output]
    done = subprocess.run(
        command, cwd=paths.ROOT, capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stdout + done.stderr
    traces = trace_files.read_saved(output)
    assert [trace.is_successful() for trace in traces] == [True, True]
    assert all(" GPU-" in provenance.of_trace(trace).host for trace in traces)
