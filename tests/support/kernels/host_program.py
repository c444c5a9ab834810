"""Headers of kernels compiled for the host, where tests/samples/cuda_on_host runs threads as
fibers.
"""

import math
import subprocess
from pathlib import Path

import numpy as np
import triton
from packed_sources import packed_texts

SAMPLES = Path(__file__).parents[2] / "samples"
CUDA_H = Path(triton.__file__).parent / "backends" / "nvidia" / "include"


def build_packed(solution, layer_key, sample, folder):
    """Compile a file of tests/samples with a packed solution's headers, which are put into folder;
    return the program.
    """
    for path, text in packed_texts(solution, layer_key, (".cuh",)).items():
        (folder / Path(path).name).write_text(text)
    return build(sample, folder)


def build(sample, folder):
    """Compile a file of tests/samples with the headers in folder; return the program there."""
    program = folder / "program"
    includes = [f"-I{path}" for path in (SAMPLES / "cuda_on_host", CUDA_H, folder)]
    options = ["-std=c++17", "-O1", "-Wno-attributes", *includes]
    subprocess.run(["c++", *options, SAMPLES / sample, "-o", program], check=True)
    return program


def take(data, dtype, *shape):
    """Read an array from the stream of what a program wrote."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return np.frombuffer(data.read(size), dtype).reshape(shape)
