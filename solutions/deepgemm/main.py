"""deepgemm: the FP8 layer with DeepGEMM's grouped GEMMs, from an installed `deep_gemm`, between our
Triton kernels.

`layer` has the five stages in order, each a file. There are no rows for experts of other ranks. How
rows are laid out depends on T alone (rows.py), so the host never waits for the device. Every kernel
may start before the preceding one has ended (programmatic dependent launch) and then waits for it.
Scratch is kept from call to call (scratch.py), and after the first call with certain sizes C++
launches the kernels (record.py).
"""

from ..common.host.arguments import DS_ROUTING, RENORM_ROUTING, ROUTED
from ..common.host.launch import launch_quickly
from .combine_reset import combine_reset, combine_reset_kernel
from .gather import gather, gather_kernel, route_count_kernel, route_gather_kernel
from .grouped_gemm import grouped_gemm
from .record import recorded
from .rows import arrange
from .swiglu_quant_rows import swiglu_quant_rows, swiglu_quant_rows_kernel

launch_quickly(
    route_gather_kernel,
    route_count_kernel,
    gather_kernel,
    swiglu_quant_rows_kernel,
    combine_reset_kernel,
)


@recorded(DS_ROUTING)
def run(args, scratch):
    """Write `output` [T, H] bf16: DeepSeek-V3's FP8 layer, of one expert-parallel rank.

    Arguments are DS_ROUTING's (common/host/arguments.py). Launches on the current stream and never
    waits for the device.

    Raises:
        ValueError: an argument is not what the definition says.
        RuntimeError: DeepGEMM refuses a GEMM, or cannot compile its kernel.
    """
    layer(args, scratch)


@recorded(RENORM_ROUTING)
def run_renorm(args, scratch):
    """As `run`, for definitions with renorm routing: bf16 logits, no bias, every expert local."""
    layer(args, scratch)


@recorded(ROUTED)
def run_routed(args, scratch):
    """As `run`, for routed definitions.

    The caller passes experts and their weights; `gate` rows of gemm1_weights come first; the scales
    of tokens are [T, H / 128].
    """
    layer(args, scratch)


def layer(args, scratch):
    """Launch the layer on the current stream.

    args: the call's arguments, as `check_arguments` returns them. scratch: what `scratch_of`
    returned for the call.
    """
    rows = arrange(len(args.hidden_states))
    views = scratch.views
    layout = scratch.counts if rows.masked else scratch.ends
    w1 = (args.gemm1_weights, args.gemm1_weights_scale)
    w2 = (args.gemm2_weights, args.gemm2_weights_scale)

    gather(args, scratch, rows)
    grouped_gemm((views.x, views.x_scale), w1, views.g, layout, rows)
    swiglu_quant_rows(scratch, rows)
    grouped_gemm((views.h, views.h_scale), w2, views.y, layout, rows)
    combine_reset(scratch, args.output)
