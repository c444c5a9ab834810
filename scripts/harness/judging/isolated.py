"""FIB's judgement of solutions without a GPU, each in a process of its own that pebble keeps while it behaves.

The reference runs here, once a workload; its inputs and outputs reach the processes in a file. What a solution does to
its process (an exit, a crash, a call that never returns, memory without end) is its own result and nobody else's.
What FIB adds on a GPU is time, and an interpreter's time means nothing: performance is left at zero.
"""

import ctypes
import faulthandler
import math
import multiprocessing
import resource
import signal
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import psutil
import torch
from flashinfer_bench import BenchmarkConfig, Correctness, Definition, Evaluation, Performance, Solution, Workload
from flashinfer_bench import EvaluationStatus as Status
from flashinfer_bench.compile import BuilderRegistry, BuildError
from pebble import ProcessExpired, ProcessPool

from harness.core import paths
from harness.judging.calling import call, call_both, first_line, seeded_inputs
from harness.judging.diagnosis import HEADING, diagnose
from harness.judging.fib import (
    ENDED,
    compute_error_stats,
    ending,
    load_safetensors,
    make_eval,
    redirect_stdio_to_file,
    without_interrupt,
)
from harness.judging.tolerances import TOLERANCES, Tolerance, judged, matched_ratios
from harness.operators.catalogue import definition

MEMORY = 4 << 30  # bytes that a solution may take for itself; the layers for CPUs need a fiftieth
EXITED = 256  # stands for an exit status of 0, see Child
PR_SET_PDEATHSIG = 1


class Child(ForkServerProcess):
    """A process whose end is never in order: pebble overlooks one that ends with status 0 in the middle of a task."""

    @property
    def exitcode(self) -> int | None:
        return EXITED if super().exitcode == 0 else super().exitcode


class Forked(ForkServerContext):
    """Processes forked from one that has imported torch, Triton and this module, but used none of them."""

    Process = Child


def begin(threads: int) -> None:
    """The start of a child: it ends with its parent, a crash prints where, and its memory has an end."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    faulthandler.enable()
    torch.set_num_threads(threads)
    limit = psutil.Process().memory_info().data + min(MEMORY, psutil.virtual_memory().available)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


class Runner:
    """Judges as FIB's PersistentRunner does; with a log of what a solution printed."""

    def __init__(self, folder: Path):
        self.folder, self.context, self.pools = folder, Forked(), {}
        with without_interrupt():  # before this process computes the first reference, so that it need not wait later
            self.context.set_forkserver_preload([__name__])
            forkserver.ensure_running()

    def run_workload(
        self, full: Definition, workload: Workload, solutions: list[Solution], config: BenchmarkConfig, root: Path
    ) -> dict[str, Evaluation]:
        """Packed name -> Evaluation, on inputs seeded by the workload's uuid. Raises RuntimeError of the reference.

        correctness.extra holds matched_ratio, at the config's tolerance, and matched_ratio_<tolerance> for all three.
        """
        reference = BuilderRegistry.get_instance().build_reference(full)
        stored = load_safetensors(full, workload, root)
        inputs = seeded_inputs(full, workload, config.num_trials, "cpu", stored)
        torch.save([(given, call(full, reference, given, "cpu")) for given in inputs], self.folder / "trials")
        return {solution.name: self.judged(full, solution, config) for solution in solutions}

    def judged(self, full: Definition, solution: Solution, config: BenchmarkConfig) -> Evaluation:
        log = str(self.folder / "log")
        Path(log).write_bytes(b"")
        pool = self.pools.get(solution.name)
        if pool is None or not pool.active:
            known = {"initializer": begin, "initargs": [torch.get_num_threads()], "context": self.context}
            pool = self.pools[solution.name] = ProcessPool(max_workers=1, **known)
        arguments = [full, solution, str(self.folder / "trials"), config, log]
        try:
            return pool.schedule(judge, arguments, timeout=config.timeout_seconds).result()
        except TimeoutError:
            return make_eval(Status.TIMEOUT, "cpu", log, extra_msg=f"no result after {config.timeout_seconds} s")
        except ProcessExpired as error:
            cause = ending(error.exitcode % EXITED if error.exitcode == EXITED else error.exitcode)
        except Exception as error:  # of pebble, or a result that cannot be sent
            cause = first_line(error)
        return make_eval(Status.RUNTIME_ERROR, "cpu", log, extra_msg=f"{ENDED}{cause}")

    def close(self) -> None:
        for pool in self.pools.values():
            pool.stop()
        for pool in self.pools.values():
            pool.join()


@contextmanager
def running() -> Iterator[Runner]:
    """The runner; its processes end with the context."""
    with tempfile.TemporaryDirectory(prefix="moebench-") as folder:
        runner = Runner(Path(folder))
        try:
            yield runner
        finally:
            runner.close()


def judge(full: Definition, solution: Solution, file: str, config: BenchmarkConfig, log: str) -> Evaluation:
    """In the child: Evaluation of a solution on the (inputs, expected output) pairs in a file."""
    redirect_stdio_to_file(log)
    try:
        runnable = BuilderRegistry.get_instance().build(full, solution)
        return compared(full, runnable, torch.load(file, weights_only=False), config, log)
    except BuildError:
        return make_eval(Status.COMPILE_ERROR, "cpu", log, extra_msg=traceback.format_exc())
    except SystemExit as error:
        cause = f"{traceback.format_exc()}\n{ENDED}exit status {error.code or 0}"
        return make_eval(Status.RUNTIME_ERROR, "cpu", log, extra_msg=cause)
    except BaseException:  # whatever a solution raises is its result
        return make_eval(Status.RUNTIME_ERROR, "cpu", log, extra_msg=traceback.format_exc())


def compared(full: Definition, runnable, trials: list, config: BenchmarkConfig, log: str) -> Evaluation:
    """As `judge`; the log of what is wrong ends with a diagnosis. Raises whatever the solution raises."""

    def wrong(status: Status, given, expected, output, returned, correctness=None) -> Evaluation:
        tolerance = Tolerance("the run's", config.rtol, config.atol, config.required_matched_ratio)
        found = diagnose(full, given, output, expected, tolerance, returned)
        return make_eval(status, "cpu", log, correctness, extra_msg="\n".join([HEADING, *found]))

    found = []
    for given, expected in trials:
        inputs = [x.clone() if isinstance(x, torch.Tensor) else x for x in given]
        output, returned = call_both(full, runnable, inputs, "cpu")
        trial = given, expected, output, returned
        if output.shape != expected.shape:
            return wrong(Status.INCORRECT_SHAPE, *trial)
        if output.dtype != expected.dtype:
            return wrong(Status.INCORRECT_DTYPE, *trial)
        if not output.isfinite().all():
            error = math.inf if output.isinf().any() else math.nan
            correctness = Correctness(max_relative_error=error, max_absolute_error=error)
            return wrong(Status.INCORRECT_NUMERICAL, *trial, correctness)
        absolute, relative, _, ratio = compute_error_stats(output, expected, config)
        by_name = {f"matched_ratio_{name}": share for name, share in matched_ratios(output, expected).items()}
        found.append((absolute, relative, {"matched_ratio": ratio} | by_name, trial))
    absolute, relative, ratios, kept = zip(*found, strict=True)
    lowest = {name: min(of_trial[name] for of_trial in ratios) for name in ratios[0]}
    correctness = Correctness(max_absolute_error=max(absolute), max_relative_error=max(relative), extra=lowest)
    if lowest["matched_ratio"] < config.required_matched_ratio:
        worst = min(range(len(kept)), key=lambda at: ratios[at]["matched_ratio"])
        return wrong(Status.INCORRECT_NUMERICAL, *kept[worst], correctness)
    return make_eval(Status.PASSED, "cpu", log, correctness, Performance())


def diagnosed(
    geometry: str, solution: Solution, workload: Workload, tolerance: Tolerance, device: str, seconds: int
) -> list[str]:
    """Sentences on a solution that FIB's worker found wrong, or why there are none.

    In a process of its own, as the worker keeps the outputs to itself and a wrong kernel may break a CUDA context.
    """
    pool = ProcessPool(max_workers=1, context=multiprocessing.get_context("spawn"))
    try:
        job = geometry, solution, workload, tolerance.name, device
        return pool.schedule(diagnose_again, job, timeout=seconds).result()
    except TimeoutError:
        return [f"no diagnosis: no result after {seconds} s"]
    except Exception as error:
        return [f"no diagnosis: {first_line(error)}"]
    finally:
        pool.stop()
        pool.join()


def diagnose_again(geometry: str, solution: Solution, workload: Workload, name: str, device: str) -> list[str]:
    """Run the solution and the reference once more. name: the tolerance's."""
    full, registry, tolerance = definition(geometry), BuilderRegistry.get_instance(), TOLERANCES[name]
    inputs = seeded_inputs(full, workload, 1, device, load_safetensors(full, workload, paths.ROOT))[0]
    expected = call(full, registry.build_reference(full), inputs, device)
    output, returned = call_both(full, registry.build(full, solution), inputs, device)
    comparable = (output.shape, output.dtype) == (expected.shape, expected.dtype)
    if comparable and judged(output, expected, tolerance)[1] is None:
        return ["this time the output is within the tolerance: does it differ from run to run?"]
    return diagnose(full, inputs, output, expected, tolerance, returned)
