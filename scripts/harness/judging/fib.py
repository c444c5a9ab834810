"""Everything private of FlashInfer-Bench 0.1.2: what is called, subclassed or patched, here alone, and why.

Called, by modules of this room: FIB's own inputs, reference outputs and error statistics, so that a judgement here is
FIB's. Subclassed: PersistentRunner, which judges on CUDA devices in a worker process. Patched, inside `running`: what
costs other solutions their result after one has ended its worker, what keeps device memory that the worker needs, and
Ctrl-C. This process holds the inputs that a worker reads, and leaves it the rest of the device's memory.
"""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import wraps
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from unittest import mock

import torch
from flashinfer_bench import Evaluation, EvaluationStatus
from flashinfer_bench.bench import utils
from flashinfer_bench.bench.evaluators import default
from flashinfer_bench.bench.evaluators.utils import allocate_outputs, normalize_result
from flashinfer_bench.bench.runner import PersistentRunner, persistent_runner
from flashinfer_bench.bench.runner.persistent_runner import PersistentSubprocessWorker
from flashinfer_bench.bench.utils import compute_error_stats, gen_inputs, load_safetensors, make_eval
from flashinfer_bench.utils import redirect_stdio_to_file

from harness.judging import gpu_clock

CALLED = (
    allocate_outputs,  # for a solution that writes into its outputs
    normalize_result,  # of one that returns them
    gen_inputs,  # random ones as FIB draws them
    load_safetensors,  # stored ones
    compute_error_stats,  # the share that matches
    make_eval,  # an Evaluation with its environment and the log file's text
    redirect_stdio_to_file,  # what a solution prints, into that file
)
ENDED = "the process ended: "  # in a log, before how


def ending(exitcode: int | None) -> str:
    """How a process ended, by multiprocessing's exit code: 'exit status 3', 'SIGSEGV'."""
    if exitcode is not None and exitcode < 0:
        return signal.Signals(-exitcode).name
    return f"exit status {exitcode}"


@contextmanager
def without_interrupt() -> Iterator[None]:
    """A process that starts inside never takes SIGINT: it would print a traceback. The parent's handler ends it."""
    resource_tracker.ensure_running()  # starting a process begins with it, and it unblocks SIGINT when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_without_interrupt(process, start=SpawnProcess._Popen):
    with without_interrupt():
        return start(process)


class Pool(ThreadPoolExecutor):
    """FIB waits for every solution of a workload; here those that have not begun are dropped after an exception."""

    def __exit__(self, raised, *rest):
        self.shutdown(cancel_futures=raised is not None)


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
    """The function, before which the worker drops any baseline: FIB releases none that it built after a restart.

    What it raises is kept for `Runner`, as FIB only logs it.
    """

    @wraps(run_ref)
    def wrapped(worker, *args):
        worker._baselines.clear()
        try:
            return run_ref(worker, *args)
        except Exception as error:
            worker.fault = f"{type(error).__name__}: {error}".splitlines()[0]
            raise

    return wrapped


def on_its_baseline(run_solution: Callable) -> Callable:
    """The function, on the baseline that the worker has; where the worker has died the log says how.

    Where a solution has ended its process FIB builds the baseline again, but gives it to the next solution only: all
    others of that workload would be RUNTIME_ERROR.
    """

    @wraps(run_solution)
    def wrapped(worker, solution, baseline, config) -> Evaluation:
        found = run_solution(worker, solution, next(iter(worker._baselines), baseline), config)
        process = worker._worker_proc
        if found.status == EvaluationStatus.RUNTIME_ERROR and process is not None:
            process.join(0.2 if "onnection" in found.log else 0)
            if process.exitcode is not None:
                return found.model_copy(update={"log": f"{found.log}\n{ENDED}{ending(process.exitcode)}"})
        return found

    return wrapped


def gpu_clock_worker(*args) -> None:
    """FIB's worker process, by the GPU's clock."""
    with mock.patch.object(default, "time_runnable", gpu_clock.time_runnable):
        persistent_runner._persistent_worker_main(*args)


@contextmanager
def put_right(clock: str) -> Iterator[None]:
    """FIB's runner and workers as they are used here; the reference, here, and solutions are timed by one clock."""
    worker, by_gpu = PersistentSubprocessWorker, clock == "gpu"
    time_runnable = gpu_clock.time_runnable if by_gpu else default.time_runnable
    main = gpu_clock_worker if by_gpu else persistent_runner._persistent_worker_main
    with (
        mock.patch.object(SpawnProcess, "_Popen", staticmethod(start_without_interrupt)),
        mock.patch.object(persistent_runner, "ThreadPoolExecutor", Pool),
        mock.patch.object(persistent_runner, "_persistent_worker_main", main),
        mock.patch.object(default, "time_runnable", time_runnable),
        mock.patch.object(utils, "_rand_tensor", giving_back(utils._rand_tensor)),
        mock.patch.object(worker, "run_ref", alone(giving_back(worker.run_ref))),
        mock.patch.object(worker, "run_solution", on_its_baseline(worker.run_solution)),
    ):
        yield


class Runner(PersistentRunner):
    """FIB's, on one device, which a reference that fails does not cost the device."""

    def run_workload(self, *args) -> dict[str, Evaluation]:
        """Raises RuntimeError with the cause where the reference failed: FIB says that no worker is healthy."""
        self._device_retry_counts.clear()  # or the fourth reference that fails ends all that follows
        workers = list(self._workers)
        for worker in workers:
            worker.fault = None
        try:
            return super().run_workload(*args)
        except RuntimeError as error:
            raise RuntimeError(next((w.fault for w in workers if w.fault), str(error))) from error


@contextmanager
def running(log_dir: str, clock: str = "events") -> Iterator[Runner]:
    """The runner, timing by one of CLOCKS; its workers, and those that it starts again, end with the context."""
    with put_right(clock):
        runner = Runner(log_dir)
        try:
            yield runner
        finally:
            runner.close()
