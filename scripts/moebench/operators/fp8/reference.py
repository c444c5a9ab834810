"""The experts of the references of the FP8 layer; the text of these functions goes into
definitions.

References are not meant to be fast. All weights are dequantised to fp32, whether or not a token
needs them, as speed-ups are quoted against exactly that amount of work.
"""

import torch

from moebench.operators.fp8.swiglu import silu as swiglu

BLOCK = 128
# whose weights are dequantised before the first of them is multiplied
EXPERTS_AT_ONCE = 32


def dequantize(values, scales, row_block):
    """values [..., R, C] fp8 -> fp32, times one scale per row_block x 128 block.

    scales is [..., R / row_block, C / 128] float32 and may hold zeros and negative numbers.
    """
    scales = scales.repeat_interleave(row_block, dim=-2).repeat_interleave(
        BLOCK, dim=-1
    )
    return values.to(torch.float32) * scales


def local_experts(x, w13, w13_scale, w2, w2_scale, local, weights):
    """Sum over a rank's experts; return [T, hidden_size] bfloat16.

    x [T, hidden_size] float32. local [T, TOP_K]: indices of the chosen experts, counted from the
    rank's first one; those below 0 and from num_local_experts on are another rank's. weights [T,
    TOP_K] float32.
    """
    num_local_experts, _, intermediate_size = w2.shape
    output = torch.zeros_like(x)
    for first in range(0, num_local_experts, EXPERTS_AT_ONCE):
        some = slice(first, first + EXPERTS_AT_ONCE)
        up_gate = dequantize(w13[some], w13_scale[some], row_block=BLOCK)
        down = dequantize(w2[some], w2_scale[some], row_block=BLOCK)
        for at in range(len(down)):
            tokens, slot = torch.nonzero(local == first + at, as_tuple=True)
            if tokens.numel() == 0:
                continue
            up, gate = x[tokens].matmul(up_gate[at].t()).split(intermediate_size, dim=1)
            rows = swiglu(gate, up).matmul(down[at].t())
            output.index_add_(0, tokens, rows * weights[tokens, slot].unsqueeze(1))
    return output.to(torch.bfloat16)
