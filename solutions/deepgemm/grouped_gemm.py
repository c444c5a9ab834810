"""grouped_gemm: one of DeepGEMM's FP8 grouped GEMMs, masked or contiguous.

DeepGEMM compiles a kernel when it first meets its tile, which it chooses by the sizes and by `expected`: by T, never by
what routing gives. Its SM90 kernels wait for their predecessor themselves, so they may be launched early.
"""

import torch

try:
    import deep_gemm
except (ImportError, OSError) as error:  # its library is linked against one release of torch
    raise ImportError(
        f"deepgemm: the installed deep_gemm does not load with torch {torch.__version__}: {error}"
    ) from error

deep_gemm.set_pdl(True)


def grouped_gemm(x, x_scale, weights, weights_scale, rows, layout):
    """Each expert's rows of x times its weights, transposed.

    Args:
        x: [total, K] float8_e4m3fn; x_scale: [total / room, K / 128, room] float32.
        weights: [E_local, N, K] float8_e4m3fn; weights_scale: [E_local, N / 128, K / 128] float32.
        rows: `arrange`'s.
        layout: [E_local] int32: rows of each expert where masked, else where each one's rows end.

    Returns:
        [total, N] bfloat16; rows of no pair are undefined.

    Raises:
        RuntimeError: DeepGEMM refuses the operands, or cannot compile its kernel.
    """
    num_local_experts, columns, depth = weights.shape
    out = torch.empty(rows.total, columns, dtype=torch.bfloat16, device=x.device)
    b = (weights, weights_scale)
    if rows.masked:
        a = (x.view(num_local_experts, rows.room, depth), x_scale.transpose(1, 2))
        c = out.view(num_local_experts, rows.room, columns)
        deep_gemm.fp8_m_grouped_gemm_nt_masked(a, b, c, layout, rows.expected)
    else:
        a = (x, x_scale[0].t())
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous(
            a, b, out, layout, use_psum_layout=True, expected_m_for_psum_layout=rows.expected
        )
    return out
