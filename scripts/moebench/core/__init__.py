"""What all other folders of moebench use, and what uses none of them.

environment.py, interpreter.py       set up before anything else is imported
interruption.py, nursery.py          Ctrl-C, and how processes of solutions are forked
errors.py, names.py, printable.py    what a user is told
arguments.py                         argparse types that several commands have
paths.py, atomic_file.py, schema.py  where files lie, how they are written and read
provenance.py                        where a figure comes from
"""
