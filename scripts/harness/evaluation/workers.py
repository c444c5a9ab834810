"""FIB's runner on CUDA devices, whose worker processes end with it and at once on Ctrl-C."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from unittest import mock

from flashinfer_bench.bench.runner import PersistentRunner, persistent_runner


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


@contextmanager
def running(log_dir: str) -> Iterator[PersistentRunner]:
    """The runner; its workers, and those that it starts again, have ended when the context ends."""
    with (
        mock.patch.object(SpawnProcess, "_Popen", staticmethod(start_without_interrupt)),
        mock.patch.object(persistent_runner, "ThreadPoolExecutor", Pool),
    ):
        runner = PersistentRunner(log_dir)
        try:
            yield runner
        finally:
            runner.close()
