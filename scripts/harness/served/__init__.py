"""A forward pass: all MoE layers of a model in one CUDA graph, as a server replays them."""

from harness.core import interpreter  # noqa: F401
