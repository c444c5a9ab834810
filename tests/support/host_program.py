"""Headers of kernels compiled for the host, where tests/samples/cuda_on_host runs threads as
fibers.
"""

import subprocess
from pathlib import Path

import triton
from moebench.packing import pack

SAMPLES = Path(__file__).parents[1] / "samples"
CUDA_H = Path(triton.__file__).parent / "backends" / "nvidia" / "include"


def of_packed(solution, layer_key, sample, folder):
    """Return the program of a file of tests/samples and a packed solution's headers, which are put
    into one folder.
    """
    for source in pack.pack(solution)[layer_key].sources:
        if source.path.endswith(".cuh"):
            (folder / Path(source.path).name).write_text(source.content)
    return compiled(sample, folder, folder)


def compiled(sample, folder, *includes):
    """Compile a file of tests/samples, and return folder/program."""
    program = folder / "program"
    includes = [f"-I{path}" for path in (SAMPLES / "cuda_on_host", CUDA_H, *includes)]
    options = ["-std=c++17", "-O1", "-Wno-attributes", *includes]
    subprocess.run(["c++", *options, SAMPLES / sample, "-o", program], check=True)
    return program
