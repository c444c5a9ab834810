"""Evaluate solutions in processes of their own.

The reference runs in this process, where no solution runs, and outputs are compared here. What a
solution does to its own process (an exit, a crash, memory without end) is its result:

    Finding(RUNTIME_ERROR, log="the process ended: SIGSEGV")
"""

import itertools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from flashinfer_bench import BenchmarkConfig, Definition, Performance, Solution, Workload
from flashinfer_bench import EvaluationStatus as Status
from flashinfer_bench.compile import Runnable

from moebench.judging import fib
from moebench.judging.calling import call, seeded_inputs
from moebench.judging.isolation import ask
from moebench.judging.isolation.comparison import Finding, Trial, compare, finding_of
from moebench.judging.isolation.processes import NURSERIES, Ended, SolutionProcess

MEMORY = 4 << 30  # bytes that a solution may take for itself; the layers for CPUs need a fiftieth
LOOK = "second look"  # before the workload's uuid, in the seed of a fresh input
INPUTS_NUMBERS = itertools.count(1)  # 0 is that of a process without inputs


@dataclass(frozen=True)
class Job:
    """What solutions are evaluated on, and how.

    reference_ms: mean time of the reference, 0 where nothing is timed. inputs_number: tells the
    inputs of these trials from all others, as a process is sent them once for all solutions.
    """

    definition: Definition
    trials: list[Trial]
    config: BenchmarkConfig
    reference_ms: float = 0.0
    inputs_number: int = field(default_factory=lambda: next(INPUTS_NUMBERS))


class Runner:
    """Evaluates solutions on one device, each in a process that lives as long as it behaves.

    device: as torch calls it. clock: that times are taken by on a GPU. shared: all solutions run in
    one process, as those may that are trusted. processes: by the solution's packed name; the shared
    one has the name "".
    """

    def __init__(self, device: str = "cpu", clock: str = "events", shared: bool = False):
        self.device = device
        self.clock = clock
        self.shared = shared
        self.processes: dict[str, SolutionProcess] = {}
        NURSERIES.get()  # it imports torch while this process computes the first reference

    def run_workload(
        self,
        definition: Definition,
        workload: Workload,
        solutions: list[Solution],
        config: BenchmarkConfig,
        root: Path,
    ) -> dict[str, Finding]:
        """Return packed name -> what is found about the solution, whatever it does.

        Inputs are drawn with the workload's uuid as seed. Raises what the reference raises, and
        RuntimeError where its outputs are not finite. root: of the data set with stored inputs.
        """
        job = self.job(definition, workload, config, root, is_timed=self.device != "cpu")
        return {solution.name: self.examine(job, solution) for solution in solutions}

    def look(
        self,
        definition: Definition,
        workload: Workload,
        solutions: list[Solution],
        config: BenchmarkConfig,
        root: Path,
    ) -> Iterator[Finding]:
        """Yield what is found about each solution, in their order, on one fresh input, without
        times.

        Afterwards no memory of the device is held, as FIB's worker needs it next. Raises as
        `run_workload`.
        """
        fresh = workload.model_copy(update={"uuid": f"{LOOK} {workload.uuid}"})
        job = self.job(definition, fresh, replace(config, num_trials=1), root, is_timed=False)
        for solution in solutions:
            yield self.examine(job, solution)
        self.free_inputs(job)

    def free_inputs(self, job: Job) -> None:
        """Have processes drop the inputs that they hold."""
        no_inputs = replace(job, trials=[], inputs_number=next(INPUTS_NUMBERS))
        for process in list(self.processes.values()):
            process.begin(job.config.timeout_seconds)
            try:
                self.give_inputs(process, no_inputs)
            except (TimeoutError, Ended):
                self.end(process)
        if self.device != "cpu":
            torch.cuda.empty_cache()

    def close(self) -> None:
        for process in self.processes.values():
            process.close()
        NURSERIES.clean_up()

    def job(
        self,
        definition: Definition,
        workload: Workload,
        config: BenchmarkConfig,
        root: Path,
        is_timed: bool,
    ) -> Job:
        """Return the trials of a workload, with what the reference computes in each, and its time
        if that is wanted. Raises as `run_workload`.
        """
        reference = fib.build_reference(definition)
        stored = fib.load_safetensors(definition, workload, root)
        trials = []
        for inputs in seeded_inputs(definition, workload, config.num_trials, self.device, stored):
            expected = call(definition, reference, inputs, self.device)
            fib.check_finite(definition, expected)
            trials.append(Trial(inputs, expected))

        reference_ms = self.mean_ms(reference, trials, config) if is_timed else 0.0
        return Job(definition, trials, config, reference_ms)

    def mean_ms(self, reference: Runnable, trials: list[Trial], config: BenchmarkConfig) -> float:
        """Return the reference's time in ms, a mean over trials."""
        time_runnable = fib.timer(self.clock)
        counts = (config.warmup_runs, config.iterations)
        times_ms = []
        for trial in trials:
            times_ms.append(time_runnable(reference, trial.inputs, *counts, self.device))
        torch.cuda.empty_cache()
        return statistics.fmean(times_ms)

    def examine(self, job: Job, solution: Solution) -> Finding:
        """Return what is found about a solution, whatever it does."""
        process = self.process_for(solution)
        seconds = job.config.timeout_seconds
        process.begin(seconds)
        reason = ""
        try:
            finding = self.examine_in(process, job, solution)
            process.check_supervisor()
        except TimeoutError:
            finding = Finding(Status.TIMEOUT)
            reason = f"no result after {seconds} s; --timeout takes other seconds"
        except Ended as ended:
            finding = Finding(Status.RUNTIME_ERROR)
            reason = f"{fib.ENDED}{ended}"

        log = f"{process.printed_text()}\n{reason}".strip("\n")
        # a CUDA context may be of no use any more, to another solution for instance
        may_be_broken = self.device != "cpu" and finding.status == Status.RUNTIME_ERROR
        if reason or may_be_broken or process.fills_its_folder():
            self.end(process)
        return replace(finding, log=log)

    def examine_in(self, process: SolutionProcess, job: Job, solution: Solution) -> Finding:
        """Build, call, compare and time a solution.

        Raises TimeoutError where the process does not answer in time, Ended where it has ended.
        """
        self.give_inputs(process, job)
        status = ask.build(process, solution)
        if status != Status.PASSED:
            return Finding(status)

        comparisons = []
        for number, trial in enumerate(job.trials):
            outputs = ask.outputs(process, job.definition, solution.name, number, trial)
            if isinstance(outputs, Finding):
                return outputs
            compared = compare(job.definition, trial, outputs, job.config)
            if isinstance(compared, Finding):
                return compared
            comparisons += compared

        finding = finding_of(job.definition, comparisons, job.config)
        if finding.status == Status.PASSED:
            return self.with_times(finding, process, job, solution)
        return finding

    def give_inputs(self, process: SolutionProcess, job: Job) -> None:
        """Send a process a job's inputs unless it has them. Raises as `examine_in`."""
        if process.inputs_number != job.inputs_number:
            ask.take_inputs(process, job.definition, job.trials, self.device)
            process.inputs_number = job.inputs_number

    def with_times(
        self, finding: Finding, process: SolutionProcess, job: Job, solution: Solution
    ) -> Finding:
        """Return the finding with times. Raises as `examine_in`."""
        if not job.reference_ms:  # on a CPU, where an interpreter's times say nothing
            return replace(finding, performance=Performance())

        # twice, as calls are slower after a reference; the second result counts
        for _ in range(2):
            answer = ask.time(process, solution.name, job.config, self.clock)
        if answer.status != "PASSED":
            return Finding(Status(answer.status))

        latency_ms = ask.mean_ms(answer, len(job.trials))
        performance = fib.TimedPerformance(
            latency_ms=latency_ms,
            reference_latency_ms=job.reference_ms,
            speedup_factor=job.reference_ms / latency_ms,
            trials_ms=answer.milliseconds,
        )
        return replace(finding, performance=performance)

    def process_for(self, solution: Solution) -> SolutionProcess:
        """Return a process that waits for requests: the solution's, or a new one."""
        key = "" if self.shared else solution.name
        process = self.processes.get(key)
        if process and not process.is_alive():
            self.end(process)
            process = None
        if process is None:
            memory = MEMORY if self.device == "cpu" else None
            process = self.processes[key] = NURSERIES.start(memory)
        return process

    def end(self, process: SolutionProcess) -> None:
        """End a process; the next solution that needs one gets another."""
        process.close()
        for key, other in list(self.processes.items()):
            if other is process:
                del self.processes[key]
