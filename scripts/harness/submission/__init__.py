"""A leaderboard submission: the bundle, a clean build, what speaks against it."""
