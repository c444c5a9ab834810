"""Where things lie, how files are written and read, and what a figure's provenance is. Imports no
other room.
"""
