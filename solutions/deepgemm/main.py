"""deepgemm: DeepGEMM's FP8 grouped GEMMs, from an installed `deep_gemm`, between Triton kernels; read `layer` downhill.

Rows of experts of other ranks are never made. How rows lie is decided by T alone (rows.py), so the host never waits
for the device. Every kernel may start before its predecessor ends (programmatic dependent launch) and waits for it.

With few tokens the host is slower than the device. So all that it can decide ahead it decides once for a kind of call
(plan.py), and nothing is made before the launch that needs it.
"""

import torch

from .common.host.arguments import DS_ROUTING, RENORM_ROUTING, takes
from .counters import counters, forget_counters
from .grouped_gemm import grouped_gemm
from .plan import plan_of


@takes(DS_ROUTING)
def run(arguments):
    """DeepSeek-V3 FP8 block-scale MoE layer of one expert-parallel rank; writes `output` [T, H] bf16.

    Arguments are DS_ROUTING's (common/host/arguments.py). Launches on the current stream and never waits for the
    device.

    Raises:
        ValueError: an argument is not what the definition says.
        RuntimeError: DeepGEMM refuses a GEMM, or cannot compile its kernel.
    """
    tensors = arguments[:-3] + arguments[-1:]
    on_its_device(plan_of(DS_ROUTING, tensors, arguments[-3], arguments[-2]), tensors)


@takes(RENORM_ROUTING)
def run_renorm(tensors):
    """As `run`, for definitions with renorm routing: bf16 logits, no bias, every expert local."""
    on_its_device(plan_of(RENORM_ROUTING, tensors), (tensors[0], *tensors))  # the logits stand in for the bias


def on_its_device(plan, tensors):
    """Launch the layer, with the tensors' device as the current one. Most often it is, and switching takes time."""
    device = tensors[0].device
    if plan is None:  # no tokens
        return
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        layer(plan, tensors, device)
    else:
        with torch.cuda.device(device):
            layer(plan, tensors, device)


def layer(plan, tensors, device):
    """Launch the layer. tensors: DS_ROUTING's in its order; routing_bias is any tensor where there is none."""
    logits, bias, x, x_scale, w1, w1_scale, w2, w2_scale, output = tensors
    rows = plan.rows
    stream = torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0
    counts, ends = counters(device, stream)
    layout = counts if rows.masked else ends
    try:
        pairs, a, a_scale = plan.pairs(), plan.x(), plan.x_scale()
        plan.gather(stream, logits, bias, x, x_scale, counts, ends, pairs, a, a_scale)
        g = plan.g()
        grouped_gemm((a, a_scale), (w1, w1_scale), g, layout, rows)
        del a, a_scale  # their memory serves h and y
        h, h_scale = plan.h(), plan.h_scale()
        plan.swiglu_quant_rows(stream, g, h, h_scale, pairs)
        del g
        y = plan.y()
        grouped_gemm((h, h_scale), (w2, w2_scale), y, layout, rows)
        plan.combine_reset(stream, y, pairs, output, counts)
    except BaseException:
        forget_counters(device, stream)
        raise
