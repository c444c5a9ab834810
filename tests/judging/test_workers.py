"""FIB's worker processes and Ctrl-C; no GPU is needed for what this repository adds."""

import multiprocessing
import re
import signal
import time
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from flashinfer_bench.bench.runner import persistent_runner
from flashinfer_bench.bench.runner.persistent_runner import PersistentRunner, PersistentSubprocessWorker, WorkerResponse
from harness.judging import workers


def test_ctrl_c_drops_the_solutions_that_have_not_begun():
    """A user would miss: Ctrl-C that takes effect when every other solution of the workload has run."""
    with pytest.raises(KeyboardInterrupt):
        with workers.Pool(1) as pool:
            begun, *others = [pool.submit(time.sleep, 0.2) for _ in range(3)]
            while not begun.running():
                time.sleep(0.01)
            raise KeyboardInterrupt
    assert begun.done() and all(other.cancelled() for other in others)


def test_a_worker_takes_no_ctrl_c():
    """A user would miss: one line, and not a worker's traceback among it."""
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    with mock.patch.object(SpawnProcess, "_Popen", staticmethod(workers.start_without_interrupt)):
        process.start()
    status = Path(f"/proc/{process.pid}/status").read_text()
    process.terminate()
    blocked = int(re.search(r"SigBlk:\s*(\w+)", status)[1], 16)
    assert blocked >> (signal.SIGINT - 1) & 1 and signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


class Process:
    """A worker's process, by its pipe: a solution named `dies` ends it."""

    def __init__(self):
        self.alive, self.asked = True, None

    closed = False

    def send(self, message):
        self.asked = message

    def poll(self, timeout):
        return True

    def recv(self):
        if self.asked["solution"].name == "dies":
            self.alive = False
            raise EOFError
        evaluation = SimpleNamespace(status=persistent_runner.EvaluationStatus.PASSED, inputs=self.asked["inputs"])
        return {"cmd": WorkerResponse.EVALUATION.value, "evaluation": evaluation}


def test_a_solution_that_ends_its_process_costs_no_other_one_its_result(monkeypatch, tmp_path):
    """A user would miss: every solution but one that comes after it on each workload, which FIB 0.1.2 alone loses."""
    worker = object.__new__(PersistentSubprocessWorker)
    worker._device, worker._log_dir, worker._baselines = "cpu", str(tmp_path), {}
    worker._failure_records, worker._parent_conn = {}, Process()

    def start():
        worker._parent_conn = Process()

    worker._shutdown_worker, worker._start_worker = lambda: None, start
    worker.is_healthy = lambda: worker._parent_conn.alive
    runner = object.__new__(PersistentRunner)
    runner._workers, runner._curr_worker_idx, runner._log_dir = [worker], 0, str(tmp_path)
    built = []

    def build_baseline(workload, **rest):
        built.append(workload.uuid)
        return SimpleNamespace(
            handle=f"handle {len(built)}", definition=None, inputs=workload.uuid, outputs=None, mean_latency_ms=1.0
        )

    evaluator = SimpleNamespace(build_baseline=build_baseline)
    monkeypatch.setattr(persistent_runner, "resolve_evaluator", lambda full: evaluator)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    names = ["first", "dies", "second", "third"]
    config = SimpleNamespace(timeout_seconds=1)
    with workers.put_right():
        for uuid in ("a", "b"):
            workload = SimpleNamespace(uuid=uuid)
            solutions = [SimpleNamespace(name=name) for name in names]
            found = runner.run_workload(SimpleNamespace(name="layer"), workload, solutions, config, tmp_path)
            assert found["dies"].status.value == "RUNTIME_ERROR"
            assert {found[name].inputs for name in names if name != "dies"} == {uuid}, "of another workload"
            assert len(worker._baselines) == 1, "inputs of an earlier workload hold memory"
    assert built == ["a", "a", "b", "b"]
