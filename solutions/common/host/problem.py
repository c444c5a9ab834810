"""problem: moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048.

Packing writes this file for other definitions.
"""

NUM_EXPERTS = 256
NUM_LOCAL_EXPERTS = 32
NUM_SHARED_EXPERTS = 0
TOP_K = 8
NUM_GROUPS = 8
KEPT_GROUPS = 4
HIDDEN_SIZE = 7168
INTERMEDIATE_SIZE = 2048
RENORM = False
SWIGLU_LIMIT = 0.0
SWIGLU_ALPHA = 1.0
SWIGLU_UP_OFFSET = 0.0
CLAMP_AFTER_SILU = False
