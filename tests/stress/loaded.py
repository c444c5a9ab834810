"""Which solutions are tried under load."""

SOLUTIONS = (
    "hopper_fused_invariant",
    "hopper_fused",
    "hopper_fused_exact",
    "mma_fused",
    "triton_fused_v2",
    "cutlass_grouped",
    "deepgemm",
    "sglang_triton",
)
