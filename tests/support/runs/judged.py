"""Plans of packed solutions on a small layer, and what becomes of their tasks."""

from contextlib import closing
from dataclasses import replace

import pytest
import torch
from moebench import cli
from moebench.judging.dataset import labelled
from moebench.judging.device import Device
from moebench.judging.evaluate import Evaluator
from moebench.judging.isolation import runner
from moebench.judging.isolation.comparison import Finding
from moebench.judging.plan import Part, Plan, Task
from moebench.judging.tolerances import TOLERANCES
from moebench.operators.catalogue import definition
from moebench.results import trace_files

ON_CPU = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the interpreter's job, for CPUs"
)
CPU = Device("a CPU", "cpu", 0)
GPU = Device("a GPU", "sm_90", 140_000_000_000)


def plan(
    packed,
    workloads=(),
    tolerance="relaxed",
    device=CPU,
    layer_key="small",
    clock="events",
    verbose=False,
    **how,
):
    """Return a plan of name -> solution. workloads: as --workloads. how: of FIB's config."""
    full = definition(layer_key)
    tasks = []
    for label, workload in labelled(full.name, wanted=list(workloads)):
        tasks.append(Task(full.name, label, workload, tuple(packed)))
    config = TOLERANCES[tolerance].config(
        **{"num_trials": 1, "timeout_seconds": 60} | how
    )

    return Plan(
        device=device,
        parts={full.name: Part(full, packed, skipped=(), tasks=tuple(tasks))},
        notes=(),
        tolerance=TOLERANCES[tolerance],
        config=config,
        clock=clock,
        command="moebench run --x",
        verbose=verbose,
    )


def with_part(plan, **changes):
    """Return a plan of one definition whose part has these changes."""
    ((name, part),) = plan.parts.items()
    return replace(plan, parts={name: replace(part, **changes)})


def outcomes(*args, **kwargs):
    """Return the outcome of each task of such a plan, on this machine's CPU."""
    planned = plan(*args, **kwargs)
    with closing(Evaluator(planned)) as evaluator:
        return [evaluator.evaluate(task) for task in planned]


def evaluated(packed, workload="first-rank", **kwargs):
    """Return what becomes of a solution on one workload."""
    name = packed.name.removesuffix("_h512_i256")
    (outcome,) = outcomes({name: packed}, [workload], **kwargs)
    (solution,) = outcome.evaluated.values()
    return solution


def recorded(folder, *arguments):
    """Return the exit status of `moebench run` with these arguments, and the traces that it has
    written to folder/traces.jsonl.
    """
    output = folder / "traces.jsonl"
    status = cli.main(["run", *map(str, arguments), "--output", str(output)])
    return status, trace_files.read_saved(output)


def stand_in(monkeypatch, run_workload):
    """Let a function of (workload, solutions) evaluate workloads, in place of a process."""

    def run(self, full, workload, solutions, config, root):
        evaluations = run_workload(workload, solutions)
        return {name: Finding.by_fib(each) for name, each in evaluations.items()}

    monkeypatch.setattr(runner.IsolatedRunner, "run_workload", run)
