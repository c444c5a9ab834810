"""The main job on a Ray cluster: what is judged where, what happens to what dies, and what is left for `--resume`.

Most of it needs no Ray. The slow tests start a cluster of two nodes on this machine, one CPU each.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections import deque
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import recorded
import torch
from harness import cli
from harness.core import paths, provenance
from harness.core.errors import CannotRun, UserError
from harness.judging import cpu_judge, fleet, run
from harness.judging.fleet import Cells
from harness.judging.tolerances import TOLERANCES
from harness.report import run_table
from harness.report.blocks import fleet as simulation
from harness.results import resume, trace_files
from plain_solution import RIGHT, solution

RELAXED = TOLERANCES["relaxed"]
CONFIG = RELAXED.config(num_trials=1, timeout_seconds=60)
SOME = ["16", "19", "24", "33", "37", "70"]  # T of small workloads
CPU_ONLY = pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's job, for CPUs")


@pytest.fixture(scope="module")
def labelled():
    return run.load_workloads("small", [])


# What needs no Ray


def piece(geometry, uuid, *names):
    return Cells(geometry, f"T={uuid}", SimpleNamespace(uuid=uuid), names)


class Remote:
    """What Ray makes of an actor's method: the call is only noted, and Ray's stand-in here says when it is done."""

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
    """What each actor was given, where the actors are done one after the other; all results; how many were killed.

    dies: labels; an actor that is given one of them dies. broken: actors on which every reference fails. never: no
    actor starts. last_first: the latest call is done first. An actor without a call has to be unreferenced whenever Ray
    is waited for: it keeps its device until then.
    """
    calls, actors, killed = [], [], []

    def create(*known):
        actor = Actor(calls, len(actors))
        actors.append(weakref.ref(actor))
        return actor

    def wait(results, num_returns, timeout=None):
        waited_for = {calls[result][0] for result in results}
        assert all(actor() is None for number, actor in enumerate(actors) if number not in waited_for)
        done = sorted(results, reverse=last_first)
        return done[:1], done[1:]

    def get(result):
        actor, *given = calls[result]
        if not given:
            if never:
                raise RayError("The actor\nnever ran")
            return None
        (cells,) = given
        if cells.label in dies:
            raise RayError
        return run.Judged(cells.label, dict.fromkeys(cells.names), "no reference" if actor in broken else None)

    class Options:
        def options(self, **given):
            return SimpleNamespace(remote=create)

    fake = SimpleNamespace(remote=lambda actor: Options(), put=lambda x: x, get=get, wait=wait)
    fake.kill = lambda actor: killed.append(actor.number)
    fake.exceptions = SimpleNamespace(RayError=RayError)
    monkeypatch.setitem(sys.modules, "ray", fake)
    found = list(fleet.outcomes(cells, fleet.Fleet({}, slots, ""), {}, {}, {}, lambda text: None))
    pairs = [(call[0], call[1]) for call in calls if len(call) > 1]
    given = [[(c.label, *c.names) for actor, c in pairs if actor == number] for number in range(len(actors))]
    return given, [pair for arrived in found for pair in arrived], len(killed)


def test_a_workload_goes_to_whoever_is_free(monkeypatch):
    """A user would miss: the time in which a GPU with few cells left to judge waits for one with many.

    While many are left each actor has its next one already; of the last ones, nobody has two.
    """
    cells = [piece("a", str(at), "x", "y") for at in range(9)]
    given, found, killed = handed_out(monkeypatch, cells, 2)
    assert [len(work) for work in given] == [5, 4] and not killed
    assert sorted(c.label for c, _ in found) == [c.label for c in cells]
    assert all(set(outcome.traces) == {"x", "y"} for _, outcome in found)
    given, _, _ = handed_out(monkeypatch, cells, 2, last_first=True)
    assert sum(map(len, given)) == 9
    given, _, _ = handed_out(monkeypatch, cells[:3], 8)
    assert [len(work) for work in given] == [1, 1, 1], "no more actors than workloads"
    assert handed_out(monkeypatch, [], 2) == ([], [], 0)


def test_an_actor_stays_with_its_definition_and_leaves_others_theirs():
    """A user would miss: the seconds in which each GPU starts a worker for every definition."""

    def chosen(mine, others):
        waiting = {"done": deque(), "a": deque([piece("a", "1"), piece("a", "2")]), "b": deque([piece("b", "3")])}
        found = fleet.taken(waiting, mine, others)
        assert sum(map(len, waiting.values())) == 2
        return found.workload.uuid

    assert chosen("b", ["a"]) == chosen("done", ["a"]) == chosen(None, ["a", "a"]) == "3"
    assert chosen("a", ["a"]) == chosen(None, []) == "1"
    assert chosen("done", ["a", "b"]) == "1", "all are taken: help with the first"


def test_a_gpu_on_which_no_reference_runs_does_not_eat_the_queue(monkeypatch):
    """A user would miss: every workload that the others would have judged, as what fails is done at once."""
    cells = [piece("a", str(at), "x", "y") for at in range(9)]
    given, found, killed = handed_out(monkeypatch, cells, 2, broken=[0])
    assert len(given[0]) <= 2 and killed == 1 and len(found) == 9
    assert not [outcome for _, outcome in found if outcome.error]
    _, found, killed = handed_out(monkeypatch, cells[:1], 1, broken=[0, 1])
    assert [outcome.error for _, outcome in found] == ["no reference"] and killed == 1


def test_a_cluster_on_which_nothing_starts_ends_the_run(monkeypatch):
    """A user would miss: an end. No cell is blamed for it, as on a node that is dead and not known to be."""
    with pytest.raises(CannotRun, match="--ray: no process can be started: never ran"):
        handed_out(monkeypatch, [piece("a", str(at), "x") for at in range(9)], 2, never=True)


def test_what_kills_its_actor_is_tried_again_apart_and_what_was_behind_it_is_not(monkeypatch):
    """A user would miss: the results of the good solutions on that workload, and of the workloads given ahead."""
    cells = [piece("a", str(at), "x", "y") for at in range(6)]
    given, found, killed = handed_out(monkeypatch, cells, 1, dies=["T=1"])
    asked = [call for work in given for call in work]
    assert asked.count(("T=1", "x")) == asked.count(("T=1", "y")) == asked.count(("T=1", "x", "y")) == 1
    lost = {(c.label, *c.names) for c, outcome in found if outcome.lost}
    assert lost == {("T=1", "x"), ("T=1", "y")} and killed == 3
    assert [c.label for c, outcome in found if not outcome.lost] == ["T=0", "T=2", "T=3", "T=4", "T=5"]


@pytest.fixture
def nodes(monkeypatch):
    """A function that sets what Ray says of its nodes."""

    def known(*resources):
        listed = [{"Alive": True, "NodeManagerHostname": f"node{at}", "Resources": r} for at, r in enumerate(resources)]
        listed.append({"Alive": False, "Resources": {"GPU": 8, "accelerator_type:B200": 1}})
        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(nodes=lambda: listed))

    return known


def test_only_gpus_of_one_kind_are_used(nodes):
    """A user would miss: a table in which a faster GPU looks like a faster solution."""
    h100, h200 = ({"CPU": 64.0, "GPU": 8.0, f"accelerator_type:{kind}": 1.0} for kind in ("H100", "H200"))
    nodes({"CPU": 4.0}, h200, h200)
    found = fleet.fleet_of(None)
    assert found.slots == 16 and found.options == {"num_gpus": 1, "num_cpus": 0, "accelerator_type": "H200"}
    assert found.text == "16 H200 GPUs of 2 nodes"
    nodes(h100, h200)
    with pytest.raises(UserError, match=r"the cluster has H100 \(8\), H200 \(8\): name one with --gpu"):
        fleet.fleet_of(None)
    assert fleet.fleet_of("H100").options["accelerator_type"] == "H100"
    with pytest.raises(UserError, match=r"--gpu: got 'B200', the cluster has: H100 \(8\), H200 \(8\)"):
        fleet.fleet_of("B200")


def test_a_cluster_without_gpus_runs_on_its_cpus(nodes):
    nodes({"CPU": 2.0}, {"CPU": 1.0})
    found = fleet.fleet_of(None)
    assert (found.options, found.slots, found.text) == ({"num_cpus": 1}, 3, "3 CPUs of 2 nodes")


def test_a_cluster_without_anything_to_run_on_is_refused(nodes):
    """A user would miss: that nothing was judged, with an exit status of 0."""
    nodes({"memory": 1.0})
    with pytest.raises(CannotRun, match="--ray: the cluster has neither a GPU nor a CPU to judge on"):
        fleet.fleet_of(None)


def test_gpus_that_ray_has_no_name_for_are_not_picked_among_others(nodes):
    nodes({"GPU": 1.0}, {"GPU": 8.0, "accelerator_type:H200": 1.0})
    with pytest.raises(UserError, match=r"--gpu: got 'unknown'.*H200 \(8\), unknown \(1\)"):
        fleet.fleet_of("unknown")


def test_a_judge_is_ready_for_one_definition_after_the_other(monkeypatch):
    """A user would miss: workloads judged as another definition's, or one worker and its GPU memory for each."""
    seen, made = [], []

    @contextmanager
    def judging(geometry, packed, **known):
        seen.append(("open", geometry, packed, known["config"]))
        yield lambda label, workload, names: seen.append((geometry, label, names))
        seen.append(("close", geometry))

    monkeypatch.setattr(fleet.run, "judging", judging)
    monkeypatch.setattr(fleet.workloads, "make", made.append)
    monkeypatch.setattr(fleet, "build_slow", lambda packed, notes, say: made.append((packed, notes)))
    judge = fleet.Judge({"a": "A", "b": "B"}, {"a": "slow", "b": {}}, {"a": {"config": 1}, "b": {"config": 2}})
    for cells in (piece("a", "1", "x"), piece("a", "2", "x"), piece("b", "3", "y")):
        judge.judge(cells)
    judge.close()
    assert seen == [
        ("open", "a", "A", 1),
        ("a", "T=1", ("x",)),
        ("a", "T=2", ("x",)),
        ("close", "a"),
        ("open", "b", "B", 2),
        ("b", "T=3", ("y",)),
        ("close", "b"),
    ]
    assert made == ["a", ("A", "slow"), "b", ("B", {})]


def test_a_cluster_of_this_machine_is_surveyed_without_a_task(nodes, monkeypatch):
    """A user would miss: the seconds that a process takes to load torch, just to say what this machine has."""
    monkeypatch.setattr(fleet.socket, "gethostname", lambda: "node0")
    monkeypatch.setattr(fleet, "survey", lambda modules: modules)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    nodes({"CPU": 2.0})
    assert fleet.surveyed(fleet.fleet_of(None), ["torch"]) == ["torch"]  # the ray of this test has no tasks
    nodes({"CPU": 2.0}, {"CPU": 1.0})
    assert not fleet.fleet_of(None).here, "another machine"
    nodes({"CPU": 2.0, "GPU": 2.0})
    assert not fleet.fleet_of(None).here, "GPUs that this process does not see"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert fleet.fleet_of(None).here
    nodes({"CPU": 2.0})
    assert not fleet.fleet_of(None).here, "tasks on CPUs, of a machine with GPUs"


def test_without_ray_there_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert cli.main(["run", "--ray"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "--ray: Ray is not installed: run `make setup-fleet`, or pip install '.[fleet]'"


@pytest.mark.parametrize(
    ("address", "status", "message"),
    [
        ("nonsense", 2, "--ray: got 'nonsense', want HOST:PORT of a cluster's head, as `ray start` prints it"),
        ("ray://127.0.0.1:1", 2, "--ray: got 'ray://127.0.0.1:1', want HOST:PORT"),
        ("127.0.0.1:1", 1, "--ray 127.0.0.1:1: nobody answers there: ConnectionRefusedError"),
    ],
)
def test_a_cluster_that_is_not_there_is_one_line(address, status, message, monkeypatch, capsys):
    """A user would miss: what is wrong, for the minutes that Ray tries to connect."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    assert cli.main(["run", "--ray", address]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(message)


def test_a_cluster_that_may_want_a_token_says_how(monkeypatch, capsys):
    """A user would miss: why it cannot be reached, as Ray 2.60 asks for a token by default where it has made one."""

    def refuses(**arguments):
        raise ConnectionError("Failed to connect")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=refuses))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        assert cli.main(["run", "--ray", address]) == 1
        assert capsys.readouterr().err.endswith(f"ConnectionError: Failed to connect{fleet.TOKEN_HINT}\n")
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        assert cli.main(["run", "--ray", address]) == 1
        assert capsys.readouterr().err.endswith("ConnectionError: Failed to connect\n")


def test_what_is_for_a_cluster_is_refused_without_one(capsys):
    assert cli.main(["run", "--gpu", "H200"]) == 2
    assert capsys.readouterr().err == "--gpu: is for --ray\n"


@pytest.fixture
def trace(tmp_path, labelled):
    """A function that makes a trace of `tiny` on the first workload."""
    packed = solution(tmp_path, RIGHT)
    with run.judging("small", {"tiny": packed}, RELAXED, CONFIG, "cpu", "x") as judge:
        made = judge(*labelled[0]).traces["tiny"]

    def changed(hardware=None, **libs):
        environment = made.evaluation.environment
        update = {"libs": environment.libs | libs, "hardware": hardware or environment.hardware}
        evaluation = made.evaluation.model_copy(update={"environment": environment.model_copy(update=update)})
        return made.model_copy(update={"evaluation": evaluation})

    changed.packed = packed
    return changed


@pytest.mark.parametrize(
    "change",
    [{"solution_sha1": "before"}, {"tolerance": "contest"}, {"protocol": "twice"}, {"hardware": "NVIDIA H100"}],
    ids=str,
)
def test_what_is_stale_or_of_other_conditions_is_judged_again(change, trace, tmp_path):
    by = provenance.of_trace(trace())
    conditions = {"tiny": trace.packed}, by.hardware, by.tolerance, by.protocol
    path = tmp_path / "traces.jsonl"
    trace_files.merge(path, [trace(**change)])
    assert resume.current(path, *conditions) == {}
    trace_files.merge(path, [trace()])
    ((uuid, found),) = resume.current(path, *conditions).items()
    assert found == {"tiny": trace()} and uuid == trace().workload.uuid


def test_a_table_holds_one_kind_of_gpu(trace):
    """Ray's H100 is several products; what FIB calls the device decides."""
    judged = [
        run.Judged("T=1", {"a": trace("NVIDIA H100 PCIe"), "b": trace("NVIDIA H200")}),
        run.Judged("T=2", {"a": trace("NVIDIA H200")}),
    ]
    found = run_table.by_hardware(judged)
    assert [*found] == ["NVIDIA H100 PCIe", "NVIDIA H200"]
    assert [[*w.traces] for w in found["NVIDIA H200"]] == [["b"], ["a"]]
    assert run_table.by_hardware(judged[1:]) == {"": judged[1:]}


def test_what_was_lost_is_in_the_table_and_fails_the_run(trace):
    outcome = run.Judged("T=1", {"a": trace()}).joined(run.Judged("T=1", {}, lost={"b": "x\nit crashed"}))
    assert not outcome.passed
    notes = run_table.table([outcome], ["a", "b"], [], timed=False).notes
    assert notes[-1] == "NOT JUDGED: b on T=1: what ran it failed twice"
    assert [*run_table.lines(outcome, False, {})][:3] == [
        "T=1  b  NOT JUDGED: what ran it failed twice",
        "    x",
        "    it crashed",
    ]


def test_a_local_run_resumes_too(tmp_path, monkeypatch, no_gpu, trace, capsys):
    """Only what Ctrl-C left is judged, and the table has all of it."""
    output, seen = tmp_path / "traces.jsonl", []

    def run_workload(found, workload, solutions, *rest):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(workload.uuid)
        return {s.name: trace().evaluation for s in solutions}

    monkeypatch.setattr(cpu_judge, "run_workload", run_workload)
    command = ["run", "--solutions", "triton_fused_v2", "--workloads", *SOME[:4], "--output", str(output), "--resume"]
    assert cli.main(command) == 130
    first = [*seen]
    seen.clear()
    assert cli.main(command) == 0
    assert len(first) == 2 == len(seen) and not set(first) & set(seen)
    assert "4/4" in capsys.readouterr().out.rpartition("[2/2]")[2]
    assert cli.main(["run", "--resume"]) == 2
    assert capsys.readouterr().err.startswith("--resume: no traces are kept here without a GPU")


# The simulation of docs/fleet.md


def test_cell_times_are_those_between_traces():
    """A workload's first solution comes after its inputs and reference; the first workload has what is done once."""
    ms = {"a": 1.0, "b": 1.0}
    made = [recorded.trace(name, t, ms[name], 40.0) for t in (1, 7, 14) for name in ms]
    made += [recorded.trace(name, 80, ms[name], 40.0, host="another GPU of the same run") for name in ms]
    seconds = [0, 20, 25, 26, 33, 35, 22, 34]
    stamped = [
        t.model_copy(update={"evaluation": t.evaluation.model_copy(update={"timestamp": f"2026-01-01T00:00:{s:02}"})})
        for t, s in zip(made, seconds, strict=True)
    ]
    found = simulation.measured(stamped)
    seven, fourteen = (recorded.workload(t).uuid for t in (7, 14))
    assert found == {
        seven: simulation.Times(4.0, {"a": 1.0, "b": 1.0}),
        fourteen: simulation.Times(5.0, {"a": 2.0, "b": 2.0}),
    }


def test_the_schedule_and_the_trace_file():
    times = {("a", uuid): simulation.Times(3.0, {"x": 1.0, "y": 2.0}) for uuid in "123"}
    cells = [piece("a", "1", "x", "y"), piece("a", "2", "x"), piece("a", "3", "y")]
    start = simulation.START
    assert simulation.schedule(cells, times, 2, actors=True) == (15, [(start + 4, 1), (start + 6, 2), (start + 9, 1)])
    apart = [(start + 4, 1), (start + 6, 2), (2 * start + 9, 1)]
    assert simulation.schedule(cells, times, 2, actors=False) == (15, apart)
    other = times | {("b", "3"): times["a", "3"]}
    busy, arrivals = simulation.schedule([*cells[:2], piece("b", "3", "y")], other, 1, actors=True)
    assert arrivals[-1][0] == start + busy + simulation.CHANGE
    many = [(1.0, 2)] * 500
    assert simulation.written(many, together=False) == pytest.approx(1 + simulation.WRITE * 2 * 500 * 501 / 2)
    assert simulation.written(many, together=True) == pytest.approx(1 + simulation.WRITE * 1000)


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


@pytest.fixture(scope="module")
def connected(cluster):
    with fleet.connected(cluster.address):
        yield fleet.fleet_of(None)


def started(cluster, output, *arguments):
    """`moebench run --ray` on some of the workloads, in a process of its own."""
    command = [sys.executable, "-m", "harness", "run", "--ray", cluster.address, "--solutions", "triton_fused_v2"]
    command += ["--workloads", *SOME, "--output", str(output), *arguments]
    return subprocess.Popen(command, cwd=paths.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_traces(output, count, process):
    deadline = time.monotonic() + 120
    while len(trace_files.load(output)) < count:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.1)


@CPU_ONLY
@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_a_solution_that_ends_its_process_costs_nobody_else_anything(connected, tmp_path, labelled):
    """Tried twice and reported with what Ray says; the others are judged, each once."""
    dies = solution(tmp_path, "import os; os.kill(os.getpid(), 9)", "dies")
    good = solution(tmp_path, RIGHT, "good")
    cells = [
        Cells("small", label, w, ("good", "dies") if at == 1 else ("good",)) for at, (label, w) in enumerate(labelled)
    ]
    known = {"tolerance": RELAXED, "config": CONFIG, "command": "moebench run --ray"}
    few = fleet.Fleet(connected.options, 1, "one slot, so one actor at a time")
    said, judged = [], {}
    packed = {"small": {"good": good, "dies": dies}}
    for arrived in fleet.outcomes(cells, few, packed, {"small": {}}, {"small": known}, said.append):
        for piece, outcome in arrived:
            for name in piece.names:
                assert (piece.label, name) not in judged
                judged[piece.label, name] = outcome
    assert len(judged) == len(labelled) + 1
    lost = {cell for cell, outcome in judged.items() if outcome.lost}
    assert lost == {(labelled[1][0], "dies")}
    assert "died" in judged[labelled[1][0], "dies"].lost["dies"]
    assert all(outcome.passed for cell, outcome in judged.items() if cell not in lost)
    assert any(line.endswith("dies  is tried again: ActorDiedError") for line in said)


@CPU_ONLY
@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_a_task_that_fails_at_once_is_one_line(connected):
    """As on a node without this repository."""
    with pytest.raises(CannotRun, match="--ray: a node cannot run tasks of this repository: .*NoneType"):
        fleet.surveyed(replace(connected, here=False), [None])


@CPU_ONLY
@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_ctrl_c_keeps_what_is_done_and_resume_does_the_rest(cluster, tmp_path):
    output = tmp_path / "traces.jsonl"
    process = started(cluster, output)
    wait_for_traces(output, 1, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    kept = trace_files.load(output)
    assert process.returncode == 130 and err.splitlines()[-1] == "interrupted", err
    assert 1 <= len(kept) < len(SOME) and f"{len(kept)} traces saved" in out
    process = started(cluster, output, "--resume")
    out, err = process.communicate(timeout=170)
    left = len(SOME) - len(kept)
    assert process.returncode == 0, err
    assert f"[{left}/{left}]" in out and f"{len(SOME)}/{len(SOME)}" in out
    traces = trace_files.load(output)
    assert len({t.workload.uuid for t in traces}) == len(traces) == len(SOME)
    assert all(old in traces for old in kept)


@CPU_ONLY
@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_a_node_that_is_killed_costs_no_cell(cluster, tmp_path):
    """Last, since one node is left. The same verdicts as those of a run without Ray, and each says where."""
    output, local = tmp_path / "traces.jsonl", tmp_path / "local.jsonl"
    process = started(cluster, output)
    wait_for_traces(output, 1, process)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    out, err = process.communicate(timeout=170)
    assert process.returncode == 0, out + err
    assert re.search(r"is tried again: Actor(Died|Unavailable)Error", out), out
    judged = [line.split()[2] for line in out.splitlines() if line.startswith("[")]
    assert len(judged) == len(set(judged)) == len(SOME)
    command = ["run", "--solutions", "triton_fused_v2", "--workloads", *SOME[:2], "--output", str(local)]
    assert cli.main(command) == 0
    traces = {t.workload.uuid: t for t in trace_files.load(output)}
    assert len(traces) == len(SOME)
    for alone in trace_files.load(local):
        there = traces[alone.workload.uuid]
        assert there.evaluation.status == alone.evaluation.status
        assert there.evaluation.correctness.extra == pytest.approx(alone.evaluation.correctness.extra, abs=1e-2)
        assert provenance.of_trace(there).host and not provenance.of_trace(alone).host


@pytest.mark.gpu
def test_a_gpu_through_ray(tmp_path):
    """A cluster that is started for the run: each process has one GPU, and every trace says which."""
    pytest.importorskip("ray", reason="needs Ray: make setup-fleet")
    output = tmp_path / "traces.jsonl"
    few = "--workloads 1 7 --warmup-runs 1 --iterations 3 --num-trials 1"
    command = [sys.executable, "-m", "harness", "run", "--ray", "--solutions", "triton_fused_v2", *few.split()]
    command += ["--output", str(output)]
    done = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    traces = trace_files.load(output)
    assert len(traces) == 2 and all(t.is_successful() and " GPU-" in provenance.of_trace(t).host for t in traces)
