"""Run solutions on workloads, judge them by FlashInfer-Bench and print one side-by-side table.

With a CUDA device this is FIB's benchmark on the first definition, DeepSeek-V3's layer on one rank of eight. Without
one it is the same job on a small one through Triton's interpreter, which shows what is correct, not what is fast.
Several definitions, and `all` that are for this machine and these solutions, get a table each. With --ray the GPUs of a
cluster share the work (docs/fleet.md).
"""

import argparse
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from flashinfer_bench import BenchmarkConfig, Solution
from rich.console import Console

from harness.core import paths
from harness.core.arguments import Names, count, output_file, writable
from harness.core.errors import CannotRun, UserError
from harness.core.provenance import CLOCKS
from harness.judging import fleet, memory, run
from harness.judging.calling import device_here
from harness.judging.fleet import Cells, names_of
from harness.judging.run import Judged
from harness.judging.selection import Device, build_slow, choose_geometry, dependencies, eligible, first_uses, survey
from harness.judging.tolerances import TOLERANCES, Tolerance
from harness.operators.arguments import add_definitions
from harness.operators.catalogue import FULL, GEOMETRIES, definition_name
from harness.packing import manifest
from harness.report import run_table
from harness.report.progress import progress
from harness.results import resume, trace_files

EVERY = "all"
WIDTH = 100  # of what is no terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--solutions", nargs="+", action=Names, default=[], metavar="NAME", help="default: all of the operator's")
    which = f"or {EVERY}; default: the solutions' first, that is full with a GPU, else small"
    add_definitions(parser, every=EVERY, default=[], help=which)
    add("--workloads", nargs="+", action=Names, default=[], metavar="W", help="T, a uuid or a name; default: all")
    add("--tolerance", choices=list(TOLERANCES), default="relaxed", help="default: relaxed")
    how = "events: CUDA events, as FIB 0.1.2; gpu: the GPU's activity, as FIB's main branch; default: events"
    add("--clock", choices=CLOCKS, default="events", help=how)
    add("--warmup-runs", type=count(0), default=10, help="default: 10; with a GPU only")
    add("--iterations", type=count(), default=50, help="default: 50; with a GPU only")
    add("--num-trials", type=count(), help="inputs per workload; default: 3 with a GPU, else 1")
    add("--timeout", type=count(), default=300, help="seconds per solution and workload; default: 300")
    add("--save", action=argparse.BooleanOptionalAction, help="keep the traces; default: with a GPU only")
    add("--resume", action="store_true", help="judge only what is not kept yet or stale, by the same protocol here")
    add("--ray", nargs="?", const="", metavar="ADDRESS", help="on a Ray cluster; default: this machine's")
    add("--gpu", metavar="KIND", help="with --ray: the GPUs to use, as Ray calls them, if there are several kinds")
    add("--verbose", action="store_true", help="the whole log of what fails; a diagnosis of every wrong output")
    add(
        "--output",
        type=output_file,
        metavar="FILE",
        help="keep the traces here; default: below traces/, by clock gpu docs/data/",
    )


def trace_file(args: argparse.Namespace, name: str, on_gpu: bool) -> Path | None:
    """The file that the definition's traces are kept in, or None. Raises UserError for a file of something else."""
    if not (args.save if args.save is not None else on_gpu or args.output is not None):
        return None
    path = args.output or writable(paths.trace_file(name, clock=args.clock))
    try:
        trace_files.load(path)
    except ValueError as error:  # before anything runs, not when there is something to add to it
        raise UserError(f"{path}: has lines that are no traces; fix it, or choose another --output") from error
    return path


def every(solutions: list[str], on_gpu: bool) -> list[str | None]:
    """The definitions for this machine that these solutions serve, or all of them; [None] where there is none."""
    served = {key for name in manifest.choose(solutions) for key in manifest.read_manifest(name).definitions}
    return [key for key in GEOMETRIES if key in served and (key in FULL) == on_gpu] or [None]


def main(args: argparse.Namespace) -> int:
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False, markup=False)
    logging.getLogger("flashinfer_bench").setLevel(logging.ERROR)
    if args.ray is None and args.gpu:
        raise UserError("--gpu: is for --ray")
    with fleet.connected(args.ray or None) if args.ray is not None else nullcontext():
        cluster = fleet.fleet_of(args.gpu) if args.ray is not None else None
        if cluster:
            console.print(f"{cluster.text}: waiting for the first")
        device = fleet.surveyed(cluster, dependencies()) if cluster else survey(dependencies())
        if not device.on_gpu and args.clock == "gpu":
            raise CannotRun("--clock gpu: takes times and needs a CUDA device; torch sees none")
        if not device.on_gpu:
            console.print("No CUDA device: Triton's interpreter runs the kernels, so no times.")
        wanted = args.definition or [None]
        if EVERY in wanted:
            wanted = every(args.solutions, device.on_gpu)
        jobs = []
        for each in wanted:
            try:
                jobs.append(job_of(choose_geometry(each, device.on_gpu, args.solutions), args, device))
            except CannotRun as error:  # one of several that these solutions do not serve, or that does not fit
                if len(wanted) == 1:
                    raise
                console.print(f"{definition_name(each)}\n{error}", soft_wrap=True)
        if not jobs:
            raise CannotRun(f"none of the {len(wanted)} definitions could be run here")
        if cluster:
            judge_there(jobs, cluster, args, console)
        for job in jobs if not cluster else ():
            judge_here(job, args, console)
    return 0 if all(outcome.passed for job in jobs for outcome in job.judged.values()) else 1


@dataclass
class Job:
    """One definition's part of a run: a table of its own, and a file that its traces are kept in, or None.

    todo: what is left to judge; judged: by workload's label.
    """

    geometry: str
    device: Device
    tolerance: Tolerance
    config: BenchmarkConfig
    solutions: dict[str, Solution]
    skipped: list[str]
    todo: list[Cells]
    path: Path | None
    keep_worker: bool = True
    judged: dict[str, Judged] = field(default_factory=dict)
    reasons: dict[str, list[str]] = field(default_factory=dict)  # last shown for each solution

    def conditions(self, args: argparse.Namespace) -> dict:
        """Of `run.judging`, beside where it runs."""
        shared = {"tolerance": self.tolerance, "config": self.config, "keep_worker": self.keep_worker}
        return shared | {"command": args.command_line, "diagnose_all": args.verbose, "clock": args.clock}

    def add(self, outcomes: list[Judged]) -> None:
        for outcome in outcomes:
            before = self.judged.get(outcome.label)
            self.judged[outcome.label] = before.joined(outcome) if before else outcome
        if self.path and outcomes:  # at once: a run that is cut short keeps what it has measured
            trace_files.merge(self.path, [trace for outcome in outcomes for trace in outcome.traces.values()])


def job_of(geometry: str, args: argparse.Namespace, device: Device) -> Job:
    """Raises UserError, and CannotRun where nothing can be run."""
    tolerance = TOLERANCES[args.tolerance]
    trials = args.num_trials or (3 if device.on_gpu else 1)
    times = {"warmup_runs": args.warmup_runs, "iterations": args.iterations, "num_trials": trials}
    config = tolerance.config(timeout_seconds=args.timeout, **times)
    path = trace_file(args, definition_name(geometry), device.on_gpu)
    if args.resume and not path:
        raise UserError("--resume: no traces are kept here without a GPU: name them with --output FILE")
    labelled = run.load_workloads(geometry, args.workloads)
    solutions, skipped = eligible(args.solutions, geometry, device)
    keep_worker = True
    if device.on_gpu:
        known = device.free, geometry, trials, len(solutions)
        labelled, too_large = memory.fitting(labelled, *known)
        skipped += too_large
        keep_worker = memory.keeps_worker(labelled, *known)
    job = Job(geometry, device, tolerance, config, solutions, skipped, [], path, keep_worker)
    same = device.hardware, str(tolerance), run.protocol_text(config, device.on_gpu, args.clock)
    there = resume.current(path, solutions, *same) if args.resume else {}
    for label, workload in labelled:
        known = there.get(workload.uuid, {})
        if known:
            job.judged[label] = Judged(label, known)
        if left := tuple(name for name in solutions if name not in known):
            job.todo.append(Cells(geometry, label, workload, left))
    return job


def judge_here(job: Job, args: argparse.Namespace, console: Console) -> None:
    """One workload after the other."""
    build_slow(job.solutions, first_uses(names_of(job.todo)), console.print)
    if not job.keep_worker:
        console.print("Each workload gets a worker process of its own: with one for all memory would not suffice.")
    total = len(job.todo)
    known = job.geometry, job.solutions
    with (
        table_at_the_end([job], args, console),
        run.judging(*known, device=device_here(), **job.conditions(args)) as judge,
        progress(console, total) as started,
    ):
        for done, cells in enumerate(job.todo, start=1):
            started(done - 1, cells.label)
            outcome = judge(cells.label, cells.workload, cells.names)
            job.add([outcome])
            show(job, outcome, f"[{done}/{total}]", args, console)


def judge_there(jobs: list[Job], cluster: fleet.Fleet, args: argparse.Namespace, console: Console) -> None:
    """All definitions' cells at once, the longest first: one that begins last would keep the others waiting."""
    by_geometry = {job.geometry: job for job in jobs}
    solutions = {job.geometry: job.solutions for job in jobs}
    conditions = {job.geometry: job.conditions(args) for job in jobs}
    pieces = [piece for job in jobs for piece in sorted(job.todo, key=lambda c: -c.workload.axes["seq_len"])]
    notes = {job.geometry: first_uses(names_of(job.todo)) for job in jobs}
    total, done = sum(len(piece.names) for piece in pieces), 0
    with table_at_the_end(jobs, args, console), progress(console, total) as started:
        started(0, cluster.text)
        for arrived in fleet.outcomes(pieces, cluster, solutions, notes, conditions, console.print):
            for job in jobs:
                job.add([outcome for cells, outcome in arrived if cells.geometry == job.geometry])
            for cells, outcome in arrived:
                done += len(cells.names)
                started(done, cluster.text)
                show(by_geometry[cells.geometry], outcome, f"[{done}/{total}]", args, console)


@contextmanager
def table_at_the_end(jobs: list[Job], args: argparse.Namespace, console: Console) -> Iterator[None]:
    """After Ctrl-C, too: one table for each definition and kind of GPU of which anything was judged."""
    try:
        yield
    finally:
        for job in jobs:
            judged = list(job.judged.values())
            for hardware, found in run_table.by_hardware(judged).items():
                where = f"{job.device.target}, {hardware}" if hardware else job.device.target
                said = ", by the GPU's clock" if args.clock == "gpu" else ""
                console.print(f"{definition_name(job.geometry)}\n{where}, {job.tolerance}{said}")
                made = run_table.table(found, list(job.solutions), job.skipped, job.device.on_gpu)
                console.print(made.terminal())
            if judged and job.path:
                console.print(f"{sum(len(w.traces) for w in judged)} traces saved in {job.path}", soft_wrap=True)


def show(job: Job, outcome: Judged, at: str, args: argparse.Namespace, console: Console) -> None:
    for line in run_table.lines(outcome, job.device.on_gpu, job.reasons):
        console.print(line if line.startswith(" ") else f"{at} {line}")
    for solution, log in outcome.logs.items() if args.verbose else ():
        console.print(f"the log of {solution}:\n{log}", soft_wrap=True)
