"""Solutions of plain torch for the small layer, which have the reference at hand as `reference`."""

import json

import pytest
from moebench.core import paths
from moebench.operators.catalogue import definition
from moebench.packing import pack
from packed_sources import write_texts

INPUTS = ", ".join(definition("small").inputs)
REFERENCE = definition("small").reference.replace("def run(", "def reference(")
RIGHT = f"output.copy_(reference({INPUTS}))"


def source(body):
    return f"{REFERENCE}\n\ndef run({INPUTS}, output):\n    {body}\n"


def solution(folder, body="pass", name="tiny", main=None, **changes):
    """Return a packed solution of folder/name.

    body: of `run`; main: or the whole main.py; changes: of the manifest.
    """
    manifest = {
        "name": name,
        "author": "tests",
        "description": "x",
        "language": "python",
    }
    manifest |= {"entry_point": "main.py::run", "target_hardware": ["cpu"]} | changes
    lines = [f"{key} = {json.dumps(value)}" for key, value in manifest.items()]
    texts = {"solution.toml": "\n".join(lines), "main.py": main or source(body)}
    write_texts(folder / name, texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "SOLUTIONS", folder)
        return pack.pack(name)["small"]
