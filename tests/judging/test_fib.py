"""What is changed of FIB: its workers, Ctrl-C, device memory and the clock; no GPU is needed for
most of it.
"""

import importlib.util
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import judged
import pytest
import torch
from flashinfer_bench import Performance
from flashinfer_bench.bench import timing, utils
from flashinfer_bench.bench.evaluators import default
from flashinfer_bench.bench.runner import persistent_runner
from flashinfer_bench.bench.runner.persistent_runner import WorkerResponse
from moebench.core import paths, provenance
from moebench.core.atomic_file import write_atomically
from moebench.judging import fib, gpu_clock, judge
from moebench.packing import pack
from plain_solution import RIGHT, solution

MARK = "at::cuda::(anonymous namespace)::spin_kernel(long)"


def test_ctrl_c_drops_the_solutions_that_have_not_begun():
    """A user would miss: Ctrl-C that takes effect when every other solution of the workload has
    run.
    """
    with pytest.raises(KeyboardInterrupt):
        with fib.Pool(1) as pool:
            begun, *others = [pool.submit(time.sleep, 0.2) for _ in range(3)]
            while not begun.running():
                time.sleep(0.01)
            raise KeyboardInterrupt
    assert begun.done() and all(other.cancelled() for other in others)


def test_a_worker_takes_no_ctrl_c():
    """A user would miss: one line, and not a worker's traceback among it."""
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    with mock.patch.object(SpawnProcess, "_Popen", staticmethod(fib.start_without_interrupt)):
        process.start()
    status = Path(f"/proc/{process.pid}/status").read_text()
    process.terminate()
    blocked = int(re.search(r"SigBlk:\s*(\w+)", status)[1], 16)
    assert blocked >> (signal.SIGINT - 1) & 1 and signal.SIGINT not in signal.pthread_sigmask(
        signal.SIG_BLOCK, []
    )


class Process:
    """A worker's process and its pipe: a solution named `dies` ends it."""

    def __init__(self):
        self.exitcode, self.asked, self.closed, self.names = None, None, False, []

    def send(self, message):
        self.asked = message
        self.names.append(message["solution"].name)

    def poll(self, timeout):
        return True

    def recv(self):
        if self.asked["solution"].name == "dies":
            self.exitcode = -11
            raise EOFError
        states = persistent_runner.EvaluationStatus
        status = states.COMPILE_ERROR if self.asked["solution"].name == "wrong" else states.PASSED
        evaluation = SimpleNamespace(status=status, inputs=self.asked["inputs"])
        return {"cmd": WorkerResponse.EVALUATION.value, "evaluation": evaluation}

    def join(self, timeout):
        pass


class Worker(fib.Worker):
    def __init__(self, device, log_dir=None):
        self._device, self._log_dir, self._baselines, self._failure_records = (
            device,
            log_dir,
            {},
            {},
        )
        self._start_worker()

    def _start_worker(self):
        self._parent_conn = self._worker_proc = Process()

    def _shutdown_worker(self):
        pass

    def is_healthy(self):
        return self._worker_proc.exitcode is None


@pytest.fixture
def runner(monkeypatch, tmp_path):
    """FIB's runner, with a stand-in for its worker process. built: the workloads that a baseline
    was built for.
    """
    built = []

    def build_baseline(workload, **rest):
        built.append(workload.uuid)
        if workload.uuid == "too large":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB\nand more")
        return SimpleNamespace(
            handle=f"handle {len(built)}",
            definition=None,
            inputs=workload.uuid,
            outputs=None,
            mean_latency_ms=1.0,
        )

    evaluator = SimpleNamespace(build_baseline=build_baseline)
    monkeypatch.setattr(persistent_runner, "resolve_evaluator", lambda full: evaluator)
    monkeypatch.setattr(persistent_runner.fib_utils, "list_cuda_devices", lambda: ["cpu"])
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(fib, "Worker", Worker)
    with fib.running() as made:

        def run(uuid, *names):
            solutions = [SimpleNamespace(name=name) for name in names]
            config, workload = SimpleNamespace(timeout_seconds=1), SimpleNamespace(uuid=uuid)
            config.resolve_eval_config = lambda full: None
            return made.run_workload(
                SimpleNamespace(name="layer"), workload, solutions, config, tmp_path
            )

        run.built, run.worker = built, made._workers[0]
        yield run


def test_a_solution_that_ends_its_process_costs_no_other_one_its_result(runner):
    """A user would miss: every solution but one that comes after it on each workload, which FIB
    0.1.2 alone loses.
    """
    names = ["first", "dies", "second", "third"]
    for uuid in ("a", "b"):
        found = runner(uuid, *names)
        assert found["dies"].status.value == "RUNTIME_ERROR" and found["dies"].log.endswith(
            f"{fib.ENDED}SIGSEGV"
        )
        assert {found[name].inputs for name in names if name != "dies"} == {uuid}, (
            "of another workload"
        )
        assert len(runner.worker._baselines) <= 1, "inputs of an earlier workload hold memory"
    assert runner.built == ["a", "a", "b", "b"]


def test_the_first_to_pass_after_a_reference_is_judged_twice(runner):
    """A user would miss: times of the device as a reference has left it, for one solution of each
    workload.
    """
    for uuid in ("a", "b"):
        runner(uuid, "wrong", "first", "second")
    assert runner.worker._worker_proc.names == ["wrong", "first", "first", "second"] * 2


def test_a_reference_that_is_out_of_memory_says_so_and_costs_no_other_workload(runner):
    """A user would miss: the cause, and after the fourth one all that follow."""
    for _ in range(5):
        with pytest.raises(RuntimeError) as raised:
            runner("too large", "first")
        assert str(raised.value) == "OutOfMemoryError: CUDA out of memory. Tried to allocate 9 GiB"
    assert runner("a", "first")["first"].inputs == "a"


def test_device_memory_is_given_back_after_draws_and_the_reference(monkeypatch):
    """A user would miss: 45 GB that hold nothing while a worker is out of memory."""
    given_back, kept = [], utils._rand_tensor
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given_back.append(1))
    monkeypatch.setattr(fib, "Runner", lambda *log_dir: mock.Mock())
    with fib.running():
        utils._rand_tensor((2,), torch.float8_e4m3fn, torch.device("cpu"))
    assert len(given_back) == 1 and utils._rand_tensor is kept
    monkeypatch.setattr(
        persistent_runner.PersistentSubprocessWorker, "run_ref", lambda *_: "handle"
    )
    worker = object.__new__(fib.Worker)
    worker._baselines = {"before": 1}
    assert worker.run_ref() == "handle" and len(given_back) == 2 and not worker._baselines


@pytest.mark.parametrize("clock", ["events", "gpu"])
@pytest.mark.parametrize("renew", [False, True, "guest"])
def test_the_runner_of_a_gpu_gets_the_protocol_and_is_closed(tmp_path, monkeypatch, clock, renew):
    """A user would miss: a worker that holds the GPU's memory after Ctrl-C; a trace that does not
    say its clock.

    A solution of somebody else gets another worker than ours.
    """
    packed = solution(tmp_path, RIGHT)
    passed = judged.evaluated(packed).trace.evaluation
    passed = passed.model_copy(update={"performance": Performance(latency_ms=1, speedup_factor=2)})
    here, seen = provenance.here, []

    @contextmanager
    def running(by):
        def run_workload(full, workload, solutions, config, root):
            seen.append(
                (workload.axes["seq_len"], config.warmup_runs, config.iterations, config.num_trials)
            )
            return {each.name: passed for each in solutions}

        seen.append(by)
        try:
            yield SimpleNamespace(run_workload=run_workload)
        finally:
            seen.append("closed")

    monkeypatch.setattr(fib, "running", running)
    monkeypatch.setattr(judge, "device_here", lambda: "cuda:0")
    monkeypatch.setattr(provenance, "here", lambda device, **known: here("cpu", **known))
    how = {"num_trials": 3, "warmup_runs": 7, "iterations": 9}
    plan = judged.plan({"tiny": packed}, ["16", "19"], device=judged.GPU, clock=clock, **how)
    ((name, part),) = plan.parts.items()
    part = judged.replace(part, renew_worker=renew is True)
    if renew == "guest":
        first, second = part.cells
        both = {"solutions": {"tiny": packed, "theirs": packed}, "theirs": frozenset(["theirs"])}
        part = judged.replace(
            part, cells=(first, judged.replace(second, names=("theirs",))), **both
        )
    plan = judged.replace(plan, parts={name: part})
    with pytest.raises(KeyboardInterrupt):
        with closing(judge.Judge(plan)) as judging:
            first, _ = [judging(cell) for cell in plan]
            raise KeyboardInterrupt
    found = provenance.of_trace(first.evaluated["tiny"].trace)
    assert first.passed and found.clock == clock
    assert (
        found.protocol
        == "warmup=7 iterations=9 trials=3"
        + " fib=main" * fib.MAIN
        + " clock=gpu" * (clock == "gpu")
    )
    between = ["closed", clock] if renew else []
    assert seen == [clock, (16, 7, 9, 3), *between, (19, 7, 9, 3), "closed"]


def recorded(*calls):
    """Activities of calls, each a list of (start, end) after its mark, 1000 ns apart."""
    found = []
    for at, call in enumerate(calls):
        begin = 1000 * at
        found += [("fill", begin, begin + 5), (MARK, begin + 10, begin + 11)]
        found += [("kernel", begin + start, begin + end) for start, end in call]
        found.append((MARK, begin + 900, begin + 901))
    return found


@pytest.mark.parametrize(
    ("calls", "spans"),
    [
        (
            [[(20, 30), (50, 90)], [(20, 120), (30, 60)]],
            [70e-6, 100e-6],
        ),  # gaps count, overlaps once
        ([[(20, 30)], [(20, 30)]], [10e-6, 10e-6]),  # the flush between them is no part of any
    ],
)
def test_a_call_lasts_from_its_first_kernel_to_the_end_of_its_last(calls, spans):
    assert gpu_clock.spans_ms(reversed(recorded(*calls)), 2) == pytest.approx(spans)


@pytest.mark.parametrize("calls", [3, 2])
def test_what_was_not_recorded_is_no_time(calls):
    """Without CUPTI, or with a call that launches nothing, there must be an error and no figure."""
    with pytest.raises(RuntimeError, match="--clock gpu"):
        gpu_clock.spans_ms(recorded([(20, 30)], []), calls)


def test_fib_times_by_the_clock_inside_and_by_its_own_after(monkeypatch):
    """The reference, here, and solutions, in a worker, must be timed alike: a speed-up is of one
    clock.
    """
    monkeypatch.setattr(fib, "Runner", lambda *log_dir: mock.Mock())
    own, timed = (timing.time_runnable, persistent_runner._persistent_worker_main), []
    for clock in ("gpu", fib.CLOCK):
        with fib.running(clock):
            timed.append((default.time_runnable, persistent_runner._persistent_worker_main))
    assert timed == [
        own if fib.CLOCK == "gpu" else (gpu_clock.time_runnable, fib.gpu_clock_worker),
        own,
    ]
    assert (default.time_runnable, persistent_runner._persistent_worker_main) == own


@pytest.mark.skipif(not fib.MAIN, reason="needs FIB's main branch: set FIB_MAIN to a checkout")
def test_what_is_packed_passes_validate(tmp_path):
    """A user would miss: a pull request to the public data set that its checks refuse."""
    from flashinfer_bench.data.validate import validate_dataset

    for folder in ("definitions", "workloads"):
        shutil.copytree(
            paths.ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.py")
        )
    for of in (of for served in pack.pack_all([])[0].values() for of in served.values()):
        file = (
            tmp_path / "solutions" / paths.of_author(of.author, of.definition) / f"{of.name}.json"
        )
        write_atomically(file, of.model_dump_json())
    report = validate_dataset(
        str(tmp_path), checks=["layout", "definition", "solution"], disable_gpu=True
    )
    faults = [each for of in report.definitions.values() for each in (of.definition, of.solution)]
    assert len(faults) > 100 and {each.status for each in faults} == {"ok"}


@pytest.mark.skipif(
    "FIB_MAIN" not in os.environ, reason="needs FIB's main branch: set FIB_MAIN to a checkout"
)
def test_the_main_branch_passes_these_tests_too(tmp_path):
    """In a process that finds the checkout first, and what its timer comes from, or a stand-in for
    that.
    """
    if importlib.util.find_spec("flashinfer") is None:
        (tmp_path / "flashinfer").mkdir()
        (tmp_path / "flashinfer" / "testing.py").write_text("bench_gpu_time_with_cupti = None\n")
    names = ("test_fib", "test_run", "test_others", "test_hostile", "test_diagnosis")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow"]
    command += [Path(__file__).with_name(f"{name}.py") for name in names]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([os.environ["FIB_MAIN"], str(tmp_path)])}
    del env["FIB_MAIN"]
    done = subprocess.run(command, cwd=paths.ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.gpu
@pytest.mark.skipif(fib.CLOCK == "gpu", reason="FIB's own timer has no other clock")
def test_host_time_before_the_first_kernel_is_not_counted():
    """FIB's events count a slow host; this clock must not, and must read about what the kernel
    takes.
    """
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def slow_host(a):
        time.sleep(0.005)
        return a @ a

    ms = gpu_clock.time_runnable(slow_host, [a], 2, 10, "cuda:0")
    assert 0.05 < ms < 2 < timing.time_runnable(slow_host, [a], 2, 10, "cuda:0")
