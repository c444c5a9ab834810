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
from flashinfer_bench.bench.evaluators.utils import allocate_outputs, normalize_result
from flashinfer_bench.bench.utils import (
    compute_error_stats,
    gen_inputs,
    load_safetensors,
    make_eval,
)
from flashinfer_bench.compile import BuilderRegistry, BuildError

from harness.evaluation.tolerances import TOLERANCES, Tolerance


def config_for(tolerance: Tolerance, **rest) -> BenchmarkConfig:
    return BenchmarkConfig(rtol=tolerance.rtol, atol=tolerance.atol, required_matched_ratio=tolerance.ratio, **rest)


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
    definition: Definition,
    workload: Workload,
    solutions: list[Solution],
    tolerance: Tolerance,
    root: Path,
    num_trials: int,
    timeout: int,
) -> dict[str, Evaluation]:
    """Solution name -> Evaluation, judged at `tolerance`, on inputs seeded by the workload's uuid.

    correctness.extra holds matched_ratio and matched_ratio_<tolerance> for all three tolerances.
    """
    torch.manual_seed(int.from_bytes(hashlib.sha256(workload.uuid.encode()).digest()[:8], "big"))
    stored = load_safetensors(definition, workload, root)
    trials = []
    reference = BuilderRegistry.get_instance().build_reference(definition)
    for _ in range(num_trials):
        inputs = gen_inputs(definition, workload, "cpu", stored)
        trials.append((inputs, normalize_result(definition, reference(*inputs), "cpu")))
    return {s.name: judge(definition, s, trials, tolerance, timeout) for s in solutions}


def judge(definition: Definition, solution: Solution, trials: list, tolerance: Tolerance, timeout: int) -> Evaluation:
    """Evaluation of one solution on (inputs, reference outputs) pairs."""

    def failed(status, log=None, correctness=None):
        return make_eval(status, "cpu", None, correctness=correctness, extra_msg=log)

    try:
        runnable = BuilderRegistry.get_instance().build(definition, solution)
    except BuildError:
        return failed(EvaluationStatus.COMPILE_ERROR, traceback.format_exc())

    worst_abs = worst_rel = 0.0
    matched = dict.fromkeys(TOLERANCES, 1.0)
    for inputs, expected in trials:
        inputs = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
        try:
            with time_limit(timeout), torch.no_grad():
                if runnable.metadata.destination_passing_style:
                    outputs = allocate_outputs(definition, inputs, "cpu")
                    runnable(*inputs, *outputs)
                else:
                    outputs = normalize_result(definition, runnable(*inputs), "cpu")
        except TimeoutError as error:
            return failed(EvaluationStatus.TIMEOUT, str(error))
        except Exception:
            return failed(EvaluationStatus.RUNTIME_ERROR, traceback.format_exc())

        for output, wanted in zip(outputs, expected, strict=True):
            if output.shape != wanted.shape:
                return failed(EvaluationStatus.INCORRECT_SHAPE)
            if output.dtype != wanted.dtype:
                return failed(EvaluationStatus.INCORRECT_DTYPE)
            if not torch.isfinite(output).all():
                error = math.inf if torch.isinf(output).any() else math.nan
                correctness = Correctness(max_relative_error=error, max_absolute_error=error)
                return failed(EvaluationStatus.INCORRECT_NUMERICAL, correctness=correctness)
            for name, setting in TOLERANCES.items():
                abs_error, rel_error, _, ratio = compute_error_stats(output, wanted, config_for(setting))
                matched[name] = min(matched[name], ratio)
            worst_abs, worst_rel = max(worst_abs, abs_error), max(worst_rel, rel_error)

    extra = {f"matched_ratio_{name}": ratio for name, ratio in matched.items()}
    correctness = Correctness(
        max_absolute_error=worst_abs,
        max_relative_error=worst_rel,
        extra={"matched_ratio": matched[tolerance.name]} | extra,
    )
    if matched[tolerance.name] < tolerance.ratio:
        return failed(EvaluationStatus.INCORRECT_NUMERICAL, correctness=correctness)
    return make_eval(EvaluationStatus.PASSED, "cpu", None, correctness, Performance())
