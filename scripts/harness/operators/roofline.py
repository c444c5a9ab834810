"""The least time a routing can take: every byte it needs moved once, every product done once."""

from dataclasses import dataclass

import numpy as np

from definitions.moe_fp8_block_scale import BLOCK, GEOMETRIES, NUM_LOCAL_EXPERTS
from harness.operators import routing_model

# A device read, and a dense FP8 product at 8192^3.
MEASURED_ON = "NVIDIA H200"
BYTES_PER_SECOND = 4.46e12
FLOPS_PER_SECOND = 1446e12


@dataclass(frozen=True)
class Bound:
    """What one routing needs. rows: (token, local expert) pairs; active: experts with a row.

    flops_per_second: what the device does of these products at best.
    """

    seq_len: int
    tokens_with_rows: int
    rows: int
    active: int
    bytes: int
    flops: int
    flops_per_second: float = FLOPS_PER_SECOND

    @property
    def memory_ms(self) -> float:
        return self.bytes / BYTES_PER_SECOND * 1e3

    @property
    def compute_ms(self) -> float:
        return self.flops / self.flops_per_second * 1e3

    @property
    def ms(self) -> float:
        return max(self.memory_ms, self.compute_ms)


def bound(logits: np.ndarray, bias: np.ndarray, offset: int, geometry: str) -> Bound:
    """Bound of a routing: logits [T, 256] and bias [256] float32, rank's first expert, geometry.

    Raises ValueError for logits that are not [T, 256].
    """
    if logits.ndim != 2 or logits.shape[1] != routing_model.NUM_EXPERTS:
        raise ValueError(f"logits: got shape {logits.shape}, want [T, {routing_model.NUM_EXPERTS}]")
    hidden = GEOMETRIES[geometry]["hidden_size"]
    intermediate = GEOMETRIES[geometry]["intermediate_size"]
    seq_len = len(logits)
    chosen = routing_model.select(logits, bias) - offset
    local = (chosen >= 0) & (chosen < NUM_LOCAL_EXPERTS)
    rows, tokens = int(local.sum()), int(local.any(axis=1).sum())
    active = len(np.unique(chosen[local]))

    weights = 3 * intermediate * hidden  # fp8, with an fp32 scale per block
    expert_bytes = weights + 4 * weights // BLOCK**2
    token_bytes = hidden + 4 * hidden // BLOCK
    routing_bytes = seq_len * logits.shape[1] * 4 + logits.shape[1] * 2
    output_bytes = seq_len * hidden * 2
    return Bound(
        seq_len=seq_len,
        tokens_with_rows=tokens,
        rows=rows,
        active=active,
        bytes=active * expert_bytes + tokens * token_bytes + routing_bytes + output_bytes,
        flops=2 * rows * weights,
    )
