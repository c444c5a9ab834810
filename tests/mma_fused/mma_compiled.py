"""mma_fused's kernels compiled for each architecture: what they take, and what the one launch's MMAs became.

    PYTHONPATH=tests/support:. python tests/mma_fused/mma_compiled.py
overwrites RECORD and RECORD_MANY, the data behind the tables of docs/mma_fused.md.
"""

import json
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import ahead_of_time
import mma_host
import mma_small_layer as small
from harness.report.compiled import RECORD, RECORD_MANY, read
from harness.tuning.compile_alone import CUOBJDUMP

COUNTED = {"mma": r"(?:HMMA|QMMA|IMMA|OMMA)\.[\w.]+", "copies": r"(?:UTMALDG\.\dD|LDGSTS\.E[\w.]*)"}
UNKNOWN = "Cannot decode architecture"  # of the disassembler: newer than it is
SIZE = '#include "fused_layer_on_host.cuh"\nint main() { printf("%zu", sizeof(Smem)); }\n'
MANY_TOKENS = (300, 1000, 3000)  # a token count for each tile of the rules
MANY_ENTRY_POINT = "many_tokens/layer.py::many_tokens"


def one_launch(architecture, folder, geometry="full"):
    """The kernel's row of RECORD; no instructions where the disassembler does not know the architecture.

    Raises CalledProcessError where a compiler refuses.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in small.cuda_files(geometry).items():
        (folder / name).write_text(text)
    built, target = folder / "kernel.o", architecture.removeprefix("sm_")
    flags = ["-std=c++17", "-O2", f"-gencode=arch=compute_{target},code=sm_{target}", "-Xptxas", "-v"]
    flags += small.ARCHITECTURES[architecture].flags()
    said = subprocess.run(
        ["nvcc", *flags, "-c", folder / "fused_layer.cu", "-o", built], capture_output=True, text=True
    )
    said.check_returncode()
    shown = subprocess.run([CUOBJDUMP, "-sass", built], capture_output=True, text=True)
    if UNKNOWN not in shown.stderr + shown.stdout:
        shown.check_returncode()
    counts = {kind: Counter(re.findall(rf"\b{pattern}", shown.stdout)) for kind, pattern in COUNTED.items()}
    return {
        "architecture": architecture,
        "registers": int(re.search(r"Used (\d+) registers", said.stderr)[1]),
        "spilled": sum(map(int, re.findall(r"(\d+) bytes spill", said.stderr))),
        "shared": shared_memory(architecture, folder / "host", geometry),
        **{kind: dict(sorted(found.items())) for kind, found in counts.items()},
    }


def shared_memory(architecture, folder, geometry):
    """Bytes of a CTA of the one launch."""
    folder.mkdir()
    (folder / "size.cc").write_text(SIZE)
    configuration = small.ARCHITECTURES[architecture]
    program = mma_host.build(mma_host.sources(None, geometry), folder / "size.cc", configuration, folder)
    return int(subprocess.run([program], capture_output=True, text=True, check=True).stdout)


def many_tokens(architecture, folder, entry_point=MANY_ENTRY_POINT, geometry="full"):
    """What ahead_of_time.py says of each Triton kernel at MANY_TOKENS. folder: where the sources are put."""
    return ahead_of_time.compiled("mma_fused", geometry, architecture, MANY_TOKENS, folder, entry_point)


def gemm_rows(architecture, kernels):
    """Rows of RECORD_MANY for the GEMMs among what `many_tokens` gives."""
    kept = ("kernel", "num_warps", "num_stages", "registers", "reloads", "shared")
    rows = []
    for kernel in kernels:
        if kernel["kernel"].startswith("gemm"):
            constants = kernel["constants"]
            tile = [constants["BLOCK_M"], constants.get("BLOCK_N", 128), constants.get("STEP", 128)]
            rows.append({"architecture": architecture, "tile": tile} | {key: kernel[key] for key in kept})
    return rows


def recorded(record, architecture):
    """The architecture's rows of RECORD or RECORD_MANY."""
    return [row for row in read(record) if row["architecture"] == architecture]


def main():
    rows, rows_many = [], []
    for architecture in small.ARCHITECTURES:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(one_launch(architecture, Path(folder, "one")))
            rows_many += gemm_rows(architecture, many_tokens(architecture, Path(folder, "many")))
    RECORD.parent.mkdir(exist_ok=True)
    for record, of_record in ((RECORD, rows), (RECORD_MANY, rows_many)):
        record.write_text("".join(json.dumps(row) + "\n" for row in of_record))


if __name__ == "__main__":
    main()
