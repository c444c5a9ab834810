"""Whether recorded traces show that a solution passes every workload at contest tolerance as it is now."""

from collections import defaultdict

import pandas as pd
from flashinfer_bench import Solution, Workload

from harness.packing.manifest import folder_name


def proven_on(
    solution: Solution, rows: pd.DataFrame | None, workloads: list[Workload], command: str
) -> tuple[str | None, list[str]]:
    """(machine, []) where every workload is PASSED with the current source on one machine, else (None, why).

    rows: of harness.results.table; None without any. command: what records a missing trace. Only rows at contest
    tolerance count. Of several machines the one with the most passes is reported.
    """
    how = f"record on a CUDA GPU with: {command}"
    name = folder_name(solution.name, solution.definition)
    wanted = {"definition": solution.definition, "solution": name, "tolerance": "contest"}
    if rows is None or (rows := rows[(rows[list(wanted)] == pd.Series(wanted)).all(axis=1)]).empty:
        return None, [f"no trace of {name} at contest tolerance; {how}"]
    missing = {machine: faults(found, workloads) for machine, found in rows.groupby("hardware")}
    machine = min(missing, key=lambda machine: sum(map(len, missing[machine].values())))
    reasons = [
        f"{len(lengths)} of {len(workloads)} workloads {what} on {machine}: T={', '.join(map(str, lengths))}; {how}"
        for what, lengths in missing[machine].items()
    ]
    return (None, reasons) if reasons else (machine, [])


def faults(rows: pd.DataFrame, workloads: list[Workload]) -> dict[str, list[int]]:
    """What keeps one machine's rows from proving a pass -> token counts of the workloads concerned."""
    found = defaultdict(list)
    by_uuid = {row.uuid: row for row in rows.sort_values("timestamp").itertuples()}
    for workload in workloads:
        row = by_uuid.get(workload.uuid)
        if row is None:
            found["have no trace at contest tolerance"].append(workload.axes["seq_len"])
        elif row.source != "current":
            found["were measured with another source"].append(workload.axes["seq_len"])
        elif not row.passed:
            found[f"are {row.status} at contest tolerance"].append(workload.axes["seq_len"])
    return found
