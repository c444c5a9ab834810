"""The operators: their sizes, workloads, routing and roofline bound. Imports core alone."""

from harness.core import interpreter  # noqa: F401
