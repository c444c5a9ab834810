"""What the run asks of a solution's process: to take inputs, to build, to call, to time.

A request is JSON with the name of a method of worker.Worker under "do", and with that method's
arguments: {"do": "call", "solution": "mine", "trial": 0, "wanted": [...]}. An answer is not
trusted, as a solution may have written it. All functions raise TimeoutError, and Ended where the
process has ended or answers what worker.py never does.
"""

import statistics

import torch
from flashinfer_bench import BenchmarkConfig, Definition, Solution
from flashinfer_bench import EvaluationStatus as Status

from moebench.judging.isolation.channel import kind_of
from moebench.judging.isolation.comparison import Finding, Trial
from moebench.judging.isolation.processes import Answer, Ended, SolutionProcess


def take_inputs(
    process: SolutionProcess, definition: Definition, trials: list[Trial], device: str
) -> None:
    """Send a process the inputs of all trials, in place of those that it has."""
    tensors = []
    inputs_of_trials = []  # with None for each of the tensors, which follow the request
    for trial in trials:
        inputs = list(trial.inputs)
        for place, value in enumerate(inputs):
            if isinstance(value, torch.Tensor):
                tensors.append(value)
                inputs[place] = None
        inputs_of_trials.append(inputs)

    request = {
        "do": "take_inputs",
        "definition": definition.model_dump_json(),
        "device": device,
        "trials": inputs_of_trials,
        "kinds": [kind_of(tensor).model_dump() for tensor in tensors],
    }
    if process.request(request, tensors).status != "PASSED":
        raise Ended("it cannot take the inputs")


def build(process: SolutionProcess, solution: Solution) -> Status:
    """Have a solution built; return PASSED, or the status of a build that failed."""
    answer = process.request({"do": "build", "solution": solution.model_dump_json()})
    return Status(answer.status)


def call(
    process: SolutionProcess,
    definition: Definition,
    solution: str,
    number: int,
    trial: Trial,
) -> list[torch.Tensor] | Finding:
    """Have a built solution called; return its outputs, or a finding if they cannot be compared.

    number: of the trial, from 0.
    """
    wanted = [kind_of(expected) for expected in trial.expected]
    request = {
        "do": "call",
        "solution": solution,
        "trial": number,
        "wanted": [kind.model_dump() for kind in wanted],
    }
    answer = process.request(request)
    if answer.status != "PASSED":
        return Finding(Status(answer.status))
    if len(answer.outputs) != len(wanted):
        raise Ended("its answer has another number of outputs")

    for name, kind, want in zip(
        definition.outputs, answer.outputs, wanted, strict=True
    ):
        if kind != want:
            status = Status.INCORRECT_SHAPE
            if kind.shape == want.shape:
                status = Status.INCORRECT_DTYPE
            return Finding(
                status, sentences=[f"the output {name} is {kind}, want {want}"]
            )
    device = trial.expected[0].device
    return [output.to(device) for output in process.receive_tensors(wanted)]


def time(
    process: SolutionProcess, solution: str, config: BenchmarkConfig, clock: str
) -> Answer:
    """Have a built solution timed on the inputs of each trial; `mean_ms` reads the answer."""
    request = {
        "do": "time",
        "solution": solution,
        "warmup_runs": config.warmup_runs,
        "iterations": config.iterations,
        "clock": clock,
    }
    return process.request(request)


def mean_ms(answer: Answer, trials: int) -> float:
    """Return the time of a call in ms, a mean over trials. answer: to `time`."""
    if len(answer.milliseconds) != trials:
        raise Ended("its answer has no times")
    return statistics.fmean(answer.milliseconds)
