"""Evaluate solutions in processes of their own: inputs go in, outputs come out.

The reference runs here, and outputs are compared here, where no solution runs. What a solution does
to its process (an exit, a crash, memory without end) is its own result. So are solutions evaluated
on a CPU, and those of others on a GPU; and so are ours on a GPU looked at a second time.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from flashinfer_bench import (
    BenchmarkConfig,
    Definition,
    Evaluation,
    Performance,
    Solution,
    Workload,
)
from flashinfer_bench import EvaluationStatus as Status

from moebench.judging import fib
from moebench.judging.calling import call, seeded_inputs
from moebench.judging.isolation.channel import described
from moebench.judging.isolation.comparison import Finding, Trial, compare, finding_of
from moebench.judging.isolation.processes import NURSERIES, Ended, SolutionProcess

MEMORY = 4 << 30  # bytes that a solution may take for itself; the layers for CPUs need a fiftieth
LOOK = "second look"  # in the seed of its inputs
NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class Result:
    """FIB's evaluation, and sentences on what is wrong, or odd, for whoever wrote the solution."""

    evaluation: Evaluation
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """What solutions are evaluated on, and how. reference_ms: 0 where nothing is timed.

    number: of the inputs, which a process is given once.
    """

    full: Definition
    trials: list[Trial]
    config: BenchmarkConfig
    reference_ms: float = 0.0
    number: int = field(default_factory=lambda: next(NUMBERS))


class Runner:
    """Evaluates solutions on one device, each in a process that lives as long as it behaves.

    clock: that times are taken by on a GPU. shared: all solutions run in one process, for those
    that are trusted and many.
    """

    def __init__(self, device: str = "cpu", clock: str = "events", shared: bool = False):
        self.device = device
        self.clock = clock
        self.shared = shared
        self.processes: dict[str, SolutionProcess] = {}
        NURSERIES.get()  # which imports while this process computes the first reference

    def run_workload(
        self,
        full: Definition,
        workload: Workload,
        solutions: list[Solution],
        config: BenchmarkConfig,
        root: Path,
    ) -> dict[str, Result]:
        """Return a result for each packed name, on inputs seeded by the workload's uuid.

        correctness.extra holds matched_ratio, at the config's tolerance, and
        matched_ratio_<tolerance> for all. Raises what the reference raises, and RuntimeError where
        it is not finite.
        """
        trials = self.reference_trials(full, workload, config.num_trials, root)
        job = Job(full, trials, config, self.reference_ms(full, trials, config))
        return {solution.name: self.evaluate(job, solution) for solution in solutions}

    def look(
        self,
        full: Definition,
        workload: Workload,
        solutions: list[Solution],
        config: BenchmarkConfig,
        root: Path,
    ) -> Iterator[tuple[Solution, Finding, str]]:
        """Yield what is found about each solution on one fresh input, and what it prints.

        Raises as `run_workload`.
        """
        fresh = workload.model_copy(update={"uuid": f"{LOOK} {workload.uuid}"})
        job = Job(full, self.reference_trials(full, fresh, 1, root), config)
        for solution in solutions:
            finding, log = self.examine(job, solution)
            yield solution, finding, log
        self.forget_inputs(job)

    def forget_inputs(self, job: Job) -> None:
        """Have processes free what inputs take of a GPU, which FIB's worker needs next."""
        nothing = replace(job, trials=[], number=next(NUMBERS))
        for process in list(self.processes.values()):
            try:
                process.begin(job.config.timeout_seconds)
                send_inputs(process, nothing, self.device)
                process.holds = nothing.number
            except (TimeoutError, Ended):
                self.end(process)
        if self.device != "cpu":
            torch.cuda.empty_cache()

    def close(self) -> None:
        for process in self.processes.values():
            process.close()
        NURSERIES.clean_up()

    def reference_trials(
        self, full: Definition, workload: Workload, count: int, root: Path
    ) -> list[Trial]:
        reference = fib.build_reference(full)
        stored = fib.load_safetensors(full, workload, root)
        trials = []
        for inputs in seeded_inputs(full, workload, count, self.device, stored):
            expected = call(full, reference, inputs, self.device)
            fib.check_finite(full, expected)
            trials.append(Trial(inputs, expected))
        return trials

    def reference_ms(self, full: Definition, trials: list[Trial], config: BenchmarkConfig) -> float:
        if self.device == "cpu":
            return 0.0

        reference = fib.build_reference(full)
        time_runnable = fib.timer(self.clock)
        milliseconds = [
            time_runnable(
                reference, trial.inputs, config.warmup_runs, config.iterations, self.device
            )
            for trial in trials
        ]
        torch.cuda.empty_cache()
        return sum(milliseconds) / len(milliseconds)

    def evaluate(self, job: Job, solution: Solution) -> Result:
        """Return a solution's result, whatever it does."""
        finding, log = self.examine(job, solution)
        evaluation = fib.evaluation(
            finding.status, self.device, log, finding.correctness, finding.performance
        )
        return Result(evaluation, tuple(finding.sentences))

    def examine(self, job: Job, solution: Solution) -> tuple[Finding, str]:
        """Return what is found about a solution, and what it prints, with how it ended."""
        process = self.process_for(solution)
        process.begin(job.config.timeout_seconds)
        try:
            finding = self.finding(job, process, solution)
            process.check_supervisor()
            printed = process.printed_text()
            if process.fills_its_folder() or self.may_be_broken(finding):
                self.end(process)
            return finding, printed
        except TimeoutError:
            finding = Finding(Status.TIMEOUT)
            text = timed_out(job.config.timeout_seconds)
        except Ended as ended:
            finding = Finding(Status.RUNTIME_ERROR)
            text = f"{fib.ENDED}{ended}"

        log = "\n".join(filter(None, [process.printed_text(), text]))
        self.end(process)
        return finding, log

    def may_be_broken(self, finding: Finding) -> bool:
        """Whether a CUDA context is of no use any more, to another solution for instance."""
        return self.device != "cpu" and finding.status == Status.RUNTIME_ERROR

    def finding(self, job: Job, process: SolutionProcess, solution: Solution) -> Finding:
        """Return what is found. Raises TimeoutError, and Ended where the process has."""
        if process.holds != job.number:
            send_inputs(process, job, self.device)
            process.holds = job.number

        answer = process.request({"do": "build", "solution": solution.model_dump_json()})
        if status_of(answer) != Status.PASSED:
            return Finding(status_of(answer))

        comparisons = []
        for number, trial in enumerate(job.trials):
            outputs = ask_outputs(process, job.full, solution, number, trial)
            if isinstance(outputs, Finding):
                return outputs
            compared = compare(job.full, trial, outputs, job.config)
            if isinstance(compared, Finding):
                return compared
            comparisons += compared

        finding = finding_of(job.full, comparisons, job.config)
        if finding.status == Status.PASSED:
            return self.timed(job, process, solution, finding)
        return finding

    def timed(
        self, job: Job, process: SolutionProcess, solution: Solution, finding: Finding
    ) -> Finding:
        """Return the finding with times; on a CPU with none, as an interpreter's say nothing."""
        if self.device == "cpu" or not job.reference_ms:
            return replace(finding, performance=Performance())

        request = {
            "do": "time",
            "solution": solution.name,
            "warmup_runs": job.config.warmup_runs,
            "iterations": job.config.iterations,
            "clock": self.clock,
        }
        # twice, as calls are slower after a reference; the second result counts
        process.request(request)
        answer = process.request(request)
        if status_of(answer) != Status.PASSED:
            return Finding(status_of(answer))

        latency_ms = mean_ms(answer, len(job.trials))
        performance = Performance(
            latency_ms=latency_ms,
            reference_latency_ms=job.reference_ms,
            speedup_factor=job.reference_ms / latency_ms,
        )
        return replace(finding, performance=performance)

    def process_for(self, solution: Solution) -> SolutionProcess:
        key = "" if self.shared else solution.name
        process = self.processes.get(key)
        if process is None or not process.is_alive():
            if process is not None:
                process.close()
            process = NURSERIES.start(MEMORY if self.device == "cpu" else None)
            self.processes[key] = process
        return process

    def end(self, process: SolutionProcess) -> None:
        process.close()
        self.processes = {
            key: other for key, other in self.processes.items() if other is not process
        }


def timed_out(seconds: int) -> str:
    return f"no result after {seconds} s; --timeout takes other seconds"


def status_of(answer: dict) -> Status:
    """Return the status in an answer. Raises Ended for one that this project does not write."""
    status = answer.get("status")
    if status in ("PASSED", "COMPILE_ERROR", "RUNTIME_ERROR"):
        return Status(status)
    raise Ended("its answer has no status")


def mean_ms(answer: dict, trials: int) -> float:
    """Return the mean time in an answer. Raises Ended for one that holds no times."""
    milliseconds = answer.get("milliseconds")
    if not isinstance(milliseconds, list) or len(milliseconds) != trials:
        raise Ended("its answer has no times")
    if not all(isinstance(each, float) and 0 < each < float("inf") for each in milliseconds):
        raise Ended("its answer has times that are none")
    return sum(milliseconds) / trials


def send_inputs(process: SolutionProcess, job: Job, device: str) -> None:
    """Give a process the inputs of all trials."""
    tensors = []
    trials = []
    for trial in job.trials:
        trials.append(list(inputs_described(trial.inputs)))
        tensors += [each for each in trial.inputs if isinstance(each, torch.Tensor)]

    request = {
        "do": "inputs",
        "definition": job.full.model_dump_json(),
        "device": device,
        "trials": trials,
    }
    answer = process.request(request, tensors)
    if status_of(answer) != Status.PASSED:
        raise Ended("it cannot take the inputs")


def inputs_described(inputs: list) -> Iterator[dict]:
    for each in inputs:
        yield described(each) if isinstance(each, torch.Tensor) else {"value": each}


def ask_outputs(
    process: SolutionProcess, full: Definition, solution: Solution, number: int, trial: Trial
) -> list[torch.Tensor] | Finding:
    """Return a solution's outputs for a trial, or why there are none that can be compared."""
    wanted = [described(each) for each in trial.expected]
    request = {"do": "call", "solution": solution.name, "trial": number, "wanted": wanted}
    answer = process.request(request)
    if status_of(answer) != Status.PASSED:
        return Finding(status_of(answer))

    outputs = answer.get("outputs")
    if outputs == wanted:
        received = process.receive_tensors(trial.expected)
        return [output.to(trial.expected[0].device) for output in received]
    return unlike(full, outputs, wanted)


def unlike(full: Definition, outputs: object, wanted: list[dict]) -> Finding:
    """Return a finding on the first output whose shape or dtype is another one."""
    if not isinstance(outputs, list) or len(outputs) != len(wanted):
        raise Ended("its answer has another number of outputs")

    for name, output, want in zip(full.outputs, outputs, wanted, strict=True):
        if output == want or not isinstance(output, dict):
            continue
        shapes_differ = output.get("shape") != want["shape"]
        status = Status.INCORRECT_SHAPE if shapes_differ else Status.INCORRECT_DTYPE
        got = f"{output.get('shape')} {output.get('dtype')}"
        sentence = f"the output {name} is {got}, want {want['shape']} {want['dtype']}"
        return Finding(status, sentences=[sentence])
    raise Ended("its answer has no outputs")
