"""Expert parallelism: one layer whose experts are on several ranks, checked and timed."""

from harness.core import interpreter  # noqa: F401  before anything imports Triton
