"""The tables by which solutions check their arguments are those of the layer's interface."""

import runpy

from moebench.core import paths

PROGRAM = runpy.run_path(str(paths.ROOT / "tools" / "argument_tables.py"))


def test_tables_beside_the_kernels_state_the_interface():
    in_python = (paths.SOLUTIONS / PROGRAM["PYTHON_FILE"]).read_text()
    in_cpp = (paths.SOLUTIONS / PROGRAM["CPP_FILE"]).read_text()
    assert in_python == PROGRAM["python_text"]()
    assert in_cpp == PROGRAM["cpp_text"]()
