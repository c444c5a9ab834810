"""Roofline bounds of what was measured.

A trace has no bound: `bound_columns` computes it from the workload's routing, for the one table in
measurements.py. Records of `moebench served` and `moebench profile` hold bounds by the ceilings of
the day they were made: `by_ceilings_of_today` corrects them, for the tables in reports/.
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
from moebench.operators import catalogue, roofline
from moebench.operators.roofline import CEILINGS, MEASURED_ON, Counts
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
                bound_of_workload[key] = recorded_bound(
                    trace.definition, trace.workload, each.root
                )
            bound = bound_of_workload[key]
            if bound and bound.rows:  # the routing is known, and an expert has a token
                on_gpu = replace(bound, gpu=trace.evaluation.environment.hardware)
                columns |= {
                    "bound_ms": on_gpu.ms,
                    "bytes": bound.bytes,
                    "flops": bound.flops,
                }
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
    hardware = trace.evaluation.environment.hardware
    return hardware in roofline.CEILINGS and not is_elsewhere


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


def by_ceilings_of_today(
    bound: float, ceilings: dict[str, float], definition: str, num_tokens: int
) -> float:
    """Return a record's bound on MEASURED_ON, in the record's unit, by today's ceilings.

    Ceilings grow as better readings of the same kind of GPU are made. ceilings: the record's, by
    which `bound` was computed.
    """
    today = CEILINGS[MEASURED_ON]
    layer_key = catalogue.by_name().get(definition)
    if layer_key is None or ceilings == today:
        return bound
    rate = expected_limit(layer_key, num_tokens)
    return bound * ceilings[rate] / today[rate]


def expected_limit(layer_key: str, num_tokens: int) -> str:
    """Return the rate that a layer's bound divides by, "bytes" or "fp8" for instance.

    That is for a routing which chooses all experts equally often.
    """
    sizes = catalogue.layer_sizes()[layer_key]
    local_experts = sizes["num_local_experts"]
    share = local_experts / sizes["num_experts"]
    rows = round(num_tokens * sizes["top_k"] * share)

    active = min(local_experts, rows)
    counts = Counts(rows=rows, tokens=min(num_tokens, rows), active=active)
    return catalogue.operator(layer_key).bound(num_tokens, counts, layer_key).limit
