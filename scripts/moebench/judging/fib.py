"""All that is private of FlashInfer-Bench (0.1.2 and its main branch) and is used here, and why.

The first part is used by isolation/ and by FIB's own runner: how FIB draws inputs, makes outputs,
compares and times, so that an evaluation here is one of FIB's.

The second part is FIB's PersistentRunner on a GPU. It runs the reference in this process and
solutions in a worker process. runners.py gets that runner from `patched_runner`, with these
changes: a failure of the reference says why, a worker that hangs or dies says where or how, the
device rests before calls are timed, each trial's time is kept beside the mean, Ctrl-C ends workers
without tracebacks, and no freed device memory is kept.
"""

import faulthandler
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path
from unittest import mock

import torch
from flashinfer_bench import (
    BenchmarkConfig,
    Definition,
    Evaluation,
    EvaluationStatus,
    Performance,
)
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
from flashinfer_bench.compile import BuilderRegistry, Runnable
from flashinfer_bench.compile.builders import python_builder
from flashinfer_bench.data import SourceFile
from pydantic import BaseModel

from moebench.core.errors import CannotRun
from moebench.judging import gpu_clock

# in the environment: the folder in which workers write where they hang
STACKS = "MOEBENCH_STACKS"
SECONDS_TO_WRITE = 0.5  # that a worker has for that, once it is asked where it is
# Before a trial's calls are timed. Without a rest, calls of the first solutions that a worker runs
# on new inputs took up to 13% longer on an H200, at the same clock rates: those of its first 0.1 s,
# on a layer of 256 experts. A rest of the device before the first solution alone does not help.
SECONDS_OF_REST = 0.1
ENDED = "the process ended: "  # in a log, before how
IS_MAIN_BRANCH = not hasattr(timing, "do_bench")  # FIB's main branch
# FIB's that compare as `compute_error_stats` counts
ELEMENTWISE = ("DefaultEvaluator", "LowBitEvaluator")
EVALUATORS = vars(evaluators).values()
# modules of FIB whose timer gpu_clock's stands in for
TIMED = [module for module in EVALUATORS if hasattr(module, "time_runnable")]


def clock_of_fib() -> str:
    """Return the clock of FIB's own timer: its main branch's is the GPU's, where CUPTI loads."""
    if not IS_MAIN_BRANCH:
        return "events"
    with suppress(Exception):  # whatever raises where cupti-python does not load
        import cupti.cupti  # noqa: F401  # pyright: ignore[reportMissingImports]

        major, *_ = version("cupti-python").split(".")
        if int(major) >= 13:
            return "gpu"
    return "events"


CLOCK = clock_of_fib()


# ---- Used by isolation/ and by FIB's runner


def with_changes(config: BenchmarkConfig, **changes) -> BenchmarkConfig:
    """Return a configuration of FIB with other values: 0.1.2 has a dataclass, its main branch a
    model of pydantic.
    """
    if isinstance(config, BaseModel):
        return config.model_copy(update=changes)
    return replace(config, **changes)


def is_elementwise(definition: Definition) -> bool:
    """Whether FIB compares a definition's outputs element by element, as `compute_error_stats`."""
    return resolve_evaluator(definition).__name__ in ELEMENTWISE


def check_evaluator(definition: Definition, on_gpu: bool) -> None:
    """Raise CannotRun on a CPU for a definition whose outputs only FIB can compare."""
    if not on_gpu and not is_elementwise(definition):
        evaluator = resolve_evaluator(definition).__name__
        raise CannotRun(
            f"{definition.name} needs a CUDA device: FIB's {evaluator} evaluates it"
        )


def check_finite(definition: Definition, expected: list[torch.Tensor]) -> None:
    """Raise RuntimeError where the reference is not finite, as no comparison would mean anything.

    NaN compares as equal to anything, and nothing finite is close to infinity.
    """
    for name, tensor in zip(definition.outputs, expected, strict=True):
        bad = int((~tensor.float().isfinite()).sum())
        if bad:
            raise RuntimeError(
                f"the reference has {bad} values in {name}, of {tensor.numel()}, "
                "that are not finite"
            )


def build_reference(definition: Definition) -> Runnable:
    """Build a definition's reference from a folder that no solution writes into.

    Raises CannotRun where there can be none.
    """
    with (
        temporary_files(),
        tempfile.TemporaryDirectory(prefix="moebench-reference-") as folder,
        mock.patch.dict(os.environ, FIB_CACHE_PATH=folder),
        mock.patch.object(python_builder, "write_sources_to_path", write_sources),
    ):
        return BuilderRegistry.get_instance().build_reference(definition)


@contextmanager
def temporary_files() -> Iterator[None]:
    """Raise CannotRun, which names the folder, where a temporary file cannot be written inside."""
    try:
        yield
    except OSError as error:
        folder = tempfile.gettempdir()
        reason = f"nothing can be written in {folder}: {error.strerror}"
        raise CannotRun(f"TMPDIR: {reason}") from error


def write_sources(folder: Path, sources: list[SourceFile]) -> None:
    """Write sources in UTF-8, as Python reads them; FIB writes them in the locale's encoding."""
    for source in sources:
        path = folder / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.content, encoding="utf-8")


def timer(clock: str) -> Callable[..., float]:
    """Return the function that times a runnable by this clock: time_runnable(runnable, arguments,
    warmup_runs, iterations, device) -> ms of a call.
    """
    return timing.time_runnable if clock == CLOCK else gpu_clock.time_runnable


def rest() -> None:
    """Let a GPU rest before a trial's calls are timed."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        time.sleep(SECONDS_OF_REST)


# ---- FIB's runner on a GPU: in its worker process


def start_without_interrupt(process, start=SpawnProcess._Popen):
    """Start a process that never takes SIGINT: it would print a traceback. The parent's handler
    ends it.
    """
    # starting a process begins with it, and it unblocks SIGINT when it starts
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return start(process)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def worker_main(*args) -> None:
    """FIB's worker process, in a session of its own; SIGUSR1 has it write down where it is."""
    os.setsid()
    with open(stack_file(os.getpid()), "w") as stack, rested_trials():
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
        persistent_worker_main(*args)


persistent_worker_main = persistent_runner._persistent_worker_main


class TimedPerformance(Performance):
    """FIB's, with the time of each trial in ms; FIB's latency_ms is their mean."""

    trials_ms: list[float] = []


@contextmanager
def rested_trials() -> Iterator[None]:
    """Have FIB's evaluators let the device rest before each trial's calls, and return a
    TimedPerformance, whichever clock they time by.
    """
    times_ms: list[float] = []
    time_call = default.time_runnable
    evaluate = default.DefaultEvaluator.eval_performance.__func__

    def rest_and_time(*args) -> float:
        rest()
        ms = time_call(*args)
        times_ms.append(ms)
        return ms

    def eval_performance(cls, *args, **options):
        times_ms.clear()
        performance, failure = evaluate(cls, *args, **options)
        if performance is not None:
            performance = TimedPerformance(
                **performance.model_dump(), trials_ms=list(times_ms)
            )
        return performance, failure

    with (
        mock.patch.object(default, "time_runnable", rest_and_time),
        mock.patch.object(
            default.DefaultEvaluator, "eval_performance", classmethod(eval_performance)
        ),
    ):
        yield


def gpu_clock_worker(*args) -> None:
    """`worker_main`, which times by the GPU's clock."""
    with mock.patch.object(default, "time_runnable", gpu_clock.time_runnable):
        worker_main(*args)


def stack_file(pid: int) -> Path:
    """Return the file in which the worker with this pid writes where it is."""
    return Path(os.environ[STACKS], f"{pid}.txt")


def stack_of(process: SpawnProcess) -> str:
    """Return where a worker is, as faulthandler writes it at a time-out; "" if it has ended."""
    with suppress(OSError):
        os.kill(process.pid, signal.SIGUSR1)
        time.sleep(SECONDS_TO_WRITE)
        return f"Timeout (\n{stack_file(process.pid).read_text(errors='replace')}"
    return ""


# ---- FIB's runner on a GPU: in this process


class Pool(ThreadPoolExecutor):
    """Drops what has not begun after an exception. FIB's waits for every solution of a workload."""

    def __exit__(self, raised, *rest):
        self.shutdown(cancel_futures=raised is not None)


rand_tensor = utils._rand_tensor


def rand_tensor_without_cache(*args) -> torch.Tensor:
    """Draw a random tensor as FIB does, and keep no freed block.

    The next tensor would lie in the block of the fp32 numbers of this one, and keep all of that.
    """
    try:
        return rand_tensor(*args)
    finally:
        torch.cuda.empty_cache()


class Worker(PersistentSubprocessWorker):
    """The parent's side of a worker. fault: why the reference failed, which FIB only logs. ran:
    names of the workload's solutions that the worker was given. references_ms: (definition,
    workload's uuid) -> time of the reference.
    """

    def __init__(self, *args):
        self.fault: str | None = None
        self.ran: set[str] = set()
        self.references_ms: dict[tuple[str, str], float] = {}
        super().__init__(*args)

    def run_ref(self, definition, workload, config, *rest):
        """Run the reference and keep its baseline: inputs, expected outputs and time.

        A worker times it on a workload's first inputs alone: with `--runs` it would take most of a
        run's time. Earlier baselines are dropped, as FIB releases none that it built after a
        restart. Raises RuntimeError where an expected output is not finite.
        """
        key = (definition.name, workload.uuid)
        reference_ms = self.references_ms.get(key)

        self._baselines.clear()
        try:
            if reference_ms is not None:
                config = with_changes(config, profile_baseline=False)
            handle = super().run_ref(definition, workload, config, *rest)
            baseline = self._baselines[handle]
            for expected in baseline.outputs:
                check_finite(definition, expected)
        except Exception as error:
            self._baselines.clear()  # FIB has stored one that is not finite
            line = f"{type(error).__name__}: {error}".splitlines()[0]
            # it is raised as one again
            self.fault = line.removeprefix("RuntimeError: ")
            raise
        finally:
            torch.cuda.empty_cache()

        if reference_ms is not None:
            baseline.mean_latency_ms = reference_ms
        self.references_ms[key] = baseline.mean_latency_ms
        return handle

    def run_solution(self, solution, baseline, config) -> Evaluation:
        """Evaluate a solution. The log ends with how the worker ended, or with where it hangs.

        The baseline is the one that there is: after a restart FIB gives the new one to the next
        solution alone.
        """
        if self._baselines:
            self.ran.add(solution.name)
        baseline = next(iter(self._baselines), baseline)
        result = super().run_solution(solution, baseline, config)
        why = why_no_result(self._worker_proc, result.status)
        if not why:
            return result
        return result.model_copy(update={"log": f"{result.log}\n{why}"})


def why_no_result(process: SpawnProcess | None, status: EvaluationStatus) -> str:
    """Return where a worker hangs, or how it ended; "" of one that lives, and has only raised."""
    if process and status == EvaluationStatus.TIMEOUT:
        return stack_of(process)
    if process and status == EvaluationStatus.RUNTIME_ERROR:
        process.join(0.2)
        if process.exitcode is not None:
            return f"{ENDED}{ending(process.exitcode)}"
    return ""


def ending(code: int) -> str:
    """Return how a process ended, by its exit code: 'exit status 3', 'SIGSEGV'."""
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


class Runner(PersistentRunner):
    """FIB's runner, which says why a reference failed, and blames no solution for a worker.

    fault: why, in the last workload, the reference failed on a worker that took another's place.
    """

    fault: RuntimeError | None = None

    def run_workload(self, *args) -> dict[str, Evaluation]:
        """Return packed solution's name -> FIB's evaluation.

        A solution that was not run is left out: a worker has ended before it, and no other one, or
        no reference on it, took its place. FIB says RUNTIME_ERROR of such. Raises RuntimeError with
        the cause where the reference failed for all.
        """
        self.fault = None
        # FIB gives a device up after three failures in all
        self._device_retry_counts.clear()
        workers = list(self._workers)
        for worker in workers:
            worker.fault = None
            worker.ran = set()

        try:
            results = super().run_workload(*args)
        except RuntimeError as error:
            faults = filter(None, [worker.fault for worker in workers])
            raise RuntimeError(next(faults, error)) from error

        ran = set()
        for worker in workers:
            ran |= worker.ran
            if worker.ran and worker.fault:
                # FIB goes on without one whose first reference failed
                self.fault = RuntimeError(worker.fault)
        return {name: evaluation for name, evaluation in results.items() if name in ran}


@contextmanager
def patched_runner(clock: str = CLOCK) -> Iterator[Runner]:
    """Yield FIB's runner with the changes of this module; its workers end with the context.

    clock: one of provenance.CLOCKS, by which the reference and solutions are timed.
    """
    by_other_clock = clock != CLOCK
    main = gpu_clock_worker if by_other_clock else worker_main
    patches = [
        (SpawnProcess, "_Popen", staticmethod(start_without_interrupt)),
        (persistent_runner, "ThreadPoolExecutor", Pool),
        (persistent_runner, "PersistentSubprocessWorker", Worker),
        (persistent_runner, "_persistent_worker_main", main),
        (utils, "_rand_tensor", rand_tensor_without_cache),
    ]
    if by_other_clock:
        for module in TIMED:
            patches.append((module, "time_runnable", gpu_clock.time_runnable))

    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(mock.patch.object(*patch))
        stacks = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="moebench-stacks-")
        )
        stack.enter_context(mock.patch.dict(os.environ, {STACKS: stacks}))
        runner = Runner() if IS_MAIN_BRANCH else Runner(BenchmarkConfig().log_dir)
        stack.callback(runner.close)
        yield runner
