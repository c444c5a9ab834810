"""triton_kernels' matmul_ogs as a peer, from the copy in vLLM's wheel: MXFP4 weights by tokens in
bf16.

The package is on no registry, and its interface changes with each release; this is that of vLLM
0.26. Rows are put in expert order ahead. In a call, matmul_ogs gathers tokens by that order,
multiplies twice, weighs and sums; SwiGLU between is a kernel of this tool.
"""

import sys
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch
from batch import WEIGHTS, Batch
from peer import Peer, timed
from routed_rows import RoutedRows, routed_rows
from row_kernels import swiglu
from vllm_files import existing, vllm_package

NAME = "triton_kernels' matmul_ogs"
FOLDER = "third_party/triton_kernels"
# as vLLM does on Hopper
CONSTRAINTS = {"split_k": 1}
WARPS = 8


@dataclass(frozen=True)
class ExpertOrder:
    """Rows sorted by expert. Those of another rank's experts come last and are -1.

    row_of_place, place_of_row: [T * top_k] int32, each the other's inverse. rows_of_expert: [E].
    weights: of the routing, by place, [T * top_k].
    """

    row_of_place: torch.Tensor
    place_of_row: torch.Tensor
    rows_of_expert: torch.Tensor
    weights: torch.Tensor


def expert_order(rows: RoutedRows) -> ExpertOrder:
    """Return a batch's rows in expert order."""
    ids = rows.local_ids.long()
    last = torch.where(ids < 0, rows.num_local_experts, ids)
    row_of_place = torch.argsort(last, stable=True)
    counts = torch.bincount(last, minlength=rows.num_local_experts + 1)

    places = torch.arange(len(ids), device=ids.device)
    place_of_row = torch.empty_like(places)
    place_of_row[row_of_place] = places

    is_local = ids >= 0
    weights = rows.topk_weights.flatten()[row_of_place]
    return ExpertOrder(
        torch.where(is_local[row_of_place], row_of_place, -1).int(),
        torch.where(is_local, place_of_row, -1).int(),
        counts[: rows.num_local_experts].int(),
        weights,
    )


class MatmulOgsLayer:
    """A layer in two calls of matmul_ogs, called with the output to write."""

    def __init__(self, library: ModuleType, rows: RoutedRows, weights: list):
        self.library = library
        self.rows = rows
        self.weights = weights
        order = expert_order(rows)
        routing = import_module("triton_kernels.routing")
        count = len(order.row_of_place)
        self.row_of_place = order.row_of_place
        self.routing = routing.RoutingData(
            order.weights,
            order.rows_of_expert,
            rows.num_local_experts,
            rows.top_k,
            routing.compute_expt_data(
                order.rows_of_expert, rows.num_local_experts, count
            ),
        )
        self.gather = routing.GatherIndx(order.row_of_place, order.place_of_row)
        self.scatter = routing.ScatterIndx(order.place_of_row, order.row_of_place)

    def __call__(self, output: torch.Tensor) -> None:
        """Write output [T, H] bfloat16."""
        (gemm1, gemm1_precision), (gemm2, gemm2_precision) = self.weights
        gate_up = self.library.matmul_ogs(
            self.rows.tokens,
            gemm1,
            None,
            self.routing,
            gather_indx=self.gather,
            precision_config=gemm1_precision,
        )
        h = swiglu(gate_up, self.row_of_place, self.rows.limit)
        self.library.matmul_ogs(
            h,
            gemm2,
            None,
            self.routing,
            scatter_indx=self.scatter,
            precision_config=gemm2_precision,
            gammas=self.routing.gate_scal,
            y=output[None],
        )


def import_matmul_ogs(package: Path) -> ModuleType:
    """Return the module of matmul_ogs in vLLM's copy, set up as vLLM does on Hopper.

    package: vLLM's. Raises CannotRun where it has no copy.
    """
    folder = existing(package / FOLDER)
    sys.path.insert(0, str(folder.parent))
    try:
        library = import_module("triton_kernels.matmul_ogs")
    finally:
        sys.path.remove(str(folder.parent))
    library.update_opt_flags_constraints(CONSTRAINTS)
    return library


def swizzled(library: ModuleType, packed: torch.Tensor, scales: torch.Tensor) -> tuple:
    """Return a GEMM's weights in the library's layout for this GPU, and its PrecisionConfig.

    packed: [E, N, K / 2]. scales: [E, N, K / 32]. Both are int8 or uint8.
    """
    tensors = import_module("triton_kernels.tensor")
    layouts = import_module("triton_kernels.tensor_details.layout")
    layout, options = layouts.make_default_matmul_mxfp4_w_layout(mx_axis=1)
    scale_layout, scale_options = layouts.make_default_matmul_mxfp4_w_scale_layout(
        mx_axis=1, num_warps=WARPS
    )

    # the library takes [E, K, N] with K contiguous
    codes = packed.view(torch.uint8).mT
    factors = scales.view(torch.uint8).mT
    wrapped = tensors.wrap_torch_tensor(codes, dtype=tensors.FP4)
    weights = tensors.convert_layout(wrapped, layout, **options)
    wrapped_factors = tensors.wrap_torch_tensor(factors)
    weight_scale = tensors.convert_layout(
        wrapped_factors, scale_layout, **scale_options
    )
    return weights, library.PrecisionConfig(weight_scale=weight_scale)


def swizzled_weights(library: ModuleType, inputs: dict) -> list[tuple]:
    """Return both GEMMs' weights in the library's layout, each with its PrecisionConfig."""
    gemm1, gemm1_scale, gemm2, gemm2_scale = (inputs[name] for name in WEIGHTS)
    return [
        swizzled(library, gemm1, gemm1_scale),
        swizzled(library, gemm2, gemm2_scale),
    ]


def matmul_ogs_peer(batch: Batch, unpacked: Path | None) -> Peer:
    """Return triton_kernels' matmul_ogs as a Peer, with its weights prepared.

    unpacked: see vllm_files. Raises CannotRun where vLLM is not there.
    """
    library = import_matmul_ogs(vllm_package(unpacked))
    prepare = partial(swizzled_weights, library, batch.inputs)
    weights, prepare_ms = timed(prepare)
    layer = MatmulOgsLayer(library, routed_rows(batch), weights)
    return Peer(NAME, layer, prepare_ms)
