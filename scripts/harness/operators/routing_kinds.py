"""Routings for token counts that nobody tuned for, by kind."""

from collections.abc import Callable

import numpy as np

from harness.operators import routing_model
from harness.operators.moe_fp8_block_scale import PUBLIC
from harness.operators.routing_model import FIRST

OFFSET = 96  # a rank in the middle, whose 32 experts are one group
BETWEEN = [0, 2, 3, 4, 8, 24, 100, 128, 200, 256, 400, 512, 700, 1024, 1500, 2048, 3000, 4096, 6000, 8192, 16384, 32768]
TOKENS = sorted({*BETWEEN, *(seq_len for _, seq_len, _ in PUBLIC["full"])})

# Eight experts in four groups, of which 101 alone is local. With everybody else far below, no noise can open
# another group or let another expert in.
EIGHT = (5, 9, 13, 40, 44, 101, 200, 204)
SAME_EIGHT = {expert: 9.0 if expert in EIGHT else -9.0 for expert in range(FIRST["num_experts"])}
NONE_LOCAL = dict.fromkeys(range(OFFSET, OFFSET + FIRST["num_local_experts"]), -9.0)

KINDS: dict[str, Callable[[int], tuple[np.ndarray, np.ndarray]]] = {
    "real": lambda num_tokens: routing_model.draw_typical(f"sweep/{num_tokens}", num_tokens, OFFSET),
    "uniform": lambda num_tokens: routing_model.draw(f"sweep/uniform/{num_tokens}", num_tokens, {}, spread=0),
    "one": lambda num_tokens: routing_model.draw(f"sweep/one/{num_tokens}", num_tokens, SAME_EIGHT, spread=0),
    "none": lambda num_tokens: routing_model.draw(f"sweep/none/{num_tokens}", num_tokens, NONE_LOCAL, spread=0),
}
"""Kind -> function of T that returns logits [T, 256] and bias [256], float32, for the rank at OFFSET.

real: as the workloads. uniform: no expert is more popular than another. one: every token picks the same eight
experts, of which one is local. none: no token picks a local expert.
"""
