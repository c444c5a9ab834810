"""The figures of docs/, drawn by matplotlib in the style of report.mplstyle."""
