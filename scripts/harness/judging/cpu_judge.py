"""FIB's judgement of a solution on a machine without a GPU, from FIB's own pieces.

Inputs, builders, output allocation and error statistics are FIB's. What FIB adds on a GPU is time,
and an interpreter's time means nothing: performance is left at zero.
"""

import math
import signal
import traceback
from contextlib import contextmanager
from pathlib import Path

import torch
from flashinfer_bench import (
    BenchmarkConfig,
    Correctness,
    Definition,
    Evaluation,
    EvaluationStatus,
    Performance,
    Solution,
    Workload,
)
from flashinfer_bench.bench.utils import compute_error_stats, load_safetensors, make_eval
from flashinfer_bench.compile import BuilderRegistry, BuildError

from harness.judging.calling import call, call_both, seeded_inputs
from harness.judging.diagnosis import HEADING, diagnose
from harness.judging.tolerances import Tolerance, matched_ratios


@contextmanager
def time_limit(seconds: int):
    """Raise TimeoutError in the main thread after `seconds`."""

    def expire(signum, frame):
        raise TimeoutError(f"no result after {seconds} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run_workload(
    full: Definition, workload: Workload, solutions: list[Solution], config: BenchmarkConfig, root: Path
) -> dict[str, Evaluation]:
    """Packed name -> Evaluation, as PersistentRunner.run_workload, on inputs seeded by the workload's uuid.

    correctness.extra holds matched_ratio, at the config's tolerance, and matched_ratio_<tolerance> for all three.
    """
    reference = BuilderRegistry.get_instance().build_reference(full)
    all_inputs = seeded_inputs(full, workload, config.num_trials, "cpu", load_safetensors(full, workload, root))
    trials = [(inputs, call(full, reference, inputs, "cpu")) for inputs in all_inputs]
    return {solution.name: judge(full, solution, trials, config) for solution in solutions}


def judge(full: Definition, solution: Solution, trials: list, config: BenchmarkConfig) -> Evaluation:
    """Evaluation of one solution on (inputs, expected output) pairs; the log of one that is wrong is a diagnosis."""

    def failed(status, log=None, correctness=None):
        return make_eval(status, "cpu", None, correctness=correctness, extra_msg=log)

    def wrong(status, trial, correctness=None):
        inputs, expected, output, returned = trial
        tolerance = Tolerance("the run's", config.rtol, config.atol, config.required_matched_ratio)
        found = diagnose(full, inputs, output, expected, tolerance, returned)
        return failed(status, "\n".join([HEADING, *found]), correctness)

    try:
        runnable = BuilderRegistry.get_instance().build(full, solution)
    except BuildError:
        return failed(EvaluationStatus.COMPILE_ERROR, traceback.format_exc())

    compared = []
    for given, expected in trials:
        inputs = [x.clone() if isinstance(x, torch.Tensor) else x for x in given]
        try:
            with time_limit(config.timeout_seconds):
                output, returned = call_both(full, runnable, inputs, "cpu")
        except TimeoutError as error:
            return failed(EvaluationStatus.TIMEOUT, str(error))
        except Exception:
            return failed(EvaluationStatus.RUNTIME_ERROR, traceback.format_exc())

        trial = given, expected, output, returned
        if output.shape != expected.shape:
            return wrong(EvaluationStatus.INCORRECT_SHAPE, trial)
        if output.dtype != expected.dtype:
            return wrong(EvaluationStatus.INCORRECT_DTYPE, trial)
        if not output.isfinite().all():
            error = math.inf if output.isinf().any() else math.nan
            correctness = Correctness(max_relative_error=error, max_absolute_error=error)
            return wrong(EvaluationStatus.INCORRECT_NUMERICAL, trial, correctness)
        abs_error, rel_error, _, ratio = compute_error_stats(output, expected, config)
        by_name = {f"matched_ratio_{name}": share for name, share in matched_ratios(output, expected).items()}
        compared.append((abs_error, rel_error, {"matched_ratio": ratio} | by_name, trial))

    abs_errors, rel_errors, ratios, kept = zip(*compared, strict=True)
    lowest = {name: min(of_trial[name] for of_trial in ratios) for name in ratios[0]}
    correctness = Correctness(max_absolute_error=max(abs_errors), max_relative_error=max(rel_errors), extra=lowest)
    if lowest["matched_ratio"] < config.required_matched_ratio:
        worst = min(range(len(kept)), key=lambda at: ratios[at]["matched_ratio"])
        return wrong(EvaluationStatus.INCORRECT_NUMERICAL, kept[worst], correctness)
    return make_eval(EvaluationStatus.PASSED, "cpu", None, correctness, Performance())
