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

from harness.timing import gpu_clock


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


@contextmanager
def running(log_dir: str, clock: str = "events") -> Iterator[PersistentRunner]:
    """The runner, timing by one of CLOCKS; its workers, and those that it starts again, end with the context."""
    with (
        mock.patch.object(SpawnProcess, "_Popen", staticmethod(start_without_interrupt)),
        mock.patch.object(persistent_runner, "ThreadPoolExecutor", Pool),
        mock.patch.object(utils, "_rand_tensor", giving_back(utils._rand_tensor)),
        mock.patch.object(PersistentSubprocessWorker, "run_ref", giving_back(PersistentSubprocessWorker.run_ref)),
        gpu_clock.in_fib() if clock == "gpu" else nullcontext(),
    ):
        runner = PersistentRunner(log_dir)
        try:
            yield runner
        finally:
            runner.close()
