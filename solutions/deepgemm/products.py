"""products: DeepGEMM's masked grouped FP8 products of the rows of a `Rows`."""

import deep_gemm
import torch


def product(x, x_scale, weights, weights_scale, rows, num_tokens):
    """Rows of x times their experts' weights.

    Args:
        x [groups, height, K] float8_e4m3fn; x_scale [groups, height, K / 128] float32, unit stride along height.
        weights [E_local, N, K] float8_e4m3fn; weights_scale [E_local, N / 128, K / 128] float32.
        rows: a `Rows`.
        num_tokens: T, which tells DeepGEMM how many rows an expert may have.

    Returns:
        [groups, height, N] bfloat16; rows that are not in use are undefined.
    """
    out = torch.empty(rows.groups, rows.height, weights.shape[1], dtype=torch.bfloat16, device=x.device)
    expected = max(1, -(-num_tokens // rows.groups))  # eight experts a token of eight times the local ones
    # the one of its names that every release has
    deep_gemm.fp8_m_grouped_gemm_nt_masked(
        (x, x_scale), (weights, weights_scale), out, rows.count, min(expected, rows.height)
    )
    return out
