"""What layers.toml and a checkpoint's config.json say of a model's MoE layer."""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
