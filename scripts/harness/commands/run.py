"""Run solutions on workloads, judge them by FlashInfer-Bench and print one side-by-side table.

With a CUDA device this is FIB's benchmark on the full geometry. Without one it is the same job on
the small geometry through Triton's interpreter, which tells what is correct but not what is fast.
"""

import argparse
import logging
import sys
from pathlib import Path

import torch
from flashinfer_bench import EvaluationStatus, Trace, TraceSet
from flashinfer_bench.bench.runner import PersistentRunner
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed
from rich.progress import TimeRemainingColumn as Remaining

from harness.core import paths
from harness.evaluation import cpu_judge, first_use, result_table
from harness.evaluation.tolerances import TOLERANCES
from harness.operators import workloads
from harness.operators.catalogue import FULL, GEOMETRIES, definition_name, geometry_here, operator
from harness.packing import eligibility, manifest, pack
from harness.results import trace_store

DEFINITION = (
    f"{', '.join(GEOMETRIES)}, or a definition's name; default: the solutions' own, full with a GPU, else small"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--solutions",
        nargs="+",
        default=[],
        metavar="NAME",
        help="default: every solution of the definition's operator",
    )
    add("--definition", metavar="KEY|NAME", help=DEFINITION)
    add("--tolerance", choices=list(TOLERANCES), default="relaxed", help="default: relaxed")
    add("--warmup-runs", type=int, default=10, help="default: 10; with a GPU only")
    add("--iterations", type=int, default=50, help="default: 50; with a GPU only")
    add("--num-trials", type=int, help="inputs per workload; default: 3 with a GPU, else 1")
    add("--timeout", type=int, default=300, help="seconds per solution and workload; default: 300")
    add(
        "--save",
        action=argparse.BooleanOptionalAction,
        help="keep the traces; default: with a GPU only",
    )
    add("--output", type=Path, metavar="FILE", help="keep the traces here, not below traces/")


def choose_geometry(wanted: str | None, on_gpu: bool, solutions: list[str]) -> str:
    """A key of GEOMETRIES from a key or a definition's name, or else what the first solution serves.

    Raises ValueError, and PackingError for a solution that there is not.
    """
    if wanted is None:
        served = manifest.read_manifest(manifest.choose(solutions)[0]).definitions if solutions else []
        return geometry_here(served, on_gpu) or geometry_here(list(GEOMETRIES), on_gpu)
    by_name = {definition_name(geometry): geometry for geometry in GEOMETRIES}
    geometry = by_name.get(wanted, wanted)
    if geometry not in GEOMETRIES:
        listed = ", ".join([*GEOMETRIES, *by_name])
        raise ValueError(f"unknown definition {wanted!r}; there are: {listed}")
    if geometry in FULL and not on_gpu:
        small = next(key for key in operator(geometry).geometries if key not in FULL)
        raise ValueError(f"the {geometry} geometry needs a CUDA device; without one: --definition {small}")
    return geometry


def run(args: argparse.Namespace, geometry: str, console: Console, command: str) -> bool:
    """Do the job; return whether everything that was not skipped passed."""
    on_gpu = torch.cuda.is_available()
    tolerance = TOLERANCES[args.tolerance]
    num_trials = args.num_trials or (3 if on_gpu else 1)
    names = args.solutions or manifest.solutions_of(operator(geometry).geometries)
    names = manifest.choose(names)
    name = definition_name(geometry)
    save = args.save if args.save is not None else on_gpu or args.output is not None
    path = args.output or paths.trace_file(name)
    if save:
        try:
            trace_store.load(path)
        except ValueError as error:  # told now, not when there is something to add to it
            raise ValueError(f"{path}: has lines that are no traces; mend it, or choose another --output") from error
    pack.pack_here(names)
    workloads.make(geometry)
    trace_set = TraceSet.from_path(str(paths.ROOT))
    definition = trace_set.definitions[name]
    todo = [trace.workload for trace in trace_set.workloads[name]]

    wanted = {pack.packed_name(n, geometry) for n in names}
    packed = [s for s in trace_set.solutions.get(name, []) if s.name in wanted]
    hardware = eligibility.here()
    reasons = {s.name: eligibility.why_skipped(s, hardware) for s in packed}
    skipped = {name: reason for name, reason in reasons.items() if reason}
    for solution in sorted(wanted - reasons.keys()):
        skipped[solution] = "does not serve this definition"
    for solution, reason in skipped.items():
        console.print(f"{solution}: SKIPPED: {reason}", style="yellow")
    solutions = [s for s in packed if s.name not in skipped]
    notes = {pack.packed_name(n, geometry): manifest.read_manifest(n).first_use for n in names}
    first_use.build_ahead(definition, solutions, {n: note for n, note in notes.items() if note}, console)

    protocol = f"trials={num_trials} on the CPU through Triton's interpreter, not timed"
    if on_gpu:
        protocol = f"warmup={args.warmup_runs} iterations={args.iterations} trials={num_trials}"
        config = cpu_judge.config_for(
            tolerance,
            warmup_runs=args.warmup_runs,
            iterations=args.iterations,
            num_trials=num_trials,
            timeout_seconds=args.timeout,
        )
        runner = PersistentRunner(config.log_dir) if solutions else None
    else:
        console.print("No CUDA device: Triton's interpreter runs the kernels, so no times.")

    results = {s.name: {} for s in solutions}
    labels = workloads.cases_by_uuid(geometry)
    rows = []
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    bar = Progress(*columns, Elapsed(), Remaining(), console=console, transient=True)
    try:
        with bar:
            task = bar.add_task("", total=len(todo) if solutions else 0)
            for at, workload in enumerate(todo if solutions else [], start=1):
                label = labels[workload.uuid].label
                rows.append((workload.uuid, label))
                bar.update(task, description=label)
                try:
                    if on_gpu:
                        found = runner.run_workload(definition, workload, solutions, config, trace_set.root)
                    else:
                        found = cpu_judge.run_workload(
                            definition,
                            workload,
                            solutions,
                            tolerance,
                            trace_set.root,
                            num_trials,
                            args.timeout,
                        )
                except RuntimeError as error:
                    console.print(f"{label}: the reference did not run: {error}", style="bold red")
                    found = {}
                for solution in solutions:
                    if solution.name in found:
                        ev = trace_store.annotate(
                            found[solution.name],
                            solution.hash(),
                            str(tolerance),
                            protocol,
                            command,
                            trace_store.packages(tuple(solution.spec.dependencies)),
                        )
                        results[solution.name][workload.uuid] = ev
                        text = result_table.cell(ev, on_gpu)
                        console.print(
                            f"[{at}/{len(todo)}] {label}  {solution.name}  {text}",
                            markup=False,
                            highlight=False,
                        )
                        if ev.log:
                            console.print(ev.log.strip().splitlines()[-1], markup=False)
                if save:  # at once: a run that is cut short keeps what it has measured
                    traces = [
                        Trace(definition=name, workload=workload, solution=solution, evaluation=evs[workload.uuid])
                        for solution, evs in results.items()
                        if workload.uuid in evs
                    ]
                    trace_store.merge(path, traces)
                bar.advance(task)
    finally:
        if on_gpu and solutions:
            runner.close()

    title = f"{name}\n{hardware}, {tolerance}"
    console.print(result_table.table(title, rows, results, skipped, on_gpu))
    if save:
        console.print(f"{sum(map(len, results.values()))} traces saved in {path}", soft_wrap=True)
    return all(
        uuid in evs and evs[uuid].status == EvaluationStatus.PASSED for evs in results.values() for uuid, _ in rows
    )


def main(args: argparse.Namespace) -> int:
    console = Console(width=None if sys.stdout.isatty() else 160)
    logging.getLogger("flashinfer_bench").setLevel(logging.ERROR)
    command = args.command_line
    try:
        geometry = choose_geometry(args.definition, torch.cuda.is_available(), args.solutions)
        return 0 if run(args, geometry, console, command) else 1
    except (manifest.PackingError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
