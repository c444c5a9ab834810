"""A leaderboard submission: the bundle, a clean build, what speaks against it."""

from harness.core import interpreter  # noqa: F401
