"""The inputs of a layer that is timed, and what the reference makes of them."""

from dataclasses import dataclass
from functools import cache

import torch
from flashinfer_bench.compile import BuilderRegistry
from moebench.core.errors import UserError
from moebench.judging import calling
from moebench.operators import catalogue
from moebench.operators.fp8 import mxfp4
from moebench.operators.layers import Sizes

WEIGHTS = (
    "gemm1_weights",
    "gemm1_weights_scale",
    "gemm2_weights",
    "gemm2_weights_scale",
)


@dataclass(frozen=True)
class Batch:
    """The arguments of a call by name, the reference's output for them, and the layer's sizes."""

    inputs: dict[str, object]
    expected: torch.Tensor
    sizes: Sizes


def batch_of(key: str, num_tokens: int) -> Batch:
    """Return the inputs of a definition's workload with num_tokens tokens, and the expected output.

    Raises UserError where there is no such workload.
    """
    operator = catalogue.MXFP4
    cases = {case.seq_len: case for case in operator.cases(key)}
    if num_tokens not in cases:
        listed = ", ".join(map(str, cases))
        raise UserError(f"T: got {num_tokens}, want one of {listed}")

    # Routing and scales are the workload's own; tokens and weights are drawn from a seed.
    case = cases[num_tokens]
    workload = operator.record(case).workload
    stored = operator.tensors(case) | scales_of(operator.case_with_scales(case))

    definition = catalogue.definition(key)
    (values,) = calling.seeded_inputs(definition, workload, 1, "cuda", stored)
    reference = BuilderRegistry.get_instance().build_reference(definition)
    (expected,) = calling.call(definition, reference, values, "cuda")
    inputs = dict(zip(definition.inputs, values, strict=True))
    return Batch(inputs, expected, operator.layer_sizes()[key])


@cache
def scales_of(case: mxfp4.Mxfp4Case) -> dict[str, torch.Tensor]:
    """Return the weights' scales by name, which are the same for every T of a layer.

    They are drawn on the host, in seconds for the largest layer.
    """
    sizes = catalogue.MXFP4.layer_sizes()[case.layer_key]
    return mxfp4.weight_scales(case, sizes)
