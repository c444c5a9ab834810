"""mma_fused's Triton kernels above 256 tokens, compiled for each architecture: what they take.

    python tests/support/mma_many_compiled.py
writes RECORD anew, from which docs/mma_fused.md is generated.
"""

import json
import tempfile
from pathlib import Path

import ahead_of_time
from harness.report.compiled import RECORD_MANY

from solutions.mma_fused.targets import TARGETS

COUNTS = (300, 1000, 3000)  # a token count for each tile of the rules
ENTRY_POINT = "many_tokens/layer.py::many_tokens"


def compiled(architecture, entry_point=ENTRY_POINT, geometry="full", folder=None):
    """What ahead_of_time.py says of each kernel at COUNTS. folder: where the sources are put."""
    return ahead_of_time.compiled("mma_fused", geometry, architecture, COUNTS, folder, entry_point)


def is_gemm(kernel):
    return kernel["kernel"].startswith("gemm")


def row(architecture, kernel):
    """Of the record."""
    constants = kernel["constants"]
    tile = [constants["BLOCK_M"], constants.get("BLOCK_N", 128), constants.get("STEP", 128)]
    kept = {key: kernel[key] for key in ("kernel", "num_warps", "num_stages", "registers", "reloads", "shared")}
    return {"architecture": architecture, "tile": tile} | kept


def recorded():
    """architecture -> its rows."""
    found = {}
    for line in RECORD_MANY.read_text().splitlines():
        found.setdefault(json.loads(line)["architecture"], []).append(json.loads(line))
    return found


if __name__ == "__main__":
    lines = []
    for target in TARGETS:
        name = f"sm_{target.replace('.', '')}"
        with tempfile.TemporaryDirectory() as place:
            kernels = compiled(name, folder=Path(place))
        lines += [json.dumps(row(name, kernel)) + "\n" for kernel in kernels if is_gemm(kernel)]
    RECORD_MANY.write_text("".join(lines))
