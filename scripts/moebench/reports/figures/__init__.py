"""The figures of README.md and docs/: the plot over token counts, and the style of all."""
