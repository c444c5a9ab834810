"""grouped_gemm: call one of DeepGEMM's FP8 grouped GEMMs, for masked or contiguous rows (rows.py).

DeepGEMM chooses a tile by the sizes and by `expected`, which depends on T and not on the routing,
and compiles a kernel when it first needs that tile. Its SM90 kernels wait for the preceding kernel
themselves, so they may be launched before it has ended (set_pdl).
"""

# pyright: reportMissingImports=false
# deep_gemm is optional: pip install '.[deepgemm]'.

import threading

import torch

try:
    import deep_gemm
except (ImportError, OSError) as error:
    # its library is linked against one release of torch
    raise ImportError(
        f"deepgemm: the installed deep_gemm does not load with torch {torch.__version__}: {error}"
    ) from error

deep_gemm.set_pdl(True)
# deep_gemm's functions release the GIL, and its table of compiled kernels has no lock
_calling = threading.Lock()


def grouped_gemm(a, b, out, layout, rows):
    """Write into out, for each expert, its rows of a times its weights, transposed.

    Args:
        a: (values [..., K] float8_e4m3fn, scales [..., K / 128] float32); `...` is rows.shape. The
            scales of neighbouring rows are adjacent, as DeepGEMM loads them by TMA.
        b: (weights [E_local, N, K] float8_e4m3fn, scales [E_local, N / 128, K / 128] float32).
        out: [..., N] bfloat16; rows without a pair stay undefined.
        layout: [E_local] int32: rows of each expert where masked, else where each one's rows end.
        rows: what `arrange` returned for the call.

    Raises:
        RuntimeError: DeepGEMM refuses the operands, or cannot compile its kernel.
    """
    with _calling:
        if rows.masked:
            deep_gemm.fp8_m_grouped_gemm_nt_masked(a, b, out, layout, rows.expected)
        else:
            deep_gemm.m_grouped_fp8_gemm_nt_contiguous(
                a,
                b,
                out,
                layout,
                use_psum_layout=True,
                ensure_zero_padding=False,  # rows without a pair are never read
                expected_m_for_psum_layout=rows.expected,
            )
