"""Clocks of our own, beside the CUDA events of FlashInfer-Bench 0.1.2."""

from harness.core import interpreter  # noqa: F401
