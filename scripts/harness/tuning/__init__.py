"""Tiles for triton_fused_v2: which are tried, left out, timed and kept."""

from harness.core import interpreter  # noqa: F401
