"""What was measured: trace files, when a figure is stale, the comparison model, regressions."""

from harness.core import interpreter  # noqa: F401
