"""Workload records and tensors of a definition, from its cases."""

import hashlib
from functools import cache
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from flashinfer_bench import Trace, Workload

from definitions import moe_bf16, moe_fp8_block_scale, mxfp8_linear
from definitions.moe_fp8_block_scale import BLOCK, GEOMETRIES, NUM_LOCAL_EXPERTS
from harness.core import paths
from harness.core.atomic_file import write_atomically
from harness.operators import catalogue, exact_random, moe_bf16_workloads, mxfp8_workloads, routing_model
from harness.operators.cases import ROUTED_SCALING_FACTOR, Case, cases
from harness.operators.roofline import Bound, bound
from harness.operators.workload_maker import Maker

SCALE_NAMES = ("hidden_states_scale", "gemm1_weights_scale", "gemm2_weights_scale")


def routing(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Logits [T, 256] and bias [256], float32, of a case."""
    if case.typical:
        return routing_model.draw_typical(case.uuid, case.seq_len, case.offset)
    return routing_model.draw(f"{case.uuid}/0", case.seq_len, case.raised)


def harsh_scales(case: Case, geometry: str) -> dict[str, np.ndarray]:
    """Block scales of which a fifth are zero and the rest of either sign, up to 32; exact in fp32.

    The first token's and the last local expert's scales are all zero where there is more than one.
    """
    hidden = GEOMETRIES[geometry]["hidden_size"] // BLOCK
    intermediate = GEOMETRIES[geometry]["intermediate_size"] // BLOCK
    shapes = (
        (hidden, case.seq_len),
        (NUM_LOCAL_EXPERTS, 2 * intermediate, hidden),
        (NUM_LOCAL_EXPERTS, hidden, intermediate),
    )
    scales = {}
    for name, shape in zip(SCALE_NAMES, shapes, strict=True):
        seed, count = f"{case.uuid}/{name}", int(np.prod(shape))
        size = exact_random.integers(f"{seed}/size", count, 513) - 256
        zero = exact_random.integers(f"{seed}/zero", count, 5) == 0
        scales[name] = np.where(zero, 0, size / 8).astype(np.float32).reshape(shape)
    if case.seq_len > 1:
        scales["hidden_states_scale"][:, 0] = 0
    scales["gemm2_weights_scale"][-1] = 0
    return scales


def tensors(case: Case, geometry: str) -> dict[str, torch.Tensor]:
    """What goes into the case's safetensors file."""
    logits, bias = routing(case)
    found = {
        "routing_logits": torch.from_numpy(logits),
        "routing_bias": torch.from_numpy(bias).to(torch.bfloat16),
    }
    if case.scales == "harsh":
        arrays = harsh_scales(case, geometry)
        found |= {name: torch.from_numpy(array) for name, array in arrays.items()}
    return found


def record(case: Case, definition: str) -> Trace:
    """The case as a FIB workload trace."""
    stored = ["routing_logits", "routing_bias"]
    if case.scales == "harsh":
        stored += SCALE_NAMES
    blob = paths.blob_file(definition, case.uuid)
    inputs = {name: {"type": "random"} for name in ("hidden_states", "gemm1_weights", "gemm2_weights", *SCALE_NAMES)}
    inputs |= {n: {"type": "safetensors", "path": blob, "tensor_key": n} for n in stored}
    inputs["local_expert_offset"] = {"type": "scalar", "value": case.offset}
    inputs["routed_scaling_factor"] = {"type": "scalar", "value": ROUTED_SCALING_FACTOR}
    axes = {"seq_len": case.seq_len}
    return Trace(definition=definition, workload=Workload(axes=axes, inputs=inputs, uuid=case.uuid))


def fp8_bound(case: Case, geometry: str) -> Bound:
    return bound(*routing(case), case.offset, geometry)


def stored_fp8_bound(workload: Workload, root: Path, geometry: str) -> Bound | None:
    """Bound of a workload of the data set at root, from its blobs; None where one is missing."""
    found = []
    for name in ("routing_logits", "routing_bias"):
        spec = workload.inputs.get(name)
        file = root / spec.path if spec is not None and spec.type == "safetensors" else None
        if file is None or not file.is_file():
            return None
        tensor = safetensors.torch.load_file(file).get(spec.tensor_key)
        if tensor is None:
            return None
        found.append(tensor.to(torch.float32).numpy())
    offset = workload.inputs.get("local_expert_offset")
    if offset is None or offset.type != "scalar":
        return None
    return bound(*found, int(offset.value), geometry)


MAKERS = {
    moe_fp8_block_scale: Maker(cases, tensors, record, fp8_bound, stored_fp8_bound),
    moe_bf16: moe_bf16_workloads.MAKER,
    mxfp8_linear: mxfp8_workloads.MAKER,
}


def maker(geometry: str) -> Maker:
    """Of the operator that the geometry, a key of catalogue.GEOMETRIES, belongs to."""
    return MAKERS[catalogue.operator(geometry)]


@cache
def cases_by_uuid(geometry: str) -> dict:
    """The workloads of a geometry in the order in which they are run."""
    return {case.uuid: case for case in maker(geometry).cases(geometry, catalogue.definition_name(geometry))}


def read_checksums(path: Path) -> dict[str, str]:
    """Relative path -> sha256 hex, from a file in the format of sha256sum; {} without a file."""
    if not path.exists():
        return {}
    lines = (line.split(maxsplit=1) for line in path.read_text().splitlines())
    return {name: digest for digest, name in lines}


def make(geometry: str, root: Path = paths.ROOT) -> tuple[int, int]:
    """Write the workloads of a geometry below root; return (blobs written, blobs found good).

    Raises RuntimeError when a generated blob differs from its recorded checksum.
    """
    made_by, definition = maker(geometry), catalogue.definition_name(geometry)
    recorded = read_checksums(paths.checksum_file(definition, root))
    checksums, written, kept = {}, 0, 0
    all_cases = made_by.cases(geometry, definition)
    for case in all_cases:
        name = paths.blob_file(definition, case.uuid)
        path = root / name
        if name in recorded and path.exists():
            if hashlib.sha256(path.read_bytes()).hexdigest() == recorded[name]:
                checksums[name] = recorded[name]
                kept += 1
                continue
        content = safetensors.torch.save(made_by.tensors(case, geometry))
        checksums[name] = hashlib.sha256(content).hexdigest()
        if recorded.get(name, checksums[name]) != checksums[name]:
            raise RuntimeError(
                f"{name}: generated sha256 {checksums[name]}, recorded is {recorded[name]}. If the "
                f"generator was meant to change, delete {paths.checksum_file(definition).name}."
            )
        write_atomically(path, content)
        written += 1

    lines = [made_by.record(case, definition).model_dump_json() for case in all_cases]
    write_atomically(paths.workload_file(definition, root), "".join(f"{x}\n" for x in lines))
    sums = "".join(f"{digest}  {name}\n" for name, digest in checksums.items())
    write_atomically(paths.checksum_file(definition, root), sums)
    return written, kept
