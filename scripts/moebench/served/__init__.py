"""A forward pass: all MoE layers of a model in one CUDA graph, as a server replays them."""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
