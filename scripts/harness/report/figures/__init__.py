"""The figures of README.md and docs/: one module a figure, with its data apart from its drawing."""
