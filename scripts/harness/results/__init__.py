"""What was measured: trace files, when a figure is stale, the comparison model, regressions."""
