"""NVIDIA H200: tiles by token count, 64 local experts, hidden 7168, intermediate 2048.

Written by moebench tune from nvidia_h200_e64_h7168_i2048.jsonl: torch 2.11.0+cu130, triton 3.6.0.
"""

TABLE = (
    {
        "T": 1,
        "gemm1_fused": False,
        "gemm2_tma": True,
        "gemm1": {"block_m": 16, "block_n": 128, "group": 8, "per_sm": 1, "num_warps": 4, "num_stages": 6},
        "gemm2": {"block_m": 16, "block_n": 64, "group": 8, "per_sm": 3, "num_warps": 4, "num_stages": 6},
    },
    {
        "T": 8,
        "gemm1_fused": True,
        "gemm2_tma": True,
        "gemm1": {"block_m": 16, "block_n": 128, "group": 8, "per_sm": 2, "num_warps": 4, "num_stages": 3},
        "gemm2": {"block_m": 16, "block_n": 128, "group": 8, "per_sm": 2, "num_warps": 4, "num_stages": 5},
    },
    {
        "T": 32,
        "gemm1_fused": True,
        "gemm2_tma": True,
        "gemm1": {"block_m": 16, "block_n": 128, "group": 8, "per_sm": 2, "num_warps": 4, "num_stages": 3},
        "gemm2": {"block_m": 16, "block_n": 128, "group": 8, "per_sm": 3, "num_warps": 4, "num_stages": 3},
    },
    {
        "T": 128,
        "gemm1_fused": True,
        "gemm2_tma": True,
        "gemm1": {"block_m": 16, "block_n": 128, "group": 8, "per_sm": 1, "num_warps": 4, "num_stages": 5},
        "gemm2": {"block_m": 16, "block_n": 128, "group": 8, "per_sm": 2, "num_warps": 4, "num_stages": 5},
    },
    {
        "T": 256,
        "gemm1_fused": True,
        "gemm2_tma": True,
        "gemm1": {"block_m": 16, "block_n": 128, "group": 8, "per_sm": 2, "num_warps": 4, "num_stages": 3},
        "gemm2": {"block_m": 16, "block_n": 128, "group": 8, "per_sm": 2, "num_warps": 4, "num_stages": 5},
    },
    {
        "T": 1024,
        "gemm1_fused": True,
        "gemm2_tma": True,
        "gemm1": {"block_m": 32, "block_n": 128, "group": 32, "per_sm": 2, "num_warps": 4, "num_stages": 3},
        "gemm2": {"block_m": 32, "block_n": 128, "group": 16, "per_sm": 2, "num_warps": 4, "num_stages": 5},
    },
    {
        "T": 4096,
        "gemm1_fused": False,
        "gemm2_tma": True,
        "gemm1": {"block_m": 64, "block_n": 128, "group": 16, "per_sm": 2, "num_warps": 4, "num_stages": 3},
        "gemm2": {"block_m": 64, "block_n": 128, "group": 16, "per_sm": 2, "num_warps": 4, "num_stages": 3},
    },
)
