"""FIB's judgement of solutions without a GPU, each in a process of its own that pebble keeps while
it behaves.

The reference runs here, once a workload; its inputs and outputs reach the processes in a file. What
a solution does to its process (an exit, a crash, memory without end) is its own result. An
interpreter's time is left at zero.
"""

import ctypes
import faulthandler
import math
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import traceback
from multiprocessing import context, forkserver
from pathlib import Path

import psutil
import torch
from flashinfer_bench import (
    BenchmarkConfig,
    Correctness,
    Definition,
    Evaluation,
    Performance,
    Solution,
    Workload,
)
from flashinfer_bench import EvaluationStatus as Status
from flashinfer_bench.compile import BuilderRegistry, BuildError, Runnable
from pebble import ProcessExpired, ProcessPool

from moebench.judging import fib
from moebench.judging.calling import call, first_line, seeded_inputs
from moebench.judging.diagnosis import HEADING, diagnose
from moebench.judging.tolerances import Tolerance, judged, matched_ratios

MEMORY = 4 << 30  # bytes that a solution may take for itself; the layers for CPUs need a fiftieth
EXITED = 256  # stands for an exit status of 0, see Child
PR_SET_PDEATHSIG = 1


class Child(context.ForkServerProcess):
    """A process whose end is never in order: pebble overlooks one that ends with status 0 in the
    middle of a task.
    """

    @property
    def exitcode(self) -> int | None:
        return EXITED if super().exitcode == 0 else super().exitcode


def begin(threads: int, memory: int) -> None:
    """The start of a child: it ends with its parent, a crash prints where, and its memory has an
    end.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    faulthandler.enable()
    torch.set_num_threads(threads)
    limit = psutil.Process().memory_info().data + min(memory, psutil.virtual_memory().available)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


class Runner:
    """Judges as FIB's PersistentRunner does."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="moebench-")
        self.trials, self.log = (str(Path(self.folder.name, name)) for name in ("trials", "log"))
        self.pools, self.context = {}, context.ForkServerContext()
        self.context.Process = (
            Child  # forked from one that has imported torch and this module, but not used them
        )
        self.context.set_forkserver_preload([__name__])
        with fib.without_interrupt():
            # it imports while this process computes the first reference
            forkserver.ensure_running()

    def run_workload(
        self, full: Definition, workload: Workload, solutions: list[Solution], config, root: Path
    ):
        """{packed name: Evaluation}, on inputs seeded by the workload's uuid. Raises what the
        reference raises.

        correctness.extra holds matched_ratio, at the config's tolerance, and
        matched_ratio_<tolerance> for all three.
        """
        reference = BuilderRegistry.get_instance().build_reference(full)
        stored = fib.load_safetensors(full, workload, root)
        inputs = seeded_inputs(full, workload, config.num_trials, "cpu", stored)
        torch.save([(given, call(full, reference, given, "cpu")) for given in inputs], self.trials)
        return {solution.name: self.judged(full, solution, config) for solution in solutions}

    def judged(self, full: Definition, solution: Solution, config: BenchmarkConfig) -> Evaluation:
        pool = self.pools.get(solution.name)
        if pool is None or not pool.active:
            known = {
                "initializer": begin,
                "initargs": [torch.get_num_threads(), MEMORY],
                "context": self.context,
            }
            pool = self.pools[solution.name] = ProcessPool(max_workers=1, **known)
        Path(self.log).write_bytes(b"")
        try:
            job = full, solution, self.trials, config, self.log
            return pool.schedule(judge, job, timeout=config.timeout_seconds).result()
        except TimeoutError:
            return evaluated(
                Status.TIMEOUT, self.log, f"no result after {config.timeout_seconds} s"
            )
        except ProcessExpired as error:
            cause = fib.ending(0 if error.exitcode == EXITED else error.exitcode)
        except Exception as error:  # of pebble, or of a result that cannot be sent
            cause = first_line(error)
        return evaluated(Status.RUNTIME_ERROR, self.log, f"{fib.ENDED}{cause}")

    def close(self) -> None:
        for pool in self.pools.values():
            pool.stop()
        for pool in self.pools.values():
            pool.join()
        self.folder.cleanup()


def evaluated(
    status: Status, log: str, text: str | None = None, correctness=None, performance=None
) -> Evaluation:
    """log: the file with what was printed, to which the text is added."""
    return fib.make_eval(status, "cpu", log, correctness, performance, text)


def judge(
    full: Definition, solution: Solution, trials: str, config: BenchmarkConfig, log: str
) -> Evaluation:
    """In the child: Evaluation of a solution on the (inputs, expected outputs) pairs in a file."""
    sys.stdout = sys.stderr = open(log, "w", encoding="utf-8", buffering=1)
    for stream in (1, 2):
        os.dup2(sys.stdout.fileno(), stream)
    try:
        runnable = BuilderRegistry.get_instance().build(full, solution)
        return compared(full, runnable, torch.load(trials, weights_only=False), config, log)
    except BuildError:
        return evaluated(Status.COMPILE_ERROR, log, traceback.format_exc())
    except BaseException as error:  # whatever a solution raises is its result
        ended = (
            f"\n{fib.ENDED}exit status {error.code or 0}" if isinstance(error, SystemExit) else ""
        )
        return evaluated(Status.RUNTIME_ERROR, log, traceback.format_exc() + ended)


def compared(
    full: Definition, runnable: Runnable, trials: list, config: BenchmarkConfig, log: str
) -> Evaluation:
    """As `judge`; the log of what is wrong ends with a diagnosis. Raises whatever the solution
    raises.
    """

    def wrong(status: Status, *trial, correctness=None) -> Evaluation:
        tolerance = Tolerance("the run's", config.rtol, config.atol, config.required_matched_ratio)
        found = diagnose(full, *trial, tolerance)
        return evaluated(status, log, "\n".join([HEADING, *found]), correctness)

    found = []
    for given, expected in trials:
        outputs = call(
            full, runnable, [x.clone() if isinstance(x, torch.Tensor) else x for x in given], "cpu"
        )
        for trial in (
            (given, at, *pair) for at, pair in enumerate(zip(outputs, expected, strict=True))
        ):
            *_, output, wanted = trial
            if output.shape != wanted.shape:
                return wrong(Status.INCORRECT_SHAPE, *trial)
            if output.dtype != wanted.dtype:
                return wrong(Status.INCORRECT_DTYPE, *trial)
            if not (wide := output.float()).isfinite().all():
                error = math.inf if wide.isinf().any() else math.nan
                correctness = Correctness(max_relative_error=error, max_absolute_error=error)
                return wrong(Status.INCORRECT_NUMERICAL, *trial, correctness=correctness)
            absolute, relative, _, ratio = fib.compute_error_stats(output, wanted, config)
            by_name = {
                f"matched_ratio_{name}": share
                for name, share in matched_ratios(output, wanted).items()
            }
            found.append((absolute, relative, {"matched_ratio": ratio} | by_name, trial))
    absolute, relative, ratios, kept = zip(*found, strict=True)
    lowest = {name: min(of_trial[name] for of_trial in ratios) for name in ratios[0]}
    correctness = Correctness(
        max_absolute_error=max(absolute), max_relative_error=max(relative), extra=lowest
    )
    if lowest["matched_ratio"] < config.required_matched_ratio:
        worst = min(range(len(kept)), key=lambda at: ratios[at]["matched_ratio"])
        return wrong(Status.INCORRECT_NUMERICAL, *kept[worst], correctness=correctness)
    return evaluated(Status.PASSED, log, None, correctness, Performance())


def diagnosed(seconds: int, *job):
    """Sentences on a solution that FIB's worker found wrong, or why there are none: list[str].

    In a process of its own, as the worker keeps the outputs to itself and a wrong kernel may break
    a CUDA context. job: what `diagnose_again` takes.
    """
    pool = ProcessPool(max_workers=1, context=multiprocessing.get_context("spawn"))
    try:
        return pool.schedule(diagnose_again, job, timeout=seconds).result()
    except Exception as error:
        return [f"no diagnosis: {first_line(error)}"]
    finally:
        pool.stop()
        pool.join()


def diagnose_again(
    full: Definition,
    root: Path,
    solution: Solution,
    workload: Workload,
    tolerance: Tolerance,
    device: str,
) -> list[str]:
    registry = BuilderRegistry.get_instance()
    inputs = seeded_inputs(full, workload, 1, device, fib.load_safetensors(full, workload, root))[0]
    expected = call(full, registry.build_reference(full), inputs, device)
    for at, output in enumerate(call(full, registry.build(full, solution), inputs, device)):
        comparable = (output.shape, output.dtype) == (expected[at].shape, expected[at].dtype)
        if not comparable or judged(output, expected[at], tolerance)[1]:
            return diagnose(full, inputs, at, output, expected[at], tolerance)
    return ["this time the output is within the tolerance: does it differ from run to run?"]
