"""The test build of a CUDA solution, which hands out what its stages left in the scratch.

`build` compiles tests/samples/hopper_stages.cu with a definition's sources, and `call` runs it.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import torch
from moebench.packing.problem import SIZES_IN_CPP
from packed_sources import CUDA, packed_texts
from stage_inputs import names

from solutions.common.host.build_library import (
    build_library,
    find_toolkit,
    load_library,
)

SAMPLE = Path(__file__).parents[2] / "samples" / "hopper_stages.cu"
ARCHITECTURE = "9.0a"
RIGHT = "every stage is right"  # what a script says of a layer, for sanitizer.py


def sources(layer_key):
    """Return path -> text of the test build for a definition."""
    texts = packed_texts("hopper_fused", layer_key, CUDA)
    texts["launch_layer_cu.cuh"] = texts.pop("launch_layer.cu")  # stages.cu includes it
    texts["stages.cu"] = SAMPLE.read_text()
    return texts


def cases(counts):
    """Return (layer key, number of tokens) of each test. counts: layer key -> numbers of tokens."""
    pairs = []
    for layer_key, token_counts in counts.items():
        pairs += [(layer_key, num_tokens) for num_tokens in token_counts]
    return pairs


def problem_header(layer):
    """Return problem.cuh for sizes that no definition has, without the activation."""
    lines = ["#pragma once"]
    for key, symbol in SIZES_IN_CPP.items():
        lines.append(f"constexpr int {symbol} = {layer[key]};")
    lines.append(f"constexpr bool kRenorm = {str(layer['renorm']).lower()};\n")
    return "\n".join(lines)


def build(texts, flags=()):
    """Compile a test build, once for each content; return the library's path. Raises as
    `build_library` does.
    """
    return build_library("hopper_stages", texts, architecture=ARCHITECTURE, flags=flags)


def build_all(build, keys, architecture=ARCHITECTURE):
    """Return key -> loaded library; all are compiled at once."""
    # each build sets these variables and puts them back
    same = {"TVM_FFI_CUDA_ARCH_LIST": architecture, "CUDA_HOME": str(find_toolkit())}
    with mock.patch.dict(os.environ, same), ThreadPoolExecutor() as pool:
        paths = pool.map(build, keys)
        libraries = [load_library(path) for path in paths]
    return dict(zip(keys, libraries, strict=True))


def call(library, layer, arguments, h_split):
    """Run the layer through a test build's module. Return its output, and the arrays and numbers
    that it hands out.

    h_split: FP8 parts of h with many tokens.
    """
    x = arguments["hidden_states"]
    output = torch.full(x.shape, torch.nan, dtype=torch.bfloat16, device=x.device)
    operands = [arguments[name] for name in names(layer)]
    library[entry_point(layer)](*operands, output, h_split)

    arrays = {}
    for name, array in library["read_arrays"]().items():
        arrays[str(name)] = torch.from_dlpack(array)
    numbers = {}
    for name, value in library["read_numbers"]().items():
        numbers[str(name)] = int(value)
    return output, arrays, numbers


def entry_point(layer):
    """Return the name of the function that takes the layer's arguments."""
    if layer.get("mxfp4"):
        return "run_mxfp4"
    if layer["routed"]:
        return "run_routed"
    return "run_renorm" if layer["renorm"] else "run_layer"
