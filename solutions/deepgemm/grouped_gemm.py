"""grouped_gemm: one of DeepGEMM's FP8 grouped GEMMs, masked or contiguous.

DeepGEMM compiles a kernel when it first meets its tile, which it chooses by the sizes and by
`expected`: by T, never by what routing gives. Its SM90 kernels wait for their predecessor
themselves, so they may be launched early.
"""

# pyright: reportMissingImports=false
# deep_gemm is optional: pip install '.[deepgemm]'.

import threading

import torch

try:
    import deep_gemm
except (ImportError, OSError) as error:  # its library is linked against one release of torch
    raise ImportError(
        f"deepgemm: the installed deep_gemm does not load with torch {torch.__version__}: {error}"
    ) from error

deep_gemm.set_pdl(True)
# its calls let Python's lock go, and its table of compiled kernels has none
_calling = threading.Lock()


def grouped_gemm(a, b, out, layout, rows):
    """Write out: each expert's rows of a times its weights, transposed.

    Args:
        a: values [..., K] float8_e4m3fn and scales [..., K / 128] float32, of which neighbours in a
            column are neighbours, as DeepGEMM loads them by TMA. `...` is rows.shape.
        b: [E_local, N, K] float8_e4m3fn and [E_local, N / 128, K / 128] float32.
        out: [..., N] bfloat16; rows of no pair stay undefined.
        layout: [E_local] int32: rows of each expert where masked, else where each one's rows end.
        rows: `arrange`'s.

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
                ensure_zero_padding=False,  # nobody reads rows of no pair
                expected_m_for_psum_layout=rows.expected,
            )
