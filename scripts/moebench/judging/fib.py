"""Everything private of FlashInfer-Bench 0.1.2 and its main branch that is called, subclassed or
patched, and why.

Called, so that a judgement here is FIB's: its inputs, outputs, error statistics and log files.
Subclassed: its runner, which judges on a CUDA device in a worker process, and the parent's side of
that worker. Patched, while a runner runs: how worker processes start, what times a call, and what
keeps device memory.
"""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from unittest import mock

import torch
from flashinfer_bench import BenchmarkConfig, Definition, Evaluation, EvaluationStatus
from flashinfer_bench.bench import evaluators, timing, utils
from flashinfer_bench.bench.evaluators import default, resolve_evaluator
from flashinfer_bench.bench.evaluators.utils import allocate_outputs, normalize_result  # noqa: F401
from flashinfer_bench.bench.runner import PersistentRunner, persistent_runner
from flashinfer_bench.bench.runner.persistent_runner import PersistentSubprocessWorker
from flashinfer_bench.bench.timing import time_runnable  # noqa: F401
from flashinfer_bench.bench.utils import (  # noqa: F401
    compute_error_stats,
    gen_inputs,
    load_safetensors,
    make_eval,
)

from moebench.core.errors import CannotRun
from moebench.judging import gpu_clock

ENDED = "the process ended: "  # in a log, before how
MAIN = not hasattr(timing, "do_bench")  # FIB's main branch
CLOCK = "events"  # of FIB's own timer
if MAIN:
    with suppress(
        Exception
    ):  # whatever raises where cupti-python does not load: then that branch takes events, too
        import cupti.cupti  # noqa: F401

        CLOCK = "gpu" if int(version("cupti-python").partition(".")[0]) >= 13 else "events"
TIMED = [module for module in vars(evaluators).values() if hasattr(module, "time_runnable")]
ELEMENTWISE = (
    "DefaultEvaluator",
    "LowBitEvaluator",
)  # FIB's that compare as `compute_error_stats` counts


def check_judge(full: Definition, on_gpu: bool) -> None:
    """Raises CannotRun on a CPU for a definition whose outputs FIB does not compare element by
    element.
    """
    judge = resolve_evaluator(full).__name__
    if not on_gpu and judge not in ELEMENTWISE:
        raise CannotRun(f"{full.name} needs a CUDA device: FIB's {judge} judges it")


def ending(exitcode: int) -> str:
    """How a process ended, by multiprocessing's exit code: 'exit status 3', 'SIGSEGV'."""
    return signal.Signals(-exitcode).name if exitcode < 0 else f"exit status {exitcode}"


@contextmanager
def without_interrupt() -> Iterator[None]:
    """A process that starts inside never takes SIGINT: it would print a traceback. The parent's
    handler ends it.
    """
    # starting a process begins with it, and it unblocks SIGINT when it starts
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_without_interrupt(process, start=SpawnProcess._Popen):
    with without_interrupt():
        return start(process)


class Pool(ThreadPoolExecutor):
    """FIB waits for every solution of a workload; here those that have not begun are dropped after
    an exception.
    """

    def __exit__(self, raised, *rest):
        self.shutdown(cancel_futures=raised is not None)


@contextmanager
def giving_back() -> Iterator[None]:
    """Around the drawing of a random tensor, after which no freed block is kept.

    One that is drawn later would lie in the block of the fp32 numbers before it, and keep all of
    that.
    """
    try:
        yield
    finally:
        torch.cuda.empty_cache()


class Worker(PersistentSubprocessWorker):
    """The parent's side of a worker. fault: why the reference failed, which FIB only logs."""

    fault, after_reference = None, False

    def run_ref(self, *args):
        """Without an earlier baseline, as FIB releases none that it built after a restart; leaves
        no freed memory.
        """
        self._baselines.clear()
        self.after_reference = True
        try:
            return super().run_ref(*args)
        except Exception as error:
            self.fault = f"{type(error).__name__}: {error}".splitlines()[0]
            raise
        finally:
            torch.cuda.empty_cache()

    def run_solution(self, solution, baseline, config) -> Evaluation:
        """On the baseline that there is, as FIB gives one that it built again to the next solution
        alone.

        The first to pass after a reference, timed 5 to 10% slower, is judged twice. The log says
        how a process ended.
        """
        baseline = next(iter(self._baselines), baseline)
        found = super().run_solution(solution, baseline, config)
        if self.after_reference and found.status == EvaluationStatus.PASSED:
            found = super().run_solution(solution, baseline, config)
            self.after_reference = False
        if found.status == EvaluationStatus.RUNTIME_ERROR and self._worker_proc:
            self._worker_proc.join(0.2)
            if (code := self._worker_proc.exitcode) is not None:
                return found.model_copy(update={"log": f"{found.log}\n{ENDED}{ending(code)}"})
        return found


class Runner(PersistentRunner):
    def run_workload(self, *args) -> dict[str, Evaluation]:
        """Raises RuntimeError with the cause where the reference failed; a fourth one does not cost
        the device.
        """
        self._device_retry_counts.clear()
        workers = list(self._workers)
        for worker in workers:
            worker.fault = None
        try:
            return super().run_workload(*args)
        except RuntimeError as error:
            raise RuntimeError(next((w.fault for w in workers if w.fault), error)) from error


def gpu_clock_worker(*args) -> None:
    """FIB's worker process, by the GPU's clock."""
    with mock.patch.object(default, "time_runnable", gpu_clock.time_runnable):
        persistent_runner._persistent_worker_main(*args)


@contextmanager
def running(clock: str = CLOCK) -> Iterator[Runner]:
    """The runner; its workers, and those that it starts again, end with the context.

    clock: one of CLOCKS, of the reference, in this process, and of solutions, in workers.
    """
    replaced = (
        TIMED if clock != CLOCK else []
    )  # modules of FIB whose timer gpu_clock's stands in for
    main = gpu_clock_worker if replaced else persistent_runner._persistent_worker_main
    with (
        mock.patch.object(SpawnProcess, "_Popen", staticmethod(start_without_interrupt)),
        mock.patch.object(persistent_runner, "ThreadPoolExecutor", Pool),
        mock.patch.object(persistent_runner, "PersistentSubprocessWorker", Worker),
        mock.patch.object(persistent_runner, "_persistent_worker_main", main),
        mock.patch.object(utils, "_rand_tensor", giving_back()(utils._rand_tensor)),
        ExitStack() as timers,
    ):
        for module in replaced:
            timers.enter_context(
                mock.patch.object(module, "time_runnable", gpu_clock.time_runnable)
            )
        runner = Runner() if MAIN else Runner(BenchmarkConfig().log_dir)
        try:
            yield runner
        finally:
            runner.close()
