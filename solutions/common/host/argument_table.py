"""argument_table: the arguments of each form of the layer, in their order.

tools/argument_tables.py writes this file.
"""

import torch

from .argument import Integer, Real, Tensor
from .problem import HIDDEN_SIZE as H
from .problem import INTERMEDIATE_SIZE as I
from .problem import NUM_EXPERTS as E
from .problem import NUM_LOCAL_EXPERTS as E_LOCAL
from .problem import NUM_SHARED_EXPERTS as E_SHARED
from .problem import TOP_K

T = "tokens of a call"
FP8 = torch.float8_e4m3fn
FP32 = torch.float32
BF16 = torch.bfloat16
INT32 = torch.int32
INT8 = torch.int8

DS_ROUTING = {
    "routing_logits": Tensor((T, E), FP32),
    "routing_bias": Tensor((E,), BF16),
    "hidden_states": Tensor((T, H), FP8),
    "hidden_states_scale": Tensor((H // 128, T), FP32, optional=True),
    "gemm1_weights": Tensor((E_LOCAL, 2 * I, H), FP8),
    "gemm1_weights_scale": Tensor((E_LOCAL, 2 * I // 128, H // 128), FP32),
    "gemm2_weights": Tensor((E_LOCAL, H, I), FP8),
    "gemm2_weights_scale": Tensor((E_LOCAL, H // 128, I // 128), FP32),
    "local_expert_offset": Integer(E + E_SHARED - E_LOCAL),
    "routed_scaling_factor": Real(),
    "output": Tensor((T, H), BF16),
}
RENORM_ROUTING = {
    "routing_logits": Tensor((T, E_LOCAL), BF16),
    "hidden_states": Tensor((T, H), FP8),
    "hidden_states_scale": Tensor((H // 128, T), FP32, optional=True),
    "gemm1_weights": Tensor((E_LOCAL, 2 * I, H), FP8),
    "gemm1_weights_scale": Tensor((E_LOCAL, 2 * I // 128, H // 128), FP32),
    "gemm2_weights": Tensor((E_LOCAL, H, I), FP8),
    "gemm2_weights_scale": Tensor((E_LOCAL, H // 128, I // 128), FP32),
    "output": Tensor((T, H), BF16),
}
ROUTED = {
    "hidden_states": Tensor((T, H), FP8),
    "hidden_states_scale": Tensor((T, H // 128), FP32, optional=True),
    "topk_ids": Tensor((T, TOP_K), INT32),
    "topk_weights": Tensor((T, TOP_K), FP32),
    "gemm1_weights": Tensor((E_LOCAL, 2 * I, H), FP8),
    "gemm1_weights_scale": Tensor((E_LOCAL, 2 * I // 128, H // 128), FP32),
    "gemm2_weights": Tensor((E_LOCAL, H, I), FP8),
    "gemm2_weights_scale": Tensor((E_LOCAL, H // 128, I // 128), FP32),
    "local_expert_offset": Integer(2147483647 - E_LOCAL),
    "output": Tensor((T, H), BF16),
}
ROUTED_MXFP4 = {
    "hidden_states": Tensor((T, H), FP8),
    "hidden_states_scale": Tensor((T, H // 128), FP32, optional=True),
    "topk_ids": Tensor((T, TOP_K), INT32),
    "topk_weights": Tensor((T, TOP_K), FP32),
    "gemm1_weights": Tensor((E_LOCAL, 2 * I, H // 2), INT8),
    "gemm1_weights_scale": Tensor((E_LOCAL, 2 * I, H // 32), INT8),
    "gemm2_weights": Tensor((E_LOCAL, H, I // 2), INT8),
    "gemm2_weights_scale": Tensor((E_LOCAL, H, I // 32), INT8),
    "local_expert_offset": Integer(2147483647 - E_LOCAL),
    "output": Tensor((T, H), BF16),
}
