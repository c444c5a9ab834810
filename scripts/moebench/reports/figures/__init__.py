"""The figure of docs/, drawn by matplotlib in the style of report.mplstyle.

reports/docs/pages.py calls `figure` of speed.py, which draws with style.py.
"""
