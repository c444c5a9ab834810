"""Where a solution's time goes: calls, profilers, records of stages."""

from harness.core import interpreter  # noqa: F401
