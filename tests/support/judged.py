"""Plans of packed solutions on a small definition, and what becomes of their cells."""

from contextlib import closing
from dataclasses import replace  # noqa: F401

from moebench.judging import isolated
from moebench.judging.dataset import labelled
from moebench.judging.judge import Judge
from moebench.judging.plan import Cell, Part, Plan
from moebench.judging.selection import Device
from moebench.judging.tolerances import TOLERANCES
from moebench.operators.catalogue import definition

CPU = Device("a CPU", "cpu", 0)
GPU = Device("a GPU", "sm_90", 140_000_000_000)


def plan(
    packed,
    workloads=(),
    tolerance="relaxed",
    device=CPU,
    geometry="small",
    clock="events",
    verbose=False,
    **how,
):
    """packed: name -> solution. workloads: as --workloads. how: of FIB's BenchmarkConfig."""
    full = definition(geometry)
    cells = tuple(
        Cell(full.name, *one, tuple(packed)) for one in labelled(full.name, wanted=list(workloads))
    )
    config = TOLERANCES[tolerance].config(**{"num_trials": 1, "timeout_seconds": 60} | how)
    parts = {full.name: Part(full, packed, (), cells, None)}
    return Plan(
        device, parts, (), TOLERANCES[tolerance], config, clock, "moebench run --x", verbose
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
        isolated.Runner,
        "run_workload",
        lambda self, full, w, solutions, *_: run_workload(w, solutions),
    )
