"""What the run asks of a solution's process, which worker.py answers.

Nothing in an answer is trusted. All raise TimeoutError, and Ended where the process has ended or
answers what worker.py never does.
"""

import math

import torch
from flashinfer_bench import BenchmarkConfig, Definition, Solution
from flashinfer_bench import EvaluationStatus as Status

from moebench.judging.isolation.channel import described
from moebench.judging.isolation.comparison import Finding, Trial
from moebench.judging.isolation.processes import Ended, SolutionProcess


def take_inputs(
    process: SolutionProcess, full: Definition, trials: list[Trial], device: str
) -> None:
    """Send a process the inputs of all trials, in place of those that it has."""
    tensors = []
    described_trials = []
    for trial in trials:
        described_inputs = []
        for value in trial.inputs:
            if isinstance(value, torch.Tensor):
                tensors.append(value)
                described_inputs.append(described(value))
            else:
                described_inputs.append({"value": value})
        described_trials.append(described_inputs)

    request = {
        "do": "inputs",
        "definition": full.model_dump_json(),
        "device": device,
        "trials": described_trials,
    }
    answer = process.request(request, tensors)
    if status_of(answer) != Status.PASSED:
        raise Ended("it cannot take the inputs")


def build(process: SolutionProcess, solution: Solution) -> Status:
    """Have a solution built, and return what became of that."""
    return status_of(process.request({"do": "build", "solution": solution.model_dump_json()}))


def outputs(
    process: SolutionProcess, full: Definition, solution: str, number: int, trial: Trial
) -> list[torch.Tensor] | Finding:
    """Return a built solution's outputs for a trial, or why there are none that can be compared."""
    wanted = [described(expected) for expected in trial.expected]
    request = {"do": "call", "solution": solution, "trial": number, "wanted": wanted}
    answer = process.request(request)
    if status_of(answer) != Status.PASSED:
        return Finding(status_of(answer))

    if answer.get("outputs") != wanted:
        return unlike(full, answer.get("outputs"), wanted)
    received = process.receive_tensors(trial.expected)
    return [output.to(trial.expected[0].device) for output in received]


def unlike(full: Definition, answered: object, wanted: list[dict]) -> Finding:
    """Return a finding on the first output whose shape or dtype is not the wanted one."""
    if not isinstance(answered, list) or len(answered) != len(wanted):
        raise Ended("its answer has another number of outputs")

    for name, output, want in zip(full.outputs, answered, wanted, strict=True):
        if output == want or not isinstance(output, dict):
            continue
        shapes_differ = output.get("shape") != want["shape"]
        status = Status.INCORRECT_SHAPE if shapes_differ else Status.INCORRECT_DTYPE
        got = f"{output.get('shape')} {output.get('dtype')}"
        sentence = f"the output {name} is {got}, want {want['shape']} {want['dtype']}"
        return Finding(status, sentences=[sentence])
    raise Ended("its answer has no outputs")


def time(process: SolutionProcess, solution: str, config: BenchmarkConfig, clock: str) -> dict:
    """Have a built solution timed on the inputs of all trials, and return the answer."""
    request = {
        "do": "time",
        "solution": solution,
        "warmup_runs": config.warmup_runs,
        "iterations": config.iterations,
        "clock": clock,
    }
    return process.request(request)


def status_of(answer: dict) -> Status:
    """Return the status in an answer."""
    status = answer.get("status")
    if status in ("PASSED", "COMPILE_ERROR", "RUNTIME_ERROR"):
        return Status(status)
    raise Ended("its answer has no status")


def mean_ms(answer: dict, trials: int) -> float:
    """Return the mean time over trials in an answer of `time`."""
    milliseconds = answer.get("milliseconds")
    if not isinstance(milliseconds, list) or len(milliseconds) != trials:
        raise Ended("its answer has no times")
    for value in milliseconds:
        if not isinstance(value, float) or not 0 < value < math.inf:
            raise Ended("its answer has times that are none")
    return sum(milliseconds) / trials
