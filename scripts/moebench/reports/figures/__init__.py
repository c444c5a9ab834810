"""The figures of docs/, drawn by matplotlib in the style of report.mplstyle.

reports/docs/pages.py calls `figure` of speed.py and of stages.py; both draw with style.py.
"""
