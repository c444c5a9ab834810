from harness.operators.catalogue import *  # noqa

METAVAR = "KEY|NAME"
