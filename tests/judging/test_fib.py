"""What is changed of FIB: its workers, Ctrl-C, device memory and the clock; no GPU is needed for
most of it.
"""

import importlib.util
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import judged
import pytest
import torch
from flashinfer_bench import Correctness, Evaluation, EvaluationStatus, Performance
from flashinfer_bench.bench import timing, utils
from flashinfer_bench.bench.evaluators import default
from flashinfer_bench.bench.runner import persistent_runner
from flashinfer_bench.bench.runner.persistent_runner import WorkerResponse
from moebench.core import paths, provenance
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import UserError
from moebench.judging import evaluate, fib, gpu_clock, second_look
from moebench.judging import runners as judging_runners
from moebench.judging.isolation.comparison import Finding
from moebench.packing import pack
from plain_solution import RIGHT, solution

SPIN = "at::cuda::(anonymous namespace)::spin_kernel(long)"
NOT_FINITE = "the reference has 1 values in output, of 2,"
OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 9 GiB"


# Processes and Ctrl-C


def test_ctrl_c_drops_the_solutions_that_have_not_begun():
    with pytest.raises(KeyboardInterrupt), fib.Pool(1) as pool:
        begun, *others = [pool.submit(time.sleep, 0.2) for _ in range(3)]
        while not begun.running():
            time.sleep(0.01)
        raise KeyboardInterrupt
    assert begun.done()
    assert all(other.cancelled() for other in others)


def test_a_worker_takes_no_ctrl_c():
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=time.sleep, args=(60,))
    start = staticmethod(fib.start_without_interrupt)
    with mock.patch.object(SpawnProcess, "_Popen", start):
        process.start()
    status = Path(f"/proc/{process.pid}/status").read_text()
    process.terminate()

    blocked = int(re.search(r"SigBlk:\s*(\w+)", status)[1], 16)
    assert blocked >> (signal.SIGINT - 1) & 1
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_the_gpu_rests_before_each_trial_whose_time_leaves_the_worker(monkeypatch):
    times = iter([9.0, 1.0, 2.0, 6.0])
    rests = []
    before = default.DefaultEvaluator.eval_performance
    metadata = SimpleNamespace(destination_passing_style=False)
    runnable = SimpleNamespace(metadata=metadata)
    config = SimpleNamespace(warmup_runs=1, iterations=1)
    monkeypatch.setattr(default, "time_runnable", lambda *args: next(times))
    monkeypatch.setattr(fib, "rest", lambda: rests.append(times.__length_hint__()))

    with fib.rested_trials():
        # of another solution, which failed then
        default.time_runnable(runnable, [], 1, 1, "cpu")
        inputs_of_trials = [[], [], []]
        reference_ms = 6.0
        performance, failure = default.DefaultEvaluator.eval_performance(
            None, runnable, inputs_of_trials, reference_ms, config, "", "cpu"
        )
    assert failure is None
    assert rests == [4, 3, 2, 1]  # how many times were to come
    assert default.DefaultEvaluator.eval_performance == before

    evaluation = make_passed(performance)
    received = pickle.loads(pickle.dumps(evaluation)).performance
    assert received.latency_ms == 3.0
    assert received.speedup_factor == 2.0
    assert received.trials_ms == [1.0, 2.0, 6.0]


def make_passed(performance):
    """Return an evaluation that passed, as a worker sends it."""
    correctness = Correctness()
    return fib.make_eval(EvaluationStatus.PASSED, "cpu", None, correctness, performance)


def test_the_times_of_trials_are_in_the_trace_where_fib_reads_it(passed):
    """What FIB's schema does not have is in its libs, as the rest of the provenance."""
    here = provenance.measured_here("cpu").with_trials([1.0, 2.5])
    timed = fib.TimedPerformance(
        latency_ms=1.75, speedup_factor=2, trials_ms=[1.0, 2.5]
    )
    evaluation = provenance.into_evaluation(make_passed(timed), here)
    read = Evaluation.model_validate_json(evaluation.model_dump_json())
    assert "trials_ms" not in evaluation.model_dump()["performance"]
    assert read.environment.libs["trials_ms"] == "1 2.5"
    one_trial = provenance.measured_here("cpu").with_trials([1.0])
    assert one_trial.trials_ms is None  # its time is the latency


def spin(ready):
    """Stands in for FIB's worker: it never answers."""
    ready.set()
    while True:
        time.sleep(0.01)


def hanging_worker(ready):
    fib.persistent_worker_main = spin
    fib.worker_main(ready)


def test_a_worker_has_a_session_of_its_own_and_says_where_it_hangs(
    tmp_path, monkeypatch
):
    monkeypatch.setenv(fib.STACKS, str(tmp_path))
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=hanging_worker, args=(ready,))
    process.start()
    try:
        assert ready.wait(60)
        assert os.getsid(process.pid) == process.pid
        assert "in spin" in fib.stack_of(process)
    finally:
        process.kill()


# The runner, with stand-ins for its worker process


class Process:
    """A worker's process and its pipe: a solution named `dies` ends it."""

    def __init__(self):
        self.exitcode = None
        self.asked = None
        self.closed = False
        self.names = []

    def send(self, message):
        self.asked = message
        self.names.append(message["solution"].name)

    def poll(self, timeout):
        return True

    def recv(self):
        name = self.asked["solution"].name
        if name == "dies":
            self.exitcode = -11
            raise EOFError

        evaluation = SimpleNamespace(
            status=EvaluationStatus.PASSED,
            inputs=self.asked["inputs"],
            reference_ms=self.asked["ref_mean_latency_ms"],
        )
        return {"cmd": WorkerResponse.EVALUATION.value, "evaluation": evaluation}

    def join(self, timeout):
        pass


class Worker(fib.Worker):
    def __init__(self, device, log_dir=None):
        self._device = device
        self._log_dir = log_dir
        self._baselines = {}
        self._failure_records = {}
        self.references_ms = {}
        self._start_worker()

    def _start_worker(self):
        self._parent_conn = self._worker_proc = Process()

    def _shutdown_worker(self):
        pass

    def is_healthy(self):
        return self._worker_proc.exitcode is None


@dataclass(frozen=True)
class RunConfig:
    """What FIB's runner reads of a configuration, 0.1.2's and its main branch's."""

    timeout_seconds: int = 1
    profile_baseline: bool = True

    def resolve_eval_config(self, definition):
        return self


# how often the reference is finite on these workloads
FINITE_TIMES = {"not finite": 0, "finite once": 1}


@pytest.fixture
def runner(monkeypatch, tmp_path):
    """FIB's runner, with a stand-in for its worker process. built: the workloads that a baseline
    was built for. timed: those whose reference was timed.
    """
    built = []
    timed = []

    def build_baseline(workload, cfg, **rest):
        built.append(workload.uuid)
        if cfg.profile_baseline:
            timed.append(workload.uuid)
        if workload.uuid == "too large":
            raise torch.OutOfMemoryError(f"{OUT_OF_MEMORY}\nand more")
        times = built.count(workload.uuid)
        is_finite = times <= FINITE_TIMES.get(workload.uuid, times)
        expected = torch.tensor([1, 1 if is_finite else torch.nan])
        return SimpleNamespace(
            handle=f"handle {len(built)}",
            definition=None,
            inputs=workload.uuid,
            outputs=[[expected]],
            mean_latency_ms=float(len(built)) if cfg.profile_baseline else 0.0,
        )

    evaluator = SimpleNamespace(build_baseline=build_baseline)
    monkeypatch.setattr(persistent_runner, "resolve_evaluator", lambda full: evaluator)
    monkeypatch.setattr(
        persistent_runner.fib_utils, "list_cuda_devices", lambda: ["cpu"]
    )
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(fib, "Worker", Worker)
    with fib.patched_runner() as started:

        def run(uuid, *names):
            config = RunConfig()
            return started.run_workload(
                SimpleNamespace(name="layer", outputs={"output": None}),
                SimpleNamespace(uuid=uuid),
                [SimpleNamespace(name=name) for name in names],
                config,
                tmp_path,
            )

        run.built = built
        run.timed = timed
        run.started = started
        run.worker = started._workers[0]
        yield run


def test_a_solution_that_ends_its_process_costs_no_other_one_its_result(runner):
    for uuid in ("a", "b"):
        results = runner(uuid, "first", "dies", "second", "third")
        died = results.pop("dies")
        assert died.status == EvaluationStatus.RUNTIME_ERROR
        assert died.log.endswith(f"{fib.ENDED}SIGSEGV")
        assert {result.inputs for result in results.values()} == {uuid}
        assert len(runner.worker._baselines) <= 1, (
            "inputs of an earlier workload hold memory"
        )
    assert runner.built == ["a", "a", "b", "b"]  # again after `dies`


def test_a_reference_is_timed_on_the_first_inputs_of_a_workload_alone(runner):
    for uuid in ("a", "b", "a", "a"):
        reference_ms = runner(uuid, "first")["first"].reference_ms
        assert reference_ms == {"a": 1.0, "b": 2.0}[uuid]
    assert runner.built == ["a", "b", "a", "a"]  # the inputs of each are its own
    assert runner.timed == ["a", "b"]


def test_a_worker_that_cannot_start_again_is_no_solutions_fault(runner, monkeypatch):
    with monkeypatch.context() as patches:
        patches.setattr(Worker, "_start_worker", lambda self: 1 / 0)
        assert set(runner("a", "first", "dies", "second")) == {"first", "dies"}
    assert runner.started.fault is None
    assert runner("b", "first")["first"].inputs == "b"


def test_a_reference_that_fails_for_a_new_worker_is_no_solutions_fault(
    runner, monkeypatch
):
    def fails_again(self, *args):
        if runner.built:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run_ref(self, *args)

    run_ref = fib.PersistentSubprocessWorker.run_ref
    with monkeypatch.context() as patches:
        patches.setattr(fib.PersistentSubprocessWorker, "run_ref", fails_again)
        assert set(runner("a", "first", "dies", "second", "third")) == {"first", "dies"}
    assert str(runner.started.fault) == "OutOfMemoryError: CUDA out of memory"

    runner("b", "first")
    assert runner.started.fault is None


def test_a_device_on_which_no_reference_runs_is_not_why_another_ones_worker_is_lost(
    runner, monkeypatch
):
    def fails_there(self, *args):
        if self is broken:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run_ref(self, *args)

    run_ref = fib.PersistentSubprocessWorker.run_ref
    broken = Worker("another device")
    runner.started._workers.append(broken)
    monkeypatch.setattr(fib.PersistentSubprocessWorker, "run_ref", fails_there)
    monkeypatch.setattr(Worker, "_start_worker", lambda self: 1 / 0)
    assert set(runner("a", "first", "dies", "second")) == {"first", "dies"}
    assert broken.fault
    assert runner.started.fault is None


def test_no_solution_runs_on_a_new_workers_reference_that_is_not_finite(runner):
    """Nor the one after next: FIB leaves out only the next."""
    results = runner("finite once", "first", "dies", "second", "third")
    assert set(results) == {"first", "dies"}
    assert runner.worker._worker_proc.names == []
    assert str(runner.started.fault).startswith(NOT_FINITE)


def test_a_reference_that_is_out_of_memory_says_so_and_costs_no_other_workload(runner):
    for _ in range(5):
        with pytest.raises(RuntimeError) as raised:
            runner("too large", "first")
        assert str(raised.value) == f"OutOfMemoryError: {OUT_OF_MEMORY}"
    assert runner("a", "first")["first"].inputs == "a"


def test_a_reference_that_is_not_finite_is_not_evaluated(runner):
    with pytest.raises(RuntimeError, match=f"^{NOT_FINITE}"):
        runner("not finite", "first")
    assert runner("a", "first")["first"].inputs == "a"


def test_device_memory_is_given_back_after_draws_and_the_reference(monkeypatch):
    given_back = []
    before = utils._rand_tensor
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given_back.append(1))
    monkeypatch.setattr(fib, "Runner", lambda *log_dir: mock.Mock())
    with fib.patched_runner():
        utils._rand_tensor((2,), torch.float8_e4m3fn, torch.device("cpu"))
    assert len(given_back) == 1
    assert utils._rand_tensor is before

    def run_ref(self, *args):
        self._baselines["handle"] = SimpleNamespace(outputs=[], mean_latency_ms=1.0)
        return "handle"

    monkeypatch.setattr(
        persistent_runner.PersistentSubprocessWorker, "run_ref", run_ref
    )
    worker = object.__new__(fib.Worker)
    worker._baselines = {"before": 1}
    worker.references_ms = {}
    layer = SimpleNamespace(name="layer")
    assert worker.run_ref(layer, SimpleNamespace(uuid="a"), RunConfig()) == "handle"
    assert len(given_back) == 2
    assert set(worker._baselines) == {"handle"}


# An evaluator on a GPU, with stand-ins for its runners


@pytest.fixture(scope="module")
def passed(tmp_path_factory):
    """An evaluation that says PASSED, with a time."""
    packed = solution(tmp_path_factory.mktemp("passed"), RIGHT)
    evaluation = judged.evaluated(packed).trace.evaluation
    performance = Performance(latency_ms=1, speedup_factor=2)
    return evaluation.model_copy(update={"performance": performance})


@pytest.fixture
def on_gpu(monkeypatch, passed):
    """An evaluator takes this machine's CPU for a GPU; traces can be made all the same."""
    here = provenance.measured_here
    make_eval = fib.make_eval
    monkeypatch.setattr(evaluate, "device_here", lambda: "cuda:0")
    monkeypatch.setattr(
        provenance, "measured_here", lambda device, **facts: here("cpu", **facts)
    )
    monkeypatch.setattr(
        fib, "make_eval", lambda status, device, *rest: make_eval(status, "cpu", *rest)
    )


class Runners:
    """Stands in for FIB's runner and for those of isolation; `seen` lists what they are asked.

    left_out: packed names of solutions without a result. fault: as fib.Runner has it.
    """

    fault = None
    left_out = ()

    def __init__(self, monkeypatch, evaluation):
        self.seen = []
        self.evaluation = evaluation
        monkeypatch.setattr(fib, "patched_runner", self.running)
        monkeypatch.setattr(second_look.SecondLook, "changed_findings", self.look)

    @contextmanager
    def running(self, clock):
        self.seen.append(clock)
        try:
            yield self
        finally:
            self.seen.append("closed")

    def run_workload(self, full, workload, solutions, config, root):
        protocol = (config.warmup_runs, config.iterations, config.num_trials)
        self.seen.append((workload.axes["seq_len"], *protocol))
        run = [each.name for each in solutions if each.name not in self.left_out]
        return dict.fromkeys(run, self.evaluation)

    def look(self, part, task, results):
        return {}


@pytest.mark.parametrize("clock", ["events", "gpu"])
@pytest.mark.parametrize("renew_worker", [False, True])
def test_the_runner_of_a_gpu_gets_the_protocol_and_is_closed(
    tmp_path, monkeypatch, on_gpu, passed, clock, renew_worker
):
    runners = Runners(monkeypatch, passed)
    packed = {"tiny": solution(tmp_path, RIGHT)}
    protocol = {"num_trials": 3, "warmup_runs": 7, "iterations": 9}
    plan = judged.plan(packed, ["16", "19"], device=judged.GPU, clock=clock, **protocol)
    plan = judged.with_part(plan, renew_worker=renew_worker)

    with (
        pytest.raises(KeyboardInterrupt),
        closing(evaluate.Evaluator(plan)) as evaluator,
    ):
        first, _ = map(evaluator.evaluate, plan)
        raise KeyboardInterrupt

    between = ["closed", clock] if renew_worker else []
    assert runners.seen == [clock, (16, 7, 9, 3), *between, (19, 7, 9, 3), "closed"]

    assert first.passed
    recorded = provenance.of_trace(first.evaluated["tiny"].trace)
    words = ["warmup=7", "iterations=9", "trials=3", f"rest={fib.SECONDS_OF_REST}s"]
    if fib.IS_MAIN_BRANCH:
        words.append("fib=main")
    if clock == "gpu":
        words.append("clock=gpu")
    assert recorded.clock == clock
    assert recorded.protocol.split() == words


def test_third_party_solutions_are_compared_apart_on_a_gpu(
    tmp_path, monkeypatch, on_gpu, passed
):
    runners = Runners(monkeypatch, passed)
    apart = []

    class Apart(evaluate.IsolatedRunner):
        def __init__(self, device, clock):
            apart.append((device, clock))

        def run_workload(self, full, workload, solutions, config, root):
            apart.append([each.name for each in solutions])
            return {each.name: Finding.by_fib(passed) for each in solutions}

        def close(self):
            apart.append("closed")

    monkeypatch.setattr(judging_runners, "IsolatedRunner", Apart)
    monkeypatch.setattr(evaluate, "IsolatedRunner", Apart)
    packed = {
        "tiny": solution(tmp_path, RIGHT),
        "other": solution(tmp_path, RIGHT, "other"),
    }
    plan = judged.plan(packed, ["16"], device=judged.GPU)
    (both,) = plan
    tasks = (
        judged.replace(both, names=("tiny",)),
        judged.replace(both, names=("other",)),
    )
    plan = judged.with_part(plan, tasks=tasks, third_party=frozenset(["other"]))

    with closing(evaluate.Evaluator(plan)) as evaluator:
        for task in tasks:
            assert evaluator.evaluate(task).passed

    clock, call, closed = runners.seen
    assert clock == "events"
    assert closed == "closed"
    assert apart == [("cuda:0", "events"), ["other_h512_i256"], "closed"]


def test_a_worker_that_cannot_start_is_no_fault_of_the_reference(
    tmp_path, monkeypatch, on_gpu, passed
):
    Runners(monkeypatch, passed)
    starts = fib.patched_runner

    @contextmanager
    def fails(clock):
        raise RuntimeError("Failed to start worker")
        yield

    packed = {"tiny": solution(tmp_path, RIGHT)}
    plan = judged.plan(packed, ["16", "19"], device=judged.GPU)
    first, second = plan
    with closing(evaluate.Evaluator(plan)) as evaluator:
        monkeypatch.setattr(fib, "patched_runner", fails)
        with pytest.raises(UserError):
            evaluator.evaluate(first)
        monkeypatch.setattr(fib, "patched_runner", starts)
        assert evaluator.evaluate(second).passed


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (None, evaluate.NOT_RUN),
        ("OutOfMemoryError: no", "the reference did not run: OutOfMemoryError: no"),
        ("the reference has 1 values", "the reference has 1 values"),
    ],
)
def test_what_was_not_run_is_not_evaluated_and_says_why(
    tmp_path, monkeypatch, on_gpu, passed, fault, reason
):
    """That the reference failed on a new worker, or that there was no new one."""
    runners = Runners(monkeypatch, passed)
    runners.fault = RuntimeError(fault) if fault else None
    runners.left_out = ["b_h512_i256"]
    packed = {name: solution(tmp_path, RIGHT, name) for name in ("a", "b")}
    (outcome,) = judged.outcomes(packed, ["16"], device=judged.GPU)

    assert set(outcome.evaluated) == {"a"}
    assert outcome.lost == {"b": reason}
    assert not outcome.passed


def test_a_time_out_on_a_gpu_is_not_waited_for_again(tmp_path, monkeypatch, on_gpu):
    hung = fib.make_eval(EvaluationStatus.TIMEOUT, "cpu", None, None, None, "no answer")
    runners = Runners(monkeypatch, hung)
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path)
    packed = {"tiny": solution(tmp_path)}

    for outcome in judged.outcomes(packed, ["16", "19"], device=judged.GPU):
        evaluation = outcome.evaluated["tiny"].trace.evaluation
        assert evaluation.status == EvaluationStatus.TIMEOUT
    clock, *calls, closed = runners.seen
    assert len(calls) == 1


# The clocks


def recorded(*calls):
    """Return activities of calls, each a list of (start, end) after its mark, 1000 ns apart."""
    activities = []
    for number, call in enumerate(calls):
        begin = 1000 * number
        activities.append(("fill", begin, begin + 5))
        activities.append((SPIN, begin + 10, begin + 11))
        activities += [("kernel", begin + start, begin + end) for start, end in call]
        activities.append((SPIN, begin + 900, begin + 901))
    return [gpu_clock.Activity(*each) for each in activities]


SPANS = {
    "gaps count, overlaps once": (
        [[(20, 30), (50, 90)], [(20, 120), (30, 60)]],
        [70e-6, 100e-6],
    ),
    "the flush between is no part": ([[(20, 30)], [(20, 30)]], [10e-6, 10e-6]),
}


@pytest.mark.parametrize("name", SPANS)
def test_a_call_lasts_from_its_first_kernel_to_the_end_of_its_last(name):
    calls, spans = SPANS[name]
    assert gpu_clock.spans_ms(reversed(recorded(*calls)), 2) == pytest.approx(spans)


@pytest.mark.parametrize("calls", [3, 2])
def test_what_was_not_recorded_is_no_time(calls):
    """Without CUPTI, or with a call that launches nothing, there is an error and no figure."""
    with pytest.raises(RuntimeError, match="--clock gpu"):
        gpu_clock.spans_ms(recorded([(20, 30)], []), calls)


def test_fib_times_by_the_clock_inside_and_by_its_own_after(monkeypatch):
    """The reference, here, and solutions, in a worker, are timed alike."""
    monkeypatch.setattr(fib, "Runner", lambda *log_dir: mock.Mock())
    before = (timing.time_runnable, persistent_runner._persistent_worker_main)

    with fib.patched_runner("gpu"):
        by_gpu = (default.time_runnable, persistent_runner._persistent_worker_main)
    with fib.patched_runner(fib.CLOCK):
        by_own = (default.time_runnable, persistent_runner._persistent_worker_main)

    assert by_own == (timing.time_runnable, fib.worker_main)
    if fib.CLOCK == "gpu":
        assert by_gpu == by_own
    else:
        assert by_gpu == (gpu_clock.time_runnable, fib.gpu_clock_worker)
    assert (default.time_runnable, persistent_runner._persistent_worker_main) == before
    assert fib.timer(fib.CLOCK) is timing.time_runnable


# FIB's main branch


@pytest.mark.skipif(
    not fib.IS_MAIN_BRANCH, reason="needs FIB's main branch: set FIB_MAIN to a checkout"
)
def test_what_is_packed_passes_validate(tmp_path):
    from flashinfer_bench.data.validate import validate_dataset

    for folder in ("definitions", "workloads"):
        shutil.copytree(paths.ROOT / folder, tmp_path / folder)
    all_packed, _ = pack.pack_all([])
    for by_layer in all_packed.values():
        for packed in by_layer.values():
            below = paths.author_folder(packed.author, packed.definition)
            file = tmp_path / "solutions" / below / f"{packed.name}.json"
            write_atomically(file, packed.model_dump_json())

    checks = ["layout", "definition", "solution"]
    report = validate_dataset(str(tmp_path), checks=checks, disable_gpu=True)
    assert len(report.definitions) > 50
    for each in report.definitions.values():
        assert each.definition.status == "ok"
        assert each.solution.status == "ok"


@pytest.mark.skipif(
    "FIB_MAIN" not in os.environ,
    reason="needs FIB's main branch: set FIB_MAIN to a checkout",
)
def test_the_main_branch_passes_these_tests_too(tmp_path):
    """In a process that finds the checkout first, and what its timer comes from, or a stand-in."""
    if importlib.util.find_spec("flashinfer") is None:
        (tmp_path / "flashinfer").mkdir()
        stub = tmp_path / "flashinfer" / "testing.py"
        stub.write_text("bench_gpu_time_with_cupti = None\n")
    environment = dict(os.environ)
    checkout = environment.pop("FIB_MAIN")
    environment["PYTHONPATH"] = os.pathsep.join([checkout, str(tmp_path)])

    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow"]
    for name in (
        "test_fib",
        "test_run",
        "test_others",
        "test_hostile",
        "test_diagnosis",
    ):
        command.append(Path(__file__).with_name(f"{name}.py"))
    done = subprocess.run(
        command, cwd=paths.ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


# On a GPU


@pytest.mark.gpu
@pytest.mark.skipif(fib.CLOCK == "gpu", reason="FIB's own timer has no other clock")
def test_host_time_before_the_first_kernel_is_not_counted():
    """FIB's events count a slow host; this clock reads about what the kernel takes."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def slow_host(a):
        time.sleep(0.005)
        return a @ a

    ms = gpu_clock.time_runnable(slow_host, [a], 2, 10, "cuda:0")
    assert 0.05 < ms < 2 < timing.time_runnable(slow_host, [a], 2, 10, "cuda:0")
