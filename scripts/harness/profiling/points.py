"""What a solution is profiled on: workloads of the data set, and the sweep's made-up points, whose uuid is KIND:T."""

import math

import torch
from flashinfer_bench import Definition, Workload
from flashinfer_bench.bench.utils import load_safetensors

from harness.core import paths
from harness.judging.calling import seeded_inputs
from harness.operators import catalogue, routing_kinds, workloads
from harness.operators.moe_fp8_block_scale import MoeCase


def label(point: Workload) -> str:
    return point.uuid if ":" in point.uuid else f"T={point.axes['seq_len']}"


def choose_points(wanted: list[str], geometry: str) -> list[Workload]:
    """The points that `wanted` names: token counts, uuids, names of cases, or KIND:T as in the sweep; [] for a few.

    wanted: in the order to be run; a token count stands for every workload that has it. For [] it is the workload of
    the middle T in a geometry for the CPU, else those nearest to a share of 0, 1/3, 2/3 and 1 of the range of log T.
    Raises UserError for one that names nothing.
    """
    workloads.make(geometry)
    known = workloads.recorded(geometry)
    by_uuid = {workload.uuid: workload for workload in known}
    kinds = routing_kinds.kinds_of(geometry)
    found: dict[str, Workload] = {}
    for text in wanted or representative(known, geometry):
        kind, _, tokens = text.partition(":")
        if kind in kinds and tokens.isdecimal():
            case = MoeCase(geometry, text, text, int(tokens), routing_kinds.offset_of(geometry))
            found[text] = catalogue.operator(geometry).record(case).workload
            continue
        made_up = f"; KIND:T with KIND one of {', '.join(kinds)}" if kinds else ""
        found |= {case.uuid: by_uuid[case.uuid] for case in workloads.named(text, geometry, made_up)}
    return list(found.values())


def representative(known: list[Workload], geometry: str) -> list[str]:
    """uuids of a few workloads."""
    by_length = sorted((w for w in known if w.axes["seq_len"]), key=lambda w: w.axes["seq_len"])
    if geometry not in catalogue.FULL:
        return [by_length[len(by_length) // 2].uuid]
    low, high = (math.log(by_length[at].axes["seq_len"]) for at in (0, -1))
    targets = (low + (high - low) * share / 3 for share in range(4))
    return [min(by_length, key=lambda w: abs(math.log(w.axes["seq_len"]) - target)).uuid for target in targets]


def stored(point: Workload, full: Definition) -> dict[str, torch.Tensor]:
    """The point's tensors that are not random, by input name."""
    kind, made_up, tokens = point.uuid.partition(":")
    if not made_up:
        return load_safetensors(full, point, paths.ROOT)
    return routing_kinds.tensors(kind, int(tokens), catalogue.BY_NAME[full.name])


def inputs_of(point: Workload, full: Definition, device: str) -> list:
    """FIB's inputs for the point in the definition's order, the same in every run on one device."""
    return seeded_inputs(full, point, 1, device, stored(point, full))[0]
