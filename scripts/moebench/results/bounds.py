"""Roofline bounds of traces. A trace has none: `bound_columns` computes it from the workload's
routing, for the one table in measurements.py.
"""

import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pandas as pd
from flashinfer_bench import Trace

from moebench.core import paths
from moebench.core.errors import UserError
from moebench.core.provenance import of_trace
from moebench.operators.roofline import CEILINGS
from moebench.operators.workloads import of_data_set, recorded_bound
from moebench.results.trace_files import Recorded

BOUNDS = ["bound_ms", "bytes", "flops"]
DefinitionKey = tuple[Path | None, str]  # the data set, and the definition's name

# A part of the protocol of each trace that was measured on tensors of another data set.
DATA_SET_TENSORS = "dataset="


def bound_columns(recorded: list[Recorded]) -> pd.DataFrame:
    """Return a row for each trace with BOUNDS, NaN where they are not known, and the column
    `workloads`: how many the trace's definition has.
    """
    uuids = workload_uuids(recorded)
    bound_of_workload = {}
    rows = []
    for each in recorded:
        trace = each.trace
        columns = dict.fromkeys(BOUNDS, math.nan)
        if can_be_bounded(trace):
            key = (each.root, trace.definition, trace.workload.uuid)
            if key not in bound_of_workload:
                bound_of_workload[key] = recorded_bound(trace.definition, trace.workload, each.root)
            bound = bound_of_workload[key]
            if bound and bound.rows:  # the routing is known, and an expert has a token
                on_gpu = replace(bound, gpu=trace.evaluation.environment.hardware)
                columns |= {"bound_ms": on_gpu.ms, "bytes": bound.bytes, "flops": bound.flops}
        columns["workloads"] = len(uuids[each.root, trace.definition])
        rows.append(columns)
    return pd.DataFrame(rows)


def can_be_bounded(trace: Trace) -> bool:
    """Return whether the ceilings of a trace's GPU and the routing of its workload are known.

    The routing in another data set's tensors is not known: it differs from that of this
    repository's workload with the same uuid.
    """
    protocol = of_trace(trace).protocol or ""
    is_elsewhere = DATA_SET_TENSORS in protocol
    return trace.evaluation.environment.hardware in CEILINGS and not is_elsewhere


def workload_uuids(recorded: list[Recorded]) -> dict[DefinitionKey, set[str]]:
    """Return (data set, definition) -> uuids of the definition's workloads, in the data set and in
    these traces.
    """
    uuids = {}
    for each in recorded:
        key = (each.root, each.trace.definition)
        if key not in uuids:
            uuids[key] = set()
            # of a data set that cannot be read, the workloads in its traces will do
            with suppress(UserError):
                root = each.root or paths.ROOT
                workloads = of_data_set(each.trace.definition, root)
                uuids[key].update(workload.uuid for workload in workloads)
        uuids[key].add(each.trace.workload.uuid)
    return uuids
