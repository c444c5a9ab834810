"""The GEMMs whose MXFP4 weights a warpgroup converts in shared memory: their machine code, and on
the device their answers, which have the bits of the GEMMs that convert in registers.
"""

import re
from collections import Counter
from functools import cache

import pytest
import sass
import torch
from every_solution import OUTPUT, assert_same_bits
from layer_inputs import arguments as layer_arguments
from packed_sources import CUDA, packed_texts, with_one_replaced

from solutions.common.host.build_library import build_library, load_library

SOLUTION = "hopper_fused"
FOLDER = "many_tokens/mxfp4/converted"
LAYER = "small-mxfp4"
PRODUCT = re.compile(r"QGMMA\.64x(\d+)x32")
ROWS_OF_PRODUCTS = {"16", "32", "48", "64", "128"}
MMAS = 8  # of a K block: four steps of each of two m64, or of two n128

# An expert's rows: tiles of every N, with and without padding
EXPERT_ROWS = [0, 1, 13, 14, 15, 16, 17, 31, 33, 49, 64, 65, 127, 129, 145, 300]
NO_EXPERT = -1
TOKENS = 1100  # more than the one launch takes


@sass.needs_compilers
@pytest.mark.slow
@pytest.mark.parametrize("file", ["converted_gemm1.cu", "converted_gemm2.cu"])
@pytest.mark.parametrize("layer_key", [LAYER, "deepseek-v4-flash-mxfp4"])
def test_no_product_is_left_out(layer_key, file, tmp_path):
    """ptxas did so in an unrolled loop of three K blocks, and put an HGMMA where each had been."""
    texts = packed_texts(SOLUTION, layer_key)
    cubin = sass.compiled(texts, f"{FOLDER}/{file}", tmp_path, "90a").cubin
    functions = sass.disassemble(cubin)

    assert sass.released_in_flight(functions) == set()
    for instructions in functions.values():
        products = Counter()
        for instruction in instructions:
            assert not instruction.opcode.startswith("HGMMA")
            match = PRODUCT.match(instruction.opcode)
            if match:
                products[match[1]] += 1

        assert set(products) == ROWS_OF_PRODUCTS
        assert all(count % MMAS == 0 for count in products.values()), products


# ---- on the device ----


@cache
def library(converts_in_shared_memory):
    """Return the solution's library, or one that never launches these GEMMs."""
    texts = packed_texts(SOLUTION, LAYER, CUDA)
    if not converts_in_shared_memory:
        (path,) = [path for path in texts if path.endswith("regimes.cuh")]
        choice = "constexpr bool kConvertsWeights = "
        texts[path] = with_one_replaced(
            texts[path], f"{choice}kMxfp4Weights;", f"{choice}false;"
        )
    return load_library(build_library(SOLUTION, texts, architecture="9.0a"))


def output_of(library, values, h_split):
    output = torch.full_like(values[OUTPUT], torch.nan)
    library["run_mxfp4"](*(values | {OUTPUT: output}).values(), h_split)
    return output


def tokens_of_experts(first_expert, top_k):
    """Return [TOKENS, top_k] ids with which expert number i has EXPERT_ROWS[i] rows."""
    ids = torch.full((TOKENS, top_k), NO_EXPERT, dtype=torch.int32)
    taken = torch.zeros(TOKENS, dtype=torch.int64)  # slots of each token

    for expert, rows in enumerate(EXPERT_ROWS):
        tokens = taken.argsort(stable=True)[:rows]
        ids[tokens, taken[tokens]] = first_expert + expert
        taken[tokens] += 1
    return ids


@pytest.mark.gpu
@pytest.mark.parametrize("h_split", [1, 2])
@pytest.mark.parametrize("spread", [0, 40])
def test_the_bits_are_those_of_weights_converted_in_registers(spread, h_split):
    """spread: how far apart a group of each row is made to lie; 40 is more than E4M3 holds."""
    values = layer_arguments(LAYER, TOKENS, seed=1)
    ids = values["topk_ids"]
    chosen = tokens_of_experts(values["local_expert_offset"], ids.shape[1])
    values["topk_ids"] = chosen.to(ids.device)
    values["gemm1_weights_scale"][..., 3] -= spread
    values["gemm2_weights_scale"][..., 3] -= spread

    expected = output_of(library(False), values, h_split)
    assert_same_bits(output_of(library(True), values, h_split), expected)
