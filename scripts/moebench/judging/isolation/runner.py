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
from flashinfer_bench import (
    BenchmarkConfig,
    Definition,
    Performance,
    Solution,
    Workload,
)
from flashinfer_bench import EvaluationStatus as Status
from flashinfer_bench.compile import Runnable

from moebench.judging import fib
from moebench.judging.calling import call, seeded_inputs
from moebench.judging.isolation import ask
from moebench.judging.isolation.comparison import Finding, Trial, compare, finding_of
from moebench.judging.isolation.processes import NURSERIES, Ended, SolutionProcess

# Bytes that a solution's process may allocate on a CPU; what runs there needs a fiftieth.
MEMORY = 4 << 30
# put before the workload's uuid, which is the seed, for a fresh input
FRESH = "second look"
INPUTS_NUMBERS = itertools.count(1)  # 0 is for a process that has no inputs yet


@dataclass(frozen=True)
class Job:
    """What solutions are evaluated on, and how.

    reference_ms: mean time of the reference, 0 where nothing is timed. inputs_number: which
    job this is. A process that holds the inputs of this number is not sent them again.
    """

    definition: Definition
    trials: list[Trial]
    config: BenchmarkConfig
    reference_ms: float = 0.0
    inputs_number: int = field(default_factory=lambda: next(INPUTS_NUMBERS))


class IsolatedRunner:
    """Evaluates solutions on one device, each in a process that lives as long as it behaves.

    device: as torch calls it. clock: by which times are taken on a GPU. shared: whether all
    solutions run in one process, for those that are trusted. processes: by the solution's packed
    name; by "" the shared one.
    """

    def __init__(
        self, device: str = "cpu", clock: str = "events", shared: bool = False
    ):
        self.device = device
        self.clock = clock
        self.shared = shared
        self.processes: dict[str, SolutionProcess] = {}
        # starts the process that others are forked from, which imports torch in the meantime
        NURSERIES.get()

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
        job = self.new_job(
            definition, workload, config, root, is_timed=self.device != "cpu"
        )
        return {solution.name: self.examine(job, solution) for solution in solutions}

    def look_again(
        self,
        definition: Definition,
        workload: Workload,
        solutions: list[Solution],
        config: BenchmarkConfig,
        root: Path,
    ) -> Iterator[Finding]:
        """Take a second look: yield what is found about each solution, in their order, on one fresh
        input. Nothing is timed.

        After the last one the device's memory is free, which FIB's worker needs next. Raises as
        `run_workload`.
        """
        fresh = workload.model_copy(update={"uuid": f"{FRESH} {workload.uuid}"})
        one_trial = fib.with_changes(config, num_trials=1)
        job = self.new_job(definition, fresh, one_trial, root, is_timed=False)
        for solution in solutions:
            yield self.examine(job, solution)
        # processes drop their inputs, and torch what it has cached
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

    def new_job(
        self,
        definition: Definition,
        workload: Workload,
        config: BenchmarkConfig,
        root: Path,
        is_timed: bool,
    ) -> Job:
        """Run the reference on a workload. Return a job with its outputs in each trial.

        is_timed: whether the job also has the reference's time. Raises as `run_workload`.
        """
        reference = fib.build_reference(definition)
        stored = fib.load_safetensors(definition, workload, root)
        trials = []
        for inputs in seeded_inputs(
            definition, workload, config.num_trials, self.device, stored
        ):
            expected = call(definition, reference, inputs, self.device)
            fib.check_finite(definition, expected)
            trials.append(Trial(inputs, expected))

        reference_ms = self.mean_ms(reference, trials, config) if is_timed else 0.0
        return Job(definition, trials, config, reference_ms)

    def mean_ms(
        self, reference: Runnable, trials: list[Trial], config: BenchmarkConfig
    ) -> float:
        """Return the reference's time in ms, a mean over trials."""
        time_runnable = fib.timer(self.clock)
        counts = (config.warmup_runs, config.iterations)
        times_ms = []
        for trial in trials:
            ms = time_runnable(reference, trial.inputs, *counts, self.device)
            times_ms.append(ms)
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
        # an error may leave a CUDA context broken, also for the next solution in this process
        may_be_broken = self.device != "cpu" and finding.status == Status.RUNTIME_ERROR
        if reason or may_be_broken or process.fills_its_folder():
            self.end(process)
        return replace(finding, log=log)

    def examine_in(
        self, process: SolutionProcess, job: Job, solution: Solution
    ) -> Finding:
        """Build, call, compare and time a solution.

        Raises TimeoutError where the process does not answer in time, Ended where it has ended.
        """
        self.give_inputs(process, job)
        status = ask.build(process, solution)
        if status != Status.PASSED:
            return Finding(status)

        comparisons = []
        for number, trial in enumerate(job.trials):
            outputs = ask.call(process, job.definition, solution.name, number, trial)
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
        # a second look, or on a CPU, where times of Triton's interpreter say nothing
        if not job.reference_ms:
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
