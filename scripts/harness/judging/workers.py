"""FIB's runner on CUDA devices, whose worker processes end with it and at once on Ctrl-C.

This process holds the inputs that a worker reads, and leaves it the rest of the device's memory.
"""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import wraps
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from unittest import mock

import torch
from flashinfer_bench.bench import utils
from flashinfer_bench.bench.runner import PersistentRunner, persistent_runner
from flashinfer_bench.bench.runner.persistent_runner import PersistentSubprocessWorker

from harness.judging import gpu_clock


class Pool(ThreadPoolExecutor):
    """FIB waits for every solution of a workload; here those that have not begun are dropped after an exception."""

    def __exit__(self, raised, *rest):
        self.shutdown(cancel_futures=raised is not None)


def start_without_interrupt(process, start=SpawnProcess._Popen):
    """Start a worker that never takes SIGINT: it would print a traceback. The parent's handler ends it."""
    resource_tracker.ensure_running()  # spawning begins with it, and it unblocks SIGINT when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return start(process)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def giving_back(function: Callable) -> Callable:
    """The function, after which this process has no device memory but what holds tensors.

    After each random tensor: one that is drawn later would lie in the block of the fp32 numbers before it, and keep all
    of that. After the reference: the worker could not have what its clones and temporaries took.
    """

    @wraps(function)
    def wrapped(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        finally:
            torch.cuda.empty_cache()

    return wrapped


def alone(run_ref: Callable) -> Callable:
    """The function, before which the worker drops any baseline: FIB releases none that it built after a restart."""

    @wraps(run_ref)
    def wrapped(worker, *args):
        worker._baselines.clear()
        return run_ref(worker, *args)

    return wrapped


def on_its_baseline(run_solution: Callable) -> Callable:
    """The function, on the baseline that the worker has.

    Where a solution has ended its process FIB builds the baseline again, but gives it to the next solution only: all
    others of that workload would be RUNTIME_ERROR.
    """

    @wraps(run_solution)
    def wrapped(worker, solution, baseline, config):
        return run_solution(worker, solution, next(iter(worker._baselines), baseline), config)

    return wrapped


@contextmanager
def put_right() -> Iterator[None]:
    """FIB's runner and workers as they are used here."""
    worker = PersistentSubprocessWorker
    with (
        mock.patch.object(SpawnProcess, "_Popen", staticmethod(start_without_interrupt)),
        mock.patch.object(persistent_runner, "ThreadPoolExecutor", Pool),
        mock.patch.object(utils, "_rand_tensor", giving_back(utils._rand_tensor)),
        mock.patch.object(worker, "run_ref", alone(giving_back(worker.run_ref))),
        mock.patch.object(worker, "run_solution", on_its_baseline(worker.run_solution)),
    ):
        yield


@contextmanager
def running(log_dir: str, clock: str = "events") -> Iterator[PersistentRunner]:
    """The runner, timing by one of CLOCKS; its workers, and those that it starts again, end with the context."""
    with put_right(), gpu_clock.in_fib() if clock == "gpu" else nullcontext():
        runner = PersistentRunner(log_dir)
        try:
            yield runner
        finally:
            runner.close()
