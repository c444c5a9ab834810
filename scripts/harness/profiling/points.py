"""What a solution is profiled on: workloads of the data set, and the sweep's made-up points."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from flashinfer_bench import Definition, Trace, Workload
from flashinfer_bench.bench.utils import gen_inputs, load_safetensors
from flashinfer_bench.data import load_jsonl_file

from harness.core import paths
from harness.core.errors import UserError
from harness.operators import catalogue, workloads
from harness.operators.catalogue import definition
from harness.operators.moe_fp8_block_scale import ROUTED_SCALING_FACTOR
from harness.operators.roofline import Bound
from harness.operators.routing_kinds import KINDS, OFFSET


@dataclass(frozen=True)
class Point:
    """uuid: the workload's, or KIND:T. stored: its tensors that are not random, by input name."""

    uuid: str
    workload: Workload
    stored: Callable[[], dict[str, torch.Tensor]]

    @property
    def seq_len(self) -> int:
        return self.workload.axes["seq_len"]

    @property
    def label(self) -> str:
        return self.uuid if ":" in self.uuid else f"T={self.seq_len}"


def choose_points(wanted: list[str], geometry: str) -> list[Point]:
    """The points that `wanted` names: token counts, uuids, names of cases, or KIND:T as in the sweep; [] for a few.

    wanted: in the order to be run; a token count stands for every workload that has it. For [] it is the workload of
    the middle T in a geometry for the CPU, else those nearest to a share of 0, 1/3, 2/3 and 1 of the range of log T.
    Raises UserError for one that names nothing.
    """
    full = definition(geometry)
    workloads.make(geometry)
    known = [trace.workload for trace in load_jsonl_file(Trace, paths.workload_file(full.name))]
    names = {case.uuid: case.name for case in workloads.cases_by_uuid(geometry).values()}
    kinds = KINDS if "routing_logits" in full.inputs else {}
    found: dict[str, Point] = {}
    for text in wanted or representative(known, geometry):
        kind, colon, tokens = text.partition(":")
        if colon and kind in kinds and tokens.isdecimal():
            found[text] = made_up(text, kind, int(tokens), full)
            continue
        fits = [w for w in known if text in (str(w.axes["seq_len"]), w.uuid, names[w.uuid])]
        if not fits:
            lengths = ", ".join(map(str, sorted({w.axes["seq_len"] for w in known})))
            made_up_ones = f"; KIND:T with KIND one of {', '.join(kinds)}" if kinds else ""
            raise UserError(f"unknown workload {text!r}; there are: T = {lengths}; their uuids{made_up_ones}")
        for workload in fits:
            found[workload.uuid] = Point(workload.uuid, workload, partial(load_safetensors, full, workload, paths.ROOT))
    return list(found.values())


def representative(known: list[Workload], geometry: str) -> list[str]:
    """uuids of a few workloads."""
    by_length = sorted((w for w in known if w.axes["seq_len"]), key=lambda w: w.axes["seq_len"])
    if geometry not in catalogue.FULL:
        return [by_length[len(by_length) // 2].uuid]
    low, high = (math.log(by_length[at].axes["seq_len"]) for at in (0, -1))
    targets = (low + (high - low) * share / 3 for share in range(4))
    return [min(by_length, key=lambda w: abs(math.log(w.axes["seq_len"]) - target)).uuid for target in targets]


def made_up(label: str, kind: str, num_tokens: int, full: Definition) -> Point:
    """A point of the sweep: routing of a kind, everything else random."""

    def stored():
        logits, bias = KINDS[kind](num_tokens)
        return {"routing_logits": torch.from_numpy(logits), "routing_bias": torch.from_numpy(bias).bfloat16()}

    inputs = {name: {"type": "random"} for name in full.inputs}
    inputs |= {
        name: {"type": "safetensors", "path": "generated", "tensor_key": name}
        for name in ("routing_logits", "routing_bias")
    }
    inputs["local_expert_offset"] = {"type": "scalar", "value": OFFSET}
    inputs["routed_scaling_factor"] = {"type": "scalar", "value": ROUTED_SCALING_FACTOR}
    return Point(label, Workload(axes={"seq_len": num_tokens}, inputs=inputs, uuid=label), stored)


def inputs_of(point: Point, full: Definition, device: str) -> list:
    """FIB's inputs for the point in the definition's order, the same in every run on one device."""
    torch.manual_seed(int.from_bytes(hashlib.sha256(point.uuid.encode()).digest()[:8], "big"))
    return gen_inputs(full, point.workload, device, point.stored())


def bound_of(point: Point, geometry: str) -> Bound:
    """Of a point that choose_points gave, whose blobs are there."""
    return catalogue.operator(geometry).bound(point.workload, point.stored(), geometry)
