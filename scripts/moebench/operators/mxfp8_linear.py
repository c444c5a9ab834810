"""mxfp8_linear: its workloads and their bounds. Scales of the weights and hard activations are made
from the uuid.
"""

from dataclasses import dataclass

import numpy as np
import torch
from flashinfer_bench import Trace, Workload

from definitions import mxfp8_linear as definitions
from definitions.mxfp8_linear import GEOMETRIES, GROUP
from moebench.operators.case import Case, integers, trace, uuid_of
from moebench.operators.roofline import Bound, Counts

SMALL = definitions.SMALL
ROWS = (1, 16, 64, 512, 2048, 8192)
TYPICAL = (118, 124)  # scales of the weights, as bytes: 2^-9 to 2^-4, near k^-1/2
HARSH = (100, 128)  # 2^-27 to 1

# name, rows of x, kind; each is there for something that an implementation gets wrong
HARD = (
    ("one-token", 1, "plain"),
    ("no-tokens", 0, "plain"),
    ("odd-length", 37, "plain"),
    ("many-tiles", 130, "plain"),
    ("harsh-scales", 24, "harsh"),
    ("harsh-scales-one-token", 1, "harsh"),
)


@dataclass(frozen=True)
class LinearCase(Case):
    """kind: "plain", or "harsh" with activations and scales of all sizes."""

    kind: str = "plain"


def cases(geometry: str) -> list[LinearCase]:
    wanted = [(f"T={rows}", rows, "plain") for rows in ROWS] if geometry == "mxfp8" else HARD
    definition = definitions.definition_name(geometry)
    return [LinearCase(geometry, name, uuid_of(definition, name), *rest) for name, *rest in wanted]


def harsh_x(case: LinearCase) -> np.ndarray:
    """[T, k] uint16, bits of bf16: groups from subnormal to 16, elements up to 2^12 below their
    group's largest.

    A fifth of the groups are zeros; in every seventh group the largest saturates.
    """
    groups = case.seq_len * GEOMETRIES[case.geometry]["k"] // GROUP
    top = integers(f"{case.uuid}/top", groups, 131)[:, None]
    below = integers(f"{case.uuid}/below", groups * GROUP, 13).reshape(groups, GROUP)
    low_bits = integers(f"{case.uuid}/bits", groups * GROUP, 256).reshape(groups, GROUP)
    sign, mantissa = low_bits >> 7, low_bits & 127
    below[:, 0] = 0
    mantissa[::7, 0] = 127
    bits = sign << 15 | np.maximum(top - below, 0) << 7 | mantissa
    bits[integers(f"{case.uuid}/zero", groups, 5) == 0] = 0
    return bits.astype(np.uint16).reshape(case.seq_len, -1)


def tensors(case: LinearCase) -> dict[str, torch.Tensor]:
    low, high = HARSH if case.kind == "harsh" else TYPICAL
    n, groups = GEOMETRIES[case.geometry]["n"], GEOMETRIES[case.geometry]["k"] // GROUP
    scale = low + integers(f"{case.uuid}/weight_scale", n * groups, high - low).reshape(n, groups)
    found = {"weight_scale": torch.from_numpy(scale.astype(np.uint8)).view(torch.int8)}
    if case.kind == "harsh":
        found["x"] = torch.from_numpy(harsh_x(case)).view(torch.bfloat16)
    return found


def record(case: LinearCase) -> Trace:
    stored = ("weight_scale", "x") if case.kind == "harsh" else ("weight_scale",)
    return trace(case, definitions.definition_name(case.geometry), ("x", "weight"), stored)


def counts(workload: Workload, stored: dict[str, torch.Tensor], geometry: str) -> Counts:
    """A linear layer is one expert, which takes every row."""
    rows = workload.axes["seq_len"]
    return Counts(rows=rows, tokens=rows, active=1)


def bound(seq_len: int, counts: Counts, geometry: str) -> Bound:
    """Everything read once, the output written once, the GEMM at the dense FP8 rate: only the rows
    matter.
    """
    n, k = GEOMETRIES[geometry]["n"], GEOMETRIES[geometry]["k"]
    least = n * k + n * k // GROUP + seq_len * 2 * (k + n)
    return Bound(counts.rows, counts.active, least, 2 * seq_len * n * k)
