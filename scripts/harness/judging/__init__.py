"""Running and judging solutions: tolerances, the CPU judge, FIB's GPU runner, the sweep."""

from harness.core import interpreter  # noqa: F401
