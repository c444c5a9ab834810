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
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from moebench import cli
from moebench.core import paths, provenance
from moebench.core.errors import CannotRun, UserError
from moebench.judging import on_ray
from moebench.judging.judge import Outcome
from moebench.judging.plan import Cell
from moebench.results import trace_files

SOME = ["16", "19", "24", "33", "37", "70"]  # T of small workloads
CPU_ONLY = pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's job, for CPUs")


# What needs no Ray


def cell(geometry, tokens, *names):
    return Cell(
        geometry, f"T={tokens}", SimpleNamespace(uuid=f"{tokens}", axes={"seq_len": tokens}), names
    )


class Remote:
    """What Ray makes of an actor's method: the call is only noted, and Ray's stand-in here says
    when it is done.
    """

    def __init__(self, calls, actor):
        self.calls, self.actor = calls, actor

    def remote(self, *arguments):
        self.calls.append((self.actor, *arguments))
        return len(self.calls) - 1


class Actor:
    def __init__(self, calls, number):
        self.number, self.close = number, Remote([], number)
        self.ready = self.judge = Remote(calls, number)


class RayError(Exception):
    pass


def handed_out(monkeypatch, cells, slots, dies=(), last_first=False, broken=(), never=False):
    """What each actor was given, where the actors are done one after the other; all outcomes; how
    many were killed.

    dies: labels; an actor that is given one of them dies. broken: actors on which every reference
    fails. never: no actor starts. last_first: the latest call is done first. An actor without a
    call has to be unreferenced whenever Ray is waited for: it keeps its device until then.
    """
    calls, actors, killed = [], [], []

    def create(plan):
        actor = Actor(calls, len(actors))
        actors.append(weakref.ref(actor))
        return actor

    def wait(results, num_returns, timeout=None):
        waited_for = {calls[result][0] for result in results}
        assert all(
            actor() is None for number, actor in enumerate(actors) if number not in waited_for
        )
        done = sorted(results, reverse=last_first)
        return done[:1], done[1:]

    def get(result):
        actor, *given = calls[result]
        if not given:
            if never:
                raise RayError("The actor\nnever ran")
            return None
        (given,) = given
        if given.label in dies:
            raise RayError("it died")
        lost = dict.fromkeys(given.names, "no reference") if actor in broken else {}
        return Outcome(given, {} if lost else dict.fromkeys(given.names), lost)

    fake = SimpleNamespace(
        put=lambda x: x, get=get, wait=wait, kill=lambda actor: killed.append(actor.number)
    )
    fake.remote = lambda actor: SimpleNamespace(
        options=lambda **given: SimpleNamespace(remote=create)
    )
    fake.exceptions = SimpleNamespace(RayError=RayError)
    monkeypatch.setitem(sys.modules, "ray", fake)
    found = list(on_ray.Cluster({}, slots, "").outcomes(cells, lambda text: None))
    pairs = [(call[0], call[1]) for call in calls if len(call) > 1]
    given = [
        [(c.label, *c.names) for actor, c in pairs if actor == number]
        for number in range(len(actors))
    ]
    return given, found, len(killed)


def test_a_workload_goes_to_whoever_is_free(monkeypatch):
    """The longest first; a user would miss the time in which a GPU with nothing left waits for one
    with many.
    """
    cells = [cell("a", at, "x", "y") for at in range(9)]
    given, found, killed = handed_out(monkeypatch, cells, 2)
    assert [len(work) for work in given] == [5, 4] and not killed
    assert [work[0][0] for work in given] == ["T=8", "T=7"]
    assert sorted(outcome.cell.label for outcome in found) == [c.label for c in cells]
    assert all(set(outcome.evaluated) == {"x", "y"} for outcome in found)
    given, _, _ = handed_out(monkeypatch, cells, 2, last_first=True)
    assert sum(map(len, given)) == 9
    given, _, _ = handed_out(monkeypatch, cells[:3], 8)
    assert [len(work) for work in given] == [1, 1, 1], "no more actors than workloads"
    assert handed_out(monkeypatch, [], 2) == ([], [], 0)


def test_a_gpu_on_which_no_reference_runs_does_not_eat_the_queue(monkeypatch):
    """A user would miss: every workload that the others would have judged, as what fails is done at
    once.
    """
    cells = [cell("a", at, "x", "y") for at in range(9)]
    given, found, killed = handed_out(monkeypatch, cells, 2, broken=[0])
    assert len(given[0]) == 1 and killed == 1 and len(found) == 9
    assert all(outcome.evaluated for outcome in found)
    _, found, killed = handed_out(monkeypatch, cells[:1], 1, broken=[0, 1])
    assert [outcome.lost for outcome in found] == [
        {"x": "no reference", "y": "no reference"}
    ] and killed == 1


def test_a_cluster_on_which_nothing_starts_ends_the_run(monkeypatch):
    """A user would miss: an end. No cell is blamed for it, as on a node that is dead and not known
    to be.
    """
    with pytest.raises(CannotRun, match="never ran"):
        handed_out(monkeypatch, [cell("a", at, "x") for at in range(9)], 2, never=True)


def test_what_kills_its_actor_is_tried_again_apart(monkeypatch):
    """A user would miss: the results of the good solutions on that workload, and of the other
    workloads.
    """
    cells = [cell("a", at, "x", "y") for at in range(6)]
    given, found, killed = handed_out(monkeypatch, cells, 1, dies=["T=1"])
    asked = [call for work in given for call in work]
    assert (
        asked.count(("T=1", "x"))
        == asked.count(("T=1", "y"))
        == asked.count(("T=1", "x", "y"))
        == 1
    )
    assert [{*o.lost} for o in found if o.lost] == [{"x"}, {"y"}] and killed == 3
    assert sorted(o.cell.label for o in found if not o.lost) == ["T=0", "T=2", "T=3", "T=4", "T=5"]


@pytest.fixture
def nodes(monkeypatch):
    """A function that sets what Ray says of its nodes."""

    def known(*resources):
        listed = [{"Alive": True, "Resources": each} for each in resources]
        listed.append({"Alive": False, "Resources": {"GPU": 8, "accelerator_type:B200": 1}})
        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(nodes=lambda: listed))

    return known


def test_only_gpus_of_one_kind_are_used(nodes):
    """A user would miss: a table in which a faster GPU looks like a faster solution. Without any
    CPUs are used.
    """
    h100, h200 = (
        {"CPU": 64.0, "GPU": 8.0, f"accelerator_type:{kind}": 1.0} for kind in ("H100", "H200")
    )
    nodes({"CPU": 4.0}, h200, h200)
    found = on_ray.cluster()
    assert (found.slots, found.options) == (16, {"num_gpus": 1, "num_cpus": 0})
    nodes(h100, h200)
    with pytest.raises(UserError, match=r"H100 \(8\), H200 \(8\)"):
        on_ray.cluster()
    nodes({"CPU": 2.0}, {"CPU": 1.0})
    found = on_ray.cluster()
    assert (found.options, found.slots) == ({"num_cpus": 1}, 3)
    nodes({"memory": 1.0})
    with pytest.raises(CannotRun):
        on_ray.cluster()


def test_an_actor_makes_each_definition_ready_once(monkeypatch):
    """A user would miss: tensors and builds on the other nodes."""
    made, plan = (
        [],
        SimpleNamespace(
            parts={name: SimpleNamespace(ours=name.upper(), root=None) for name in "ab"}
        ),
    )
    monkeypatch.setattr(on_ray, "Judge", lambda plan, host: lambda cell: cell.label)
    monkeypatch.setattr(on_ray.dataset, "labelled", lambda name, root: made.append(name))
    monkeypatch.setattr(on_ray, "build_slow", lambda packed, say: made.append(packed))
    actor = on_ray.Actor(plan)
    assert [actor.judge(cell(*each)) for each in (("a", 1), ("a", 2), ("b", 3))] == [
        "T=1",
        "T=2",
        "T=3",
    ]
    assert made == ["a", "A", "b", "B"]


@pytest.mark.parametrize(
    ("address", "status"), [("nonsense", 2), ("ray://127.0.0.1:1", 2), ("127.0.0.1:1", 1)]
)
def test_a_cluster_that_is_not_there_is_one_line(address, status, monkeypatch, capsys):
    """A user would miss: what is wrong, for the minutes that Ray tries to connect."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    assert cli.main(["run", "--ray", address]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert "--ray" in line and address in line


def test_without_ray_there_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert cli.main(["run", "--ray"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


# On a cluster


@pytest.fixture(scope="module")
def cluster():
    """Two nodes on this machine, with one CPU each."""
    pytest.importorskip("ray", reason="needs Ray: make setup-fleet")
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    small = {"num_cpus": 1, "object_store_memory": 80_000_000}
    made = Cluster(initialize_head=True, head_node_args={"include_dashboard": False} | small)
    made.add_node(**small)
    yield made
    made.shutdown()


@contextmanager
def started(cluster, output, *arguments):
    """`moebench run --ray` on some of the workloads, in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "moebench",
        "run",
        "--ray",
        cluster.address,
        "--solutions",
        "triton_fused_v2",
    ]
    command += ["--workloads", *SOME, "--output", str(output), *arguments]
    with subprocess.Popen(
        command, cwd=paths.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process


def wait_for_traces(output, count, process):
    deadline = time.monotonic() + 120
    while len(trace_files.load(output)) < count:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.1)


@CPU_ONLY
@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_a_task_that_fails_at_once_is_one_line(cluster, monkeypatch):
    """As on a node without this repository."""
    monkeypatch.setattr(on_ray, "survey", lambda: 1 / 0)
    with on_ray.connected(cluster.address) as place:
        with pytest.raises(CannotRun, match="ZeroDivisionError"):
            place.survey()


@CPU_ONLY
@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_ctrl_c_keeps_what_is_done_and_resume_does_the_rest(cluster, tmp_path):
    output = tmp_path / "traces.jsonl"
    with started(cluster, output) as process:
        wait_for_traces(output, 1, process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    kept = trace_files.load(output)
    assert process.returncode == 130 and err.splitlines()[-1] == "interrupted", err
    assert 1 <= len(kept) < len(SOME) and f"{len(kept)}/{len(kept)}" in out
    with started(cluster, output, "--resume") as process:
        out, err = process.communicate(timeout=170)
    left = len(SOME) - len(kept)
    assert process.returncode == 0, out + err
    assert f"[{left}/{left}]" in out and f"{len(SOME)}/{len(SOME)}" in out
    traces = trace_files.load(output)
    assert len({t.workload.uuid for t in traces}) == len(traces) == len(SOME)
    assert all(old in traces for old in kept)


@CPU_ONLY
@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_a_node_that_is_killed_costs_no_cell(cluster, tmp_path):
    """Last, since one node is left. The same verdicts as those of a run without Ray, and each says
    where.
    """
    output, local = tmp_path / "traces.jsonl", tmp_path / "local.jsonl"
    with started(cluster, output) as process:
        wait_for_traces(output, 1, process)
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        out, err = process.communicate(timeout=170)
    assert process.returncode == 0, out + err
    assert re.search(r"Actor(Died|Unavailable)Error", out), out
    verdicts = [line.split()[2] for line in out.splitlines() if line.startswith("[")]
    assert len(verdicts) == len(set(verdicts)) == len(SOME)
    command = [
        "run",
        "--solutions",
        "triton_fused_v2",
        "--workloads",
        *SOME[:2],
        "--output",
        str(local),
    ]
    assert cli.main(command) == 0
    traces = {t.workload.uuid: t for t in trace_files.load(output)}
    assert len(traces) == len(SOME)
    for alone in trace_files.load(local):
        there = traces[alone.workload.uuid]
        assert there.evaluation.status == alone.evaluation.status
        assert there.evaluation.correctness.extra == pytest.approx(
            alone.evaluation.correctness.extra, abs=1e-2
        )
        assert provenance.of_trace(there).host and not provenance.of_trace(alone).host


@pytest.mark.gpu
def test_a_gpu_through_ray(tmp_path):
    """A cluster that is started for the run: each process has one GPU, and every trace says
    which.
    """
    pytest.importorskip("ray", reason="needs Ray: make setup-fleet")
    output = tmp_path / "traces.jsonl"
    few = "--workloads 1 7 --warmup-runs 1 --iterations 3 --num-trials 1"
    command = [
        sys.executable,
        "-m",
        "moebench",
        "run",
        "--ray",
        "--solutions",
        "triton_fused_v2",
        *few.split(),
    ]
    done = subprocess.run(
        [*command, "--output", str(output)],
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    traces = trace_files.load(output)
    assert len(traces) == 2 and all(
        t.is_successful() and " GPU-" in provenance.of_trace(t).host for t in traces
    )
