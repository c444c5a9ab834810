"""FIB's judgement of a solution on a machine without a GPU, from FIB's own pieces.

Inputs, builders, output allocation and error statistics are FIB's. What FIB adds on a GPU is time,
and an interpreter's time means nothing: performance is left at zero.
"""

import hashlib
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
from flashinfer_bench.bench.utils import compute_error_stats, gen_inputs, load_safetensors, make_eval
from flashinfer_bench.compile import BuilderRegistry, BuildError

from harness.evaluation.calling import call
from harness.evaluation.tolerances import matched_ratios


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
    torch.manual_seed(int.from_bytes(hashlib.sha256(workload.uuid.encode()).digest()[:8], "big"))
    stored = load_safetensors(full, workload, root)
    reference = BuilderRegistry.get_instance().build_reference(full)
    trials = []
    for _ in range(config.num_trials):
        inputs = gen_inputs(full, workload, "cpu", stored)
        trials.append((inputs, call(full, reference, inputs, "cpu")))
    return {solution.name: judge(full, solution, trials, config) for solution in solutions}


def judge(full: Definition, solution: Solution, trials: list, config: BenchmarkConfig) -> Evaluation:
    """Evaluation of one solution on (inputs, expected output) pairs."""

    def failed(status, log=None, correctness=None):
        return make_eval(status, "cpu", None, correctness=correctness, extra_msg=log)

    try:
        runnable = BuilderRegistry.get_instance().build(full, solution)
    except BuildError:
        return failed(EvaluationStatus.COMPILE_ERROR, traceback.format_exc())

    compared = []
    for inputs, expected in trials:
        inputs = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
        try:
            with time_limit(config.timeout_seconds):
                output = call(full, runnable, inputs, "cpu")
        except TimeoutError as error:
            return failed(EvaluationStatus.TIMEOUT, str(error))
        except Exception:
            return failed(EvaluationStatus.RUNTIME_ERROR, traceback.format_exc())

        if output.shape != expected.shape:
            return failed(EvaluationStatus.INCORRECT_SHAPE)
        if output.dtype != expected.dtype:
            return failed(EvaluationStatus.INCORRECT_DTYPE)
        if not output.isfinite().all():
            error = math.inf if output.isinf().any() else math.nan
            correctness = Correctness(max_relative_error=error, max_absolute_error=error)
            return failed(EvaluationStatus.INCORRECT_NUMERICAL, correctness=correctness)
        abs_error, rel_error, _, ratio = compute_error_stats(output, expected, config)
        by_name = {f"matched_ratio_{name}": share for name, share in matched_ratios(output, expected).items()}
        compared.append((abs_error, rel_error, {"matched_ratio": ratio} | by_name))

    abs_errors, rel_errors, ratios = zip(*compared, strict=True)
    lowest = {name: min(of_trial[name] for of_trial in ratios) for name in ratios[0]}
    correctness = Correctness(max_absolute_error=max(abs_errors), max_relative_error=max(rel_errors), extra=lowest)
    if lowest["matched_ratio"] < config.required_matched_ratio:
        return failed(EvaluationStatus.INCORRECT_NUMERICAL, correctness=correctness)
    return make_eval(EvaluationStatus.PASSED, "cpu", None, correctness, Performance())
