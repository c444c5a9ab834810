"""The main job on a Ray cluster: what is judged where, what happens to what dies, and what is left
for `--resume`.

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
from types import SimpleNamespace
from unittest import mock

import judged
import pytest
import torch
from moebench.core import paths, provenance
from moebench.core.errors import CannotRun, UserError
from moebench.judging import on_ray
from moebench.judging.evaluate import Outcome
from moebench.judging.plan import Task
from moebench.results import trace_files

SOME = ["16", "19", "24", "33", "37", "70"]  # T of small workloads
CPU_ONLY = pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's job, for CPUs")


def on_a_cluster(test):
    return CPU_ONLY(pytest.mark.slow(pytest.mark.xdist_group("ray")(test)))


# What needs no Ray


def task(definition, tokens, *names):
    workload = SimpleNamespace(uuid=f"{tokens}", axes={"seq_len": tokens})
    return Task(definition, f"T={tokens}", workload, names)


class RayError(Exception):
    pass


class FakeRay:
    """Stands in for Ray: calls are noted, and done one after the other.

    dies: labels; an actor that is given one of them dies. broken: actors on which every reference
    fails. breaks: actors that evaluate only the first solution of a task. never: no actor starts.
    Whenever Ray is waited for, each actor that was not ended has a call: it keeps its device until
    it is ended.
    """

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, dies=(), broken=(), breaks=(), never=False):
        self.dies = dies
        self.broken = broken
        self.breaks = breaks
        self.never = never
        self.actors = []
        self.calls = []  # (actor, task), of a start None
        self.ended = []
        self.killed = []

    def put(self, plan):
        return plan

    def remote(self, actor):
        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=self.create))

    def create(self, plan):
        number = len(self.actors)

        def note(task=None):
            self.calls.append((number, task))
            return len(self.calls) - 1

        methods = {"ready": note, "evaluate": note, "close": lambda: self.ended.append(number)}
        actor = SimpleNamespace(number=number)
        for name, method in methods.items():
            setattr(actor, name, SimpleNamespace(remote=method))
        self.actors.append(number)
        return actor

    def wait(self, results):
        assert {self.calls[result][0] for result in results} == set(self.actors) - set(self.ended)
        return results[:1], results[1:]

    def get(self, result):
        number, task = self.calls[result]
        if task is None:
            if self.never:
                self.ended.append(number)
                raise RayError("The actor\nnever ran")
            return None

        if task.label in self.dies:
            self.ended.append(number)
            raise RayError("it died")
        if number in self.broken:
            return Outcome(task, lost=dict.fromkeys(task.names, "no reference"))
        if number in self.breaks:
            first, *rest = task.names
            return Outcome(task, {first: None}, dict.fromkeys(rest, "no worker"))
        return Outcome(task, dict.fromkeys(task.names))

    def kill(self, actor):
        self.killed.append(actor.number)
        self.ended.append(actor.number)


@dataclass
class Handed:
    """by_actor: (label, names) of the tasks that each was given."""

    by_actor: list
    outcomes: list
    killed: list


def handed_out(monkeypatch, tasks, slots, **how):
    """Return what becomes of tasks on a cluster. how: of FakeRay."""
    ray = FakeRay(**how)
    monkeypatch.setitem(sys.modules, "ray", ray)
    outcomes = list(on_ray.Cluster({}, slots, "").outcomes(tasks, lambda text: None))

    by_actor = [[] for _ in ray.actors]
    for number, asked in ray.calls:
        if asked:
            by_actor[number].append((asked.label, *asked.names))
    return Handed(by_actor, outcomes, ray.killed)


TASKS = [task("a", tokens, "x", "y") for tokens in range(9)]


def test_a_workload_goes_to_whoever_is_free(monkeypatch):
    """The longest first."""
    handed = handed_out(monkeypatch, TASKS, 2)
    assert [len(work) for work in handed.by_actor] == [5, 4]
    assert [work[0][0] for work in handed.by_actor] == ["T=8", "T=7"]
    assert handed.killed == []
    evaluated = {outcome.task.label: set(outcome.evaluated) for outcome in handed.outcomes}
    assert evaluated == {each.label: {"x", "y"} for each in TASKS}


def test_there_are_no_more_actors_than_workloads(monkeypatch):
    handed = handed_out(monkeypatch, TASKS[:3], 8)
    assert [len(work) for work in handed.by_actor] == [1, 1, 1]
    assert handed_out(monkeypatch, [], 2) == Handed([], [], [])


def test_a_gpu_on_which_no_reference_runs_does_not_eat_the_queue(monkeypatch):
    handed = handed_out(monkeypatch, TASKS, 2, broken=[0])
    assert len(handed.by_actor[0]) == 1
    assert handed.killed == [0]
    assert [set(outcome.evaluated) for outcome in handed.outcomes] == [{"x", "y"}] * 9

    both_broken = handed_out(monkeypatch, TASKS[:1], 1, broken=[0, 1])
    lost = [outcome.lost for outcome in both_broken.outcomes]
    assert lost == [{"x": "no reference", "y": "no reference"}]


def test_what_a_gpu_evaluated_before_it_broke_is_kept(monkeypatch):
    """And the other solutions are tried again, once."""
    tasks = [task("a", 0, "x", "y", "z")]
    handed = handed_out(monkeypatch, tasks, 1, breaks=[0])
    assert handed.by_actor == [[("T=0", "x", "y", "z")], [("T=0", "y", "z")]]
    assert handed.killed == [0]
    assert [set(outcome.evaluated) for outcome in handed.outcomes] == [{"x"}, {"y", "z"}]
    assert not any(outcome.lost for outcome in handed.outcomes)

    handed = handed_out(monkeypatch, tasks, 1, breaks=[0], broken=[1])
    first, second = handed.outcomes
    assert (set(first.evaluated), first.lost) == ({"x"}, {})
    assert second.lost == {"y": "no reference", "z": "no reference"}


def test_a_cluster_on_which_nothing_starts_ends_the_run(monkeypatch):
    """No task is blamed for it, as on a node that is dead and not known to be."""
    with pytest.raises(CannotRun, match="never ran"):
        handed_out(monkeypatch, TASKS, 2, never=True)


def test_what_kills_its_actor_is_tried_again_apart(monkeypatch):
    handed = handed_out(monkeypatch, TASKS[:6], 1, dies=["T=1"])
    asked = [each for work in handed.by_actor for each in work]
    for names in (("x", "y"), ("x",), ("y",)):
        assert asked.count(("T=1", *names)) == 1
    lost = [set(outcome.lost) for outcome in handed.outcomes if outcome.lost]
    assert lost == [{"x"}, {"y"}]
    right = [outcome.task.label for outcome in handed.outcomes if not outcome.lost]
    assert sorted(right) == ["T=0", "T=2", "T=3", "T=4", "T=5"]


@pytest.fixture
def nodes(monkeypatch):
    """A function that sets what Ray says of its nodes; there is a dead one beside them."""

    def set_nodes(*resources):
        listed = [{"Alive": True, "Resources": each} for each in resources]
        listed.append({"Alive": False, "Resources": {"GPU": 8, "accelerator_type:B200": 1}})
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


def test_an_actor_prepares_each_definition_once(monkeypatch):
    """Tensors and builds, on each node."""
    labelled = mock.Mock()
    build_slow = mock.Mock()
    evaluator = mock.Mock(evaluate=lambda task: task.label)
    monkeypatch.setattr(on_ray, "Evaluator", lambda plan, host: evaluator)
    monkeypatch.setattr(on_ray.dataset, "labelled", labelled)
    monkeypatch.setattr(on_ray, "build_slow", build_slow)

    actor = on_ray.Actor(mock.Mock(parts={"a": mock.Mock(), "b": mock.Mock()}))
    tasks = [task("a", 1), task("a", 2), task("b", 3)]
    assert [actor.evaluate(each) for each in tasks] == ["T=1", "T=2", "T=3"]
    assert [call.args[0] for call in labelled.call_args_list] == ["a", "b"]
    assert build_slow.call_count == 2


@pytest.mark.parametrize(
    ("address", "status"), [("nonsense", 2), ("ray://127.0.0.1:1", 2), ("127.0.0.1:1", 1)]
)
def test_a_cluster_that_is_not_there_is_one_line(address, status, monkeypatch, refusal):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    returned, line = refusal("run", "--ray", address)
    assert returned == status
    assert "--ray" in line and address in line


def test_without_ray_there_is_one_line(monkeypatch, refusal):
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
    nodes = Cluster(initialize_head=True, head_node_args={"include_dashboard": False} | small)
    nodes.add_node(**small)
    yield nodes
    nodes.shutdown()


@contextmanager
def started(cluster, output, *arguments):
    """`moebench run --ray` on some of the workloads, in a process of its own."""
    command = [sys.executable, "-m", "moebench", "run", "--ray", cluster.address]
    command += ["--solutions", "triton_fused_v2", "--workloads", *SOME]
    command += ["--output", str(output), *arguments]
    with subprocess.Popen(
        command, cwd=paths.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process


def by_uuid(file):
    return {trace.workload.uuid: trace for trace in trace_files.load(file)}


def wait_for_a_trace(output, process):
    deadline = time.monotonic() + 120
    while not trace_files.load(output):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


@on_a_cluster
def test_a_task_that_fails_at_once_is_one_line(cluster, monkeypatch):
    """As on a node without this repository."""
    monkeypatch.setattr(on_ray, "survey", lambda: 1 / 0)
    with on_ray.connected(cluster.address) as place:
        with pytest.raises(CannotRun, match="ZeroDivisionError"):
            place.survey()


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
    assert 1 <= len(kept) < len(SOME)
    assert f"{len(kept)}/{len(kept)}" in shown

    with started(cluster, output, "--resume") as process:
        shown, errors = process.communicate(timeout=170)

    left = len(SOME) - len(kept)
    assert process.returncode == 0, shown + errors
    assert f"[{left}/{left}]" in shown
    traces = by_uuid(output)
    assert traces.keys() > kept.keys()
    assert len(traces) == len(SOME)


@on_a_cluster
def test_a_node_that_is_killed_costs_no_cell(cluster, tmp_path):
    """Last, since one node is left. The same results as those of a run without Ray, and each says
    where.
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
    arguments = ["--solutions", "triton_fused_v2", "--workloads", *SOME[:2]]
    status, traces_alone = judged.recorded(local, *arguments)
    assert status == 0

    traces = by_uuid(output)
    assert len(traces) == len(SOME)
    for alone in traces_alone:
        there = traces[alone.workload.uuid]
        shares = alone.evaluation.correctness.extra
        assert there.evaluation.status == alone.evaluation.status
        assert there.evaluation.correctness.extra == pytest.approx(shares, abs=1e-2)
        assert provenance.of_trace(there).host == provenance.host()
        assert provenance.of_trace(alone).host is None


@pytest.mark.gpu
def test_a_gpu_through_ray(tmp_path):
    """A cluster that is started for the run: each process has one GPU, and every trace says
    which.
    """
    pytest.importorskip("ray", reason="needs Ray: make setup-fleet")
    output = tmp_path / "traces.jsonl"
    command = [sys.executable, "-m", "moebench", "run", "--ray", "--solutions", "triton_fused_v2"]
    command += "--workloads 1 7 --warmup-runs 1 --iterations 3 --num-trials 1 --output".split()
    command.append(str(output))
    done = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    traces = trace_files.load(output)
    assert [trace.is_successful() for trace in traces] == [True, True]
    assert all(" GPU-" in provenance.of_trace(trace).host for trace in traces)
