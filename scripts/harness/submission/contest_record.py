"""Whether recorded traces show that a solution passes every workload at contest tolerance as it is now."""

import pandas as pd
from flashinfer_bench import Solution, Workload

from harness.packing.manifest import folder_name


def proven_on(solution: Solution, rows: pd.DataFrame | None, workloads: list[Workload]) -> tuple[str | None, list[int]]:
    """(machine, []) where every workload is PASSED with the current source on one machine, else (None, token counts).

    rows: of harness.results.table, one a cell; None without any. Only those at contest tolerance count. Of several
    machines the one with the most passes is reported.
    """
    name = folder_name(solution.name, solution.definition)
    wanted = {"definition": solution.definition, "solution": name, "tolerance": "contest", "source": "current"}
    lacking = {None: [workload.axes["seq_len"] for workload in workloads]}
    if rows is not None:
        passed = rows[(rows[list(wanted)] == pd.Series(wanted)).all(axis=1) & rows.passed]
        for machine, uuids in passed.groupby("hardware").uuid.agg(set).items():
            lacking[machine] = [w.axes["seq_len"] for w in workloads if w.uuid not in uuids]
    machine = min(lacking, key=lambda machine: len(lacking[machine]))
    return (None, lacking[machine]) if lacking[machine] else (machine, [])
