"""Every kernel that triton_fused_v2 launches, compiled for GPUs that are not here."""

import json

import ahead_of_time
import pytest
from moebench.packing import manifest

from solutions.common.triton.tiles import ARCHITECTURES, by_rule, tuned

TENSOR_CORES = {
    "sm_90": "wgmma",
    "sm_100": "tcgen05",
    "sm_103": "tcgen05",
}  # what the FP8 products must become
TUNED = (
    "sm_90:NVIDIA H200",
)  # GPUs with a table of their own, as ahead_of_time.py wants them named


def ruled(architecture, num_tokens):
    """What the rule chooses for the definition "full", which ahead_of_time.py compiles."""
    multiprocessors = ahead_of_time.MULTIPROCESSORS[architecture]
    return by_rule(architecture, multiprocessors, (32, 7168, 2048), 8 / 256, num_tokens)


# both sides of every border, one permute chunk and many, sizes that are and are not multiples of 16
EDGES = {
    at + n
    for a in ARCHITECTURES
    for at in range(1, 2500)
    for n in (0, 1)
    if ruled(a, at) != ruled(a, at + 1)
}
TOKENS = tuple(sorted({1, 80, 2000, 11948, 14107} | EDGES))
GEMMS = {"gemm1_swiglu_quant_kernel", "gemm1_kernel", "gemm2_kernel"}
STAGES = set(manifest.read_manifest("triton_fused_v2").stages)


def tabled(machine, stage):
    """(BLOCK_M, GROUP, warps, stages) of the tiles that a machine chooses among."""
    fields = ("block_m", "group", "num_warps", "num_stages")
    table = tuned().get((machine.partition(":")[2], "e32_h7168_i2048"))
    choices = table.values() if table else [ruled(machine, num_tokens) for num_tokens in TOKENS]
    return {tuple(getattr(getattr(choice, stage), field) for field in fields) for choice in choices}


@pytest.mark.slow
@pytest.mark.parametrize("machine", [*ARCHITECTURES, *TUNED])
def test_every_kernel_compiles_and_fits(machine, tmp_path):
    """The first call at some token count dies in the compiler, or at launch for
    want of shared memory; a GEMM that fell back to slow instructions, or whose sums left the
    registers; a table that is not found."""
    kernels = ahead_of_time.compiled("triton_fused_v2", "full", machine, TOKENS, tmp_path)
    assert {kernel["kernel"] for kernel in kernels} == STAGES - {"quantise_tokens_kernel"}
    for stage in ("gemm1", "gemm2"):
        gemms = [k | k["constants"] for k in kernels if k["kernel"].startswith(stage)]
        built = {(k["BLOCK_M"], k["GROUP"], k["num_warps"], k["num_stages"]) for k in gemms}
        known = tabled(machine, stage)
        assert built and (built <= known if machine in TUNED else built == known)
    architecture = machine.partition(":")[0]
    wanted, room = TENSOR_CORES.get(architecture), ahead_of_time.SHARED_MEMORY[architecture]
    for kernel in kernels:
        said = json.dumps(kernel)
        assert kernel["shared"] <= room, said
        assert not kernel["reloads"] and not (
            kernel["stack"] and (wanted or kernel["reloads"] is None)
        ), said
        if wanted and kernel["kernel"] in GEMMS:
            assert kernel[wanted] and (
                kernel["bulk_tensor_copy"] or kernel["constants"].get("TMA") is False
            ), said


@pytest.mark.slow
@pytest.mark.parametrize("architecture", TENSOR_CORES)
def test_the_routed_form_compiles_as_well(architecture, tmp_path):
    """A form that spills, or leaves the tensor cores, where the other one does
    not.
    """
    geometry, entry_point = "deepseek-v3-ep8-routed", "main.py::run_routed_bf16"
    kernels = ahead_of_time.compiled(
        "triton_fused_v2", geometry, architecture, (80, 2000), tmp_path, entry_point
    )
    assert {kernel["kernel"] for kernel in kernels} == STAGES - {"route_kernel"}
    wanted = TENSOR_CORES[architecture]
    assert not [k for k in kernels if k["stack"] or (k["kernel"] in GEMMS and not k[wanted])], (
        json.dumps(kernels)
    )
