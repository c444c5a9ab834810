"""vLLM's Marlin as a peer: MXFP4 weights by tokens in bf16.

Its operators are in a library of vLLM's wheel that torch loads without vLLM. In a call, vLLM's own
operator puts rows in expert order, and Marlin multiplies twice; SwiGLU and the sum over a token's
rows are kernels of this tool.
"""

from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path

import torch
from batch import WEIGHTS, Batch
from marlin_weights import MarlinWeights, marlin_weights
from peer import Peer, timed
from routed_rows import RoutedRows, routed_rows
from row_kernels import sum_rows, swiglu
from vllm_files import existing, vllm_package

NAME = "vLLM's Marlin"
LIBRARY = "_moe_C_stable_libtorch.abi3.so"
# E2M1 as vLLM's operators number types: bits of the exponent, of the mantissa, a sign, and no
# infinities
E2M1 = 2 | 1 << 8 | 1 << 16 | 1 << 49
# rows of an expert that a block multiplies; vLLM takes the first that is not nearly full
BLOCK_ROWS = (8, 16, 32, 48, 64)
NEARLY_FULL = 0.9
WORKSPACE_OF_SM = 4  # int32 numbers
ANY = -1  # the operator chooses


@dataclass(frozen=True)
class OrderedRows:
    """Rows in expert order, padded to whole blocks, as Marlin reads them."""

    row_ids: torch.Tensor
    block_experts: torch.Tensor
    count: torch.Tensor  # [1] int32, of rows with their padding


class MarlinLayer:
    """A layer in vLLM's operators, called with the output to write."""

    def __init__(self, operators, rows: RoutedRows, weights: MarlinWeights):
        self.operators = operators
        self.rows = rows
        self.weights = weights
        self.block_rows = block_rows(rows)
        self.expert_map = expert_map(rows)
        device = rows.tokens.device
        sms = torch.cuda.get_device_properties(device).multi_processor_count
        # zeros, which each call leaves as it found them
        self.workspace = torch.zeros(
            WORKSPACE_OF_SM * sms, dtype=torch.int32, device=device
        )

    def __call__(self, output: torch.Tensor) -> None:
        """Write output [T, H] bfloat16."""
        rows = self.rows
        weights = self.weights
        order = self.put_in_order()

        gate_up = self.multiply(
            rows.tokens, weights.gemm1, weights.gemm1_scale, order, rows.top_k
        )
        h = swiglu(gate_up, rows.local_ids, rows.limit)
        y = self.multiply(h, weights.gemm2, weights.gemm2_scale, order, None)
        sum_rows(y, rows.local_ids, output)

    def put_in_order(self) -> OrderedRows:
        """Return the rows in expert order, by vLLM's operator."""
        count = self.rows.topk_ids.numel()
        padded = most_padded_rows(count, self.rows.num_experts, self.block_rows)
        new = partial(torch.empty, dtype=torch.int32, device=self.workspace.device)
        order = OrderedRows(new(padded), new(ceil(padded / self.block_rows)), new(1))
        self.operators.moe_align_block_size(
            self.rows.topk_ids,
            self.rows.num_experts,
            self.block_rows,
            order.row_ids,
            order.block_experts,
            order.count,
            self.expert_map,
        )
        return order

    def multiply(
        self,
        inputs: torch.Tensor,
        weights: torch.Tensor,
        scales: torch.Tensor,
        order: OrderedRows,
        top_k: int | None,
    ) -> torch.Tensor:
        """Return each row's product [T * top_k, N] bfloat16.

        inputs: of tokens, [T, K], with top_k rows each; or of rows, [T * top_k, K], with top_k
        None: then products are multiplied by the routing weights.
        """
        of_tokens = top_k is not None
        num_rows = self.rows.topk_ids.numel()
        columns = scales.shape[2]
        output = torch.empty(
            num_rows, columns, dtype=inputs.dtype, device=inputs.device
        )
        return self.operators.moe_wna16_marlin_gemm(
            inputs,
            output,
            weights,
            None,  # bias
            scales,
            None,  # scales of the inputs
            None,  # a scale of all weights
            None,  # zero points
            None,  # GPTQ's order of groups
            None,  # and of columns
            self.workspace,
            order.row_ids,
            order.block_experts,
            order.count,
            self.rows.topk_weights,
            self.block_rows,
            top_k if of_tokens else 1,
            not of_tokens,  # whether products are multiplied by the routing weights
            E2M1,
            len(inputs),
            columns,
            inputs.shape[1],
            True,  # K is whole
            False,  # no atomic additions
            True,  # partial sums in fp32
            False,  # zero points are no floats
            ANY,  # tile along K
            ANY,  # tile along N
            ANY,  # blocks of an SM
        )


def block_rows(rows: RoutedRows) -> int:
    """Return the rows of a block that vLLM chooses for a batch.

    It reckons with the rank's share of the tokens, as if all experts were chosen alike.
    """
    share = rows.num_local_experts / rows.num_experts
    tokens = ceil(len(rows.tokens) * share)
    of_expert = tokens * rows.top_k / rows.num_local_experts
    for size in BLOCK_ROWS:
        if of_expert / size < NEARLY_FULL:
            return size
    return BLOCK_ROWS[-1]


def most_padded_rows(count: int, num_experts: int, block_rows: int) -> int:
    """Return the most rows that `count` can be when each expert's are padded to whole blocks."""
    padded = count + num_experts * (block_rows - 1)
    return min(padded, count * block_rows)


def expert_map(rows: RoutedRows) -> torch.Tensor | None:
    """Return the rank's number of each of the model's experts, -1 for another rank's.

    None where all are local.
    """
    if rows.num_local_experts == rows.num_experts:
        return None
    numbers = torch.full((rows.num_experts,), -1, dtype=torch.int32)
    past_last = rows.first_expert + rows.num_local_experts
    numbers[rows.first_expert : past_last] = torch.arange(rows.num_local_experts)
    return numbers.to(rows.tokens.device)


def marlin_peer(batch: Batch, unpacked: Path | None) -> Peer:
    """Return vLLM's Marlin as a Peer, with its weights prepared.

    unpacked: see vllm_files. Raises CannotRun where vLLM is not there.
    """
    library = existing(vllm_package(unpacked) / LIBRARY)
    torch.ops.load_library(str(library))

    weights = [batch.inputs[name] for name in WEIGHTS]
    prepared, prepare_ms = timed(partial(marlin_weights, weights))
    layer = MarlinLayer(torch.ops._moe_C, routed_rows(batch), prepared)
    return Peer(NAME, layer, prepare_ms)
