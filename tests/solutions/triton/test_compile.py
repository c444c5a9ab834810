"""Every kernel that triton_fused_v2 launches, compiled for GPUs that are not here."""

import ahead_of_time
import pytest
from moebench.packing import manifest

from solutions.common.triton.gemms.tiles import ARCHITECTURES, by_rule, tuned

TENSOR_CORES = {"sm_90": "wgmma", "sm_100": "tcgen05", "sm_103": "tcgen05"}
H200 = "sm_90:NVIDIA H200"  # has a table of its own
GEMMS = {"gemm1_swiglu_quant_kernel", "gemm1_kernel", "gemm2_kernel"}
MXFP4_STAGES = {"gemm1_mxfp4_kernel", "gemm2_mxfp4_kernel"}  # of other definitions
STAGES = set(manifest.read_manifest("triton_fused_v2").stages) - MXFP4_STAGES
ROUTED = "deepseek-v3-ep8-routed"


def by_rule_of(architecture, num_tokens):
    """Return what the rule chooses for the definition "full", which ahead_of_time.py compiles."""
    multiprocessors = ahead_of_time.MULTIPROCESSORS[architecture]
    return by_rule(architecture, multiprocessors, (32, 7168, 2048), 8 / 256, num_tokens)


def token_counts():
    """Return both sides of every border, one permute chunk and many, sizes that are and are not
    multiples of 16.
    """
    counts = {1, 80, 2000, 11948, 14107}
    for architecture in ARCHITECTURES:
        for num_tokens in range(1, 2500):
            choice = by_rule_of(architecture, num_tokens)
            if choice != by_rule_of(architecture, num_tokens + 1):
                counts |= {num_tokens, num_tokens + 1}
    return sorted(counts)


TOKENS = token_counts()


def chosen_tiles(choices, stage):
    """Return (BLOCK_M, GROUP, warps, stages) of a stage's tile in each choice."""
    tiles = [getattr(choice, stage) for choice in choices]
    kinds = set()
    for tile in tiles:
        kinds.add((tile.block_m, tile.group, tile.num_warps, tile.num_stages))
    return kinds


def built_tiles(kernels, stage):
    """Return the same of the kernels that were compiled."""
    tiles = set()
    for kernel in kernels:
        if kernel["kernel"].startswith(stage):
            block_m = kernel["constants"]["BLOCK_M"]
            group = kernel["constants"]["GROUP"]
            tiles.add((block_m, group, kernel["num_warps"], kernel["num_stages"]))
    return tiles


def assert_fits(kernel, architecture):
    """Check that a kernel fits, keeps its sums in registers and uses the tensor cores."""
    tensor_cores = TENSOR_CORES.get(architecture)

    assert kernel["shared"] <= ahead_of_time.SHARED_MEMORY[architecture], kernel
    assert not kernel["reloads"], kernel
    if tensor_cores or kernel["reloads"] is None:
        assert not kernel["stack"], kernel
    if tensor_cores and kernel["kernel"] in GEMMS:
        assert_quick(kernel, tensor_cores)


def assert_quick(gemm, tensor_cores):
    assert gemm[tensor_cores], gemm
    if gemm["constants"].get("TMA") is not False:
        assert gemm["bulk_tensor_copy"], gemm


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles_and_fits(architecture, tmp_path):
    """Catches a first call that dies in the compiler, or at launch for want of shared memory, and a
    GEMM that fell back to slow instructions, or whose sums left the registers.
    """
    kernels = ahead_of_time.compiled(
        "triton_fused_v2", "full", architecture, TOKENS, tmp_path
    )

    choices = [by_rule_of(architecture, num_tokens) for num_tokens in TOKENS]
    assert {kernel["kernel"] for kernel in kernels} == STAGES - {
        "quantise_tokens_kernel"
    }
    assert built_tiles(kernels, "gemm1") == chosen_tiles(choices, "gemm1")
    assert built_tiles(kernels, "gemm2") == chosen_tiles(choices, "gemm2")
    for kernel in kernels:
        assert_fits(kernel, architecture)


@pytest.mark.slow
def test_a_tuned_gpu_takes_tiles_of_its_table(tmp_path):
    """Catches a table that is not found."""
    kernels = ahead_of_time.compiled("triton_fused_v2", "full", H200, TOKENS, tmp_path)

    choices = tuned()["NVIDIA H200", "e32_h7168_i2048"].values()
    for stage in ("gemm1", "gemm2"):
        tiles = built_tiles(kernels, stage)
        assert tiles
        assert tiles <= chosen_tiles(choices, stage)
    for kernel in kernels:
        assert_fits(kernel, "sm_90")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", TENSOR_CORES)
def test_the_routed_form_compiles_as_well(architecture, tmp_path):
    """Catches a form that spills, or leaves the tensor cores, where the other one does not."""
    kernels = ahead_of_time.compiled(
        "triton_fused_v2",
        ROUTED,
        architecture,
        (80, 2000),
        tmp_path,
        "main.py::run_routed_bf16",
    )

    assert {kernel["kernel"] for kernel in kernels} == STAGES - {"route_kernel"}
    for kernel in kernels:
        assert not kernel["stack"], kernel
        if kernel["kernel"] in GEMMS:
            assert kernel[TENSOR_CORES[architecture]], kernel
