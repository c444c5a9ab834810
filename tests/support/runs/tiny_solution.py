"""A solution of a few lines, which writes ones, in a solutions folder of its own."""

from moebench.core import paths
from moebench.operators.catalogue import definition
from packed_sources import write_texts

MANIFEST = """
name = "tiny"
author = "tests"
description = "Writes ones."
language = "python"
entry_point = "main.py::run"
target_hardware = ["cpu"]
"""
INPUTS = ", ".join(definition("small").inputs)
MAIN = f"from ..common.host.ones import ones\n\ndef run({INPUTS}, output):\n    ones(output)\n"


def make(tmp_path, monkeypatch, more_manifest="", more_main=""):
    """Write it below tmp_path, where the commands look for solutions from now on; return the
    solutions folder. more_manifest, more_main: are appended to its files.
    """
    folder = tmp_path / "solutions"
    monkeypatch.setattr(paths, "SOLUTIONS", folder)
    files = {
        "tiny/solution.toml": MANIFEST + more_manifest,
        "tiny/main.py": MAIN + more_main,
        "common/host/ones.py": "def ones(output):\n    output.fill_(1)\n",
    }
    write_texts(folder, files)
    return folder
