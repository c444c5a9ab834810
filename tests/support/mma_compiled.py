"""mma_fused's kernel compiled for each architecture: what it takes and which instructions it became.

    python tests/support/mma_compiled.py
writes RECORD anew, from which docs/mma_fused.md is generated.
"""

import json
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import mma_small_layer as small
import triton
from harness.report.compiled import RECORD

from solutions.mma_fused.targets import TARGETS

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
COUNTED = {"mma": r"(?:HMMA|QMMA|IMMA|OMMA)\.[\w.]+", "copies": r"(?:UTMALDG\.\dD|LDGSTS\.E[\w.]*)"}
UNKNOWN = "Cannot decode architecture"  # of the disassembler: newer than it is
SIZE = '#include "fused_layer_on_host.cuh"\nint main() { printf("%zu", sizeof(Smem)); }\n'


def compiled(architecture, folder, geometry="full"):
    """Row of the record for a compute capability, "9.0"; no instructions where the disassembler does not know it.

    Raises CalledProcessError where a compiler refuses.
    """
    folder.mkdir(parents=True, exist_ok=True)
    flags = TARGETS[architecture].flags()
    packed = small.cuda_files(geometry)
    for name, text in packed.items():
        (folder / name).write_text(text)
    target = architecture.replace(".", "")
    built = folder / "kernel.o"
    command = ["nvcc", "-std=c++17", "-O2", f"-gencode=arch=compute_{target},code=sm_{target}", "-Xptxas", "-v", *flags]
    said = subprocess.run([*command, "-c", folder / "fused_layer.cu", "-o", built], capture_output=True, text=True)
    said.check_returncode()
    shown = subprocess.run([CUOBJDUMP, "-sass", built], capture_output=True, text=True)
    if UNKNOWN not in shown.stderr + shown.stdout:
        shown.check_returncode()
    counts = {kind: Counter(re.findall(rf"\b{pattern}", shown.stdout)) for kind, pattern in COUNTED.items()}
    return {
        "architecture": f"sm_{target}",
        "registers": int(re.search(r"Used (\d+) registers", said.stderr)[1]),
        "spilled": sum(map(int, re.findall(r"(\d+) bytes spill", said.stderr))),
        "shared": shared_memory(packed, flags, folder / "host"),
        **{kind: dict(sorted(found.items())) for kind, found in counts.items()},
    }


def shared_memory(packed, flags, folder):
    """Bytes of a CTA."""
    folder.mkdir()
    texts = small.host_sources(None) | {"problem.cuh": packed["problem.cuh"], "size.cc": SIZE}
    for name, text in texts.items():
        (folder / name).write_text(text)
    command = ["c++", "-std=c++20", "-w", f"-I{folder}", *flags, folder / "size.cc", "-o", folder / "size"]
    subprocess.run(command, check=True)
    return int(subprocess.run([folder / "size"], capture_output=True, text=True, check=True).stdout)


def recorded():
    """architecture -> its row."""
    return {row["architecture"]: row for row in map(json.loads, RECORD.read_text().splitlines())}


if __name__ == "__main__":
    RECORD.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        rows = [compiled(architecture, Path(folder, architecture)) for architecture in TARGETS]
    RECORD.write_text("".join(json.dumps(row) + "\n" for row in rows))
