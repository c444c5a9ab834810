"""Plans of packed solutions on a small definition, and what becomes of their cells."""

from contextlib import closing
from dataclasses import replace  # noqa: F401

from harness.judging import isolated
from harness.judging.judge import Judge
from harness.judging.plan import Cell, Part, Plan, labelled_workloads
from harness.judging.selection import Device
from harness.judging.tolerances import TOLERANCES
from harness.operators.catalogue import definition

CPU = Device("a CPU", "cpu", 0, frozenset())
GPU = Device("a GPU", "sm_90", 140_000_000_000, frozenset())


def plan(packed, workloads=(), tolerance="relaxed", device=CPU, geometry="small", clock="events", verbose=False, **how):
    """packed: name -> solution. workloads: as --workloads. how: of FIB's BenchmarkConfig."""
    labelled = labelled_workloads(geometry, list(workloads))
    full = definition(geometry)
    cells = tuple(Cell(full.name, label, workload, tuple(packed)) for label, workload in labelled)
    config = TOLERANCES[tolerance].config(**{"num_trials": 1, "timeout_seconds": 60} | how)
    return Plan(
        device,
        {full.name: Part(full, packed, (), cells, None)},
        (),
        TOLERANCES[tolerance],
        config,
        clock,
        "moebench run --x",
        verbose,
    )


def outcomes(*args, **kwargs):
    """Of each cell of such a plan, judged on this machine's CPU."""
    made = plan(*args, **kwargs)
    with closing(Judge(made)) as judge:
        return [judge(cell) for cell in made]


def verdict(packed, workload="first-rank", **kwargs):
    """Of a solution on one workload."""
    (outcome,) = outcomes({packed.name.removesuffix("_h512_i256"): packed}, [workload], **kwargs)
    (found,) = outcome.verdicts.values()
    return found


def stand_in(monkeypatch, run_workload):
    """Have a function of (workload, solutions) judge a workload on a CPU."""
    monkeypatch.setattr(
        isolated.Runner, "run_workload", lambda self, full, w, solutions, *_: run_workload(w, solutions)
    )
