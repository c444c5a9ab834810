"""grouped_gemm: launch SGLang's fused_moe_kernel, by which main.py runs both GEMMs.

The kernel's parameters differ between versions of SGLang, so arguments are matched by name. It is
launched for as many tiles as are likely (tiles.py); overflow_gemm.py multiplies any others.
"""

import inspect

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from ..common.host.gpu_of import gpu_of
from ..common.host.launch import launch_quickly
from .load import load_kernel
from .overflow_gemm import overflow_gemm
from .overlap import overlap

_KERNEL = load_kernel()
_NAMES = set(_KERNEL.arg_names)
_PARAMETERS = inspect.signature(_KERNEL.fn).parameters.values()
# parameters of newer versions, which keep their defaults
_DEFAULTS = {p.name: p.default for p in _PARAMETERS if p.default is not p.empty}
# an annotation is a class, or the text of its name
_ORDINARY = [p.name for p in _PARAMETERS if "constexpr" not in str(p.annotation)]
BLOCK = 128

# Values that turn off what this layer does not use; of these, the parameters that the installed
# version has are passed.
_OFF = {
    "bias_ptr": None,
    "add_mask_ptr": None,
    "stride_bias_e": 0,
    "stride_bias_n": 0,
    "MUL_ROUTED_WEIGHT": False,
    "use_fp8_w8a8": True,
    "use_int8_w8a8": False,
    "use_int8_w8a16": False,
    "per_channel_quant": False,
    "even_Ks": True,
    "c_sorted": True,
    "filter_expert": False,  # no tile belongs to an expert of another rank
    "FUSE_ADD_TO_OUTPUT": False,
    "MASK_OUTPUT": False,
    "FUSE_SUM_ALL_REDUCE": False,
    "LORA_PRESERVE_BASE": False,
    "ROUTER_TOPK": 1,
}
_OPTIONAL = _DEFAULTS | {name: value for name, value in _OFF.items() if name in _NAMES}

# The key of a launch in launch_quickly does not contain whether a_desc is None. It does contain
# top_k, a constexpr, which is 1 exactly where a_desc is not None.
launch_quickly(_KERNEL)
if "USE_GDC" in _NAMES:  # else the kernel does not wait for the preceding one
    overlap(_KERNEL)


def grouped_gemm(
    x,
    x_scale,
    scale_strides,
    weights,
    weights_scale,
    permutation,
    config,
    tiles,
    x_in_order,
    weights_by_tma,
):
    """Return rows of x times their experts' weights, in the order of `permutation`.

    Args:
        x: float8_e4m3fn [T, K], gathered by pair; with x_in_order [rows, K] in expert order, read
            through a TMA descriptor.
        x_scale: float32, one for each row and 128 columns of x.
        scale_strides: strides of x_scale from row to row, and from block to block.
        weights: [E_local, N, K] float8_e4m3fn, a view with unit last stride.
        weights_scale: [E_local, N / 128, K / 128] float32, likewise.
        permutation: `permute`'s result for config["BLOCK_SIZE_M"], where the pair of padding rows
            is the number of pairs, as SGLang has it.
        config: keywords of SGLang's kernel (tiles.py).
        tiles: the tiles that SGLang's kernel is launched for; `overflow_gemm` multiplies those
            beyond, if the permutation can have more.
        x_in_order: whether the rows of x are in expert order.
        weights_by_tma: whether weights are read through a TMA descriptor.

    Returns:
        [rows, N] bfloat16; padding rows and rows of unused tiles are undefined.
    """
    rows = permutation.pair_of_row.shape[0]
    _, columns, depth = weights.shape
    block_m = config["BLOCK_SIZE_M"]
    block_n = config["BLOCK_SIZE_N"]
    block_k = config["BLOCK_SIZE_K"]
    out = torch.empty(rows, columns, dtype=torch.bfloat16, device=x.device)

    x_desc = None
    if x_in_order:
        x_desc = TensorDescriptor(x, x.shape, x.stride(), [block_m, block_k])
    w_desc = None
    if weights_by_tma:
        w_box = [1, block_n, block_k]
        w_desc = TensorDescriptor(weights, weights.shape, weights.stride(), w_box)
    # the same rule as in SGLang
    swap_ab = (
        gpu_of(x.device).architecture == "sm_90" and block_m < 64 and block_n >= 64
    )

    values = dict(
        a_ptr=x,
        a_desc=x_desc,
        b_ptr=weights,
        b_desc=w_desc,
        c_ptr=out,
        a_scale_ptr=x_scale,
        b_scale_ptr=weights_scale,
        topk_weights_ptr=x_scale,  # not read
        sorted_token_ids_ptr=permutation.pair_of_row,
        expert_ids_ptr=permutation.tile_expert,
        num_tokens_post_padded_ptr=permutation.num_rows,
        N=columns,
        K=depth,
        EM=tiles * block_m,
        num_valid_tokens=permutation.row_of_pair.numel(),
        stride_am=x.stride(0),
        stride_ak=1,
        stride_be=weights.stride(0),
        stride_bk=1,
        stride_bn=weights.stride(1),
        stride_cm=columns,
        stride_cn=1,
        stride_asm=scale_strides[0],
        stride_ask=scale_strides[1],
        stride_bse=weights_scale.stride(0),
        stride_bsk=1,
        stride_bsn=weights_scale.stride(1),
        top_k=1
        if x_in_order
        else permutation.row_of_pair.shape[1],  # pairs of a row of x
        group_n=BLOCK,
        group_k=BLOCK,
        compute_type=tl.bfloat16,
        swap_ab=swap_ab,
        **_OPTIONAL,
        **config,
    )
    if "USE_GDC" in _NAMES:
        # the same rule as in SGLang for letting the next kernel start
        values["USE_GDC"] = x.device.type != "cpu"
        values["GDC_EARLY"] = permutation.row_of_pair.shape[0] <= 512

    ordinary = [values.pop(name) for name in _ORDINARY]
    grid = (tiles * triton.cdiv(columns, block_n),)
    _KERNEL[grid](*ordinary, **values)
    if tiles < permutation.tile_expert.shape[0]:
        operands = (x, x_scale, scale_strides, weights, weights_scale, permutation)
        overflow_gemm(
            *operands, block_m, first_tile=tiles, x_in_order=x_in_order, out=out
        )
    return out
