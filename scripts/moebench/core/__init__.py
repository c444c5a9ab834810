"""What all other rooms use and what uses none of them: where files lie, how they are written and
read, errors for the user, processes, and the provenance of figures.
"""
