"""mma_fused's kernels, compiled for every architecture that it lists, without a GPU."""

import re

import ahead_of_time
import mma_small_layer as small
import pytest
import sass
from moebench.packing.manifest import read_manifest

# the longest lists of rows; the smallest layer; clamped, with the largest I
OTHER_LAYERS = ["qwen3.5-397b", "qwen3-next", "deepseek-v4-pro-ep8-routed"]
MXFP4_LAYERS = ["deepseek-v4-flash-mxfp4", "deepseek-v4-pro-ep8-mxfp4"]
LAUNCHES = [("full", architecture) for architecture in small.ARCHITECTURES]
for name in OTHER_LAYERS:
    LAUNCHES += [(name, architecture) for architecture in ("sm_80", "sm_90")]
# sm_103 is built as sm_100, sm_86 with the other layer
for name in ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120"):
    LAUNCHES.append((MXFP4_LAYERS[0], name))
LAUNCHES += [(MXFP4_LAYERS[1], architecture) for architecture in ("sm_86", "sm_90")]

INSIDE = ("many_tokens/many_tokens.py::many_tokens", "full")
ROUTED = ("many_tokens/many_tokens.py::many_tokens_routed", "deepseek-v3-ep8-routed")
MANY = [(architecture, INSIDE) for architecture in small.ARCHITECTURES]
MANY += [("sm_80", ROUTED), ("sm_100", ROUTED)]
MXFP4 = ("many_tokens/many_tokens.py::many_tokens_mxfp4", MXFP4_LAYERS[0])
# triton_fused_v2's kernels read a spilled value or a few back on sm_100 and sm_120
MANY += [(architecture, MXFP4) for architecture in ("sm_80", "sm_89", "sm_90")]

# Their machine code is followed path by path.
FOLLOWED = ("sm_80", "sm_89", "sm_90", "sm_120")
# Short rows leave room, so that tokens are staged too.
STAGES_TOKENS = ("qwen3-next", "sm_90")


def most_shared(architecture):
    """Return the bytes of shared memory that a CTA may have."""
    return small.ARCHITECTURES[architecture].smem_kib * 1024


def compiled(layer_key, architecture, folder):
    """Compile the one launch. Its shared memory is asserted in the source."""
    flags = ["-Xptxas", "-v", *small.ARCHITECTURES[architecture].flags()]
    number = architecture.removeprefix("sm_")
    texts = small.cuda_files(layer_key)
    return sass.compiled(texts, "fused_layer.cu", folder, number, flags)


def expected_copies(layer_key, architecture):
    copies = {"UTMALDG" if small.ARCHITECTURES[architecture].tma else "LDGSTS"}
    if layer_key in MXFP4_LAYERS or (layer_key, architecture) == STAGES_TOKENS:
        copies.add("LDGSTS")  # of the weights' scales, or of tokens
    return copies


def test_hardware_is_what_it_is_compiled_for():
    assert set(read_manifest("mma_fused").target_hardware) == small.ARCHITECTURES.keys()


@sass.needs_compilers
@pytest.mark.slow
@pytest.mark.parametrize(("layer_key", "architecture"), LAUNCHES)
def test_one_launch_compiles_without_spills(architecture, layer_key, tmp_path):
    """And to the instructions that the page names; a warp refills a stage that it has read."""
    result = compiled(layer_key, architecture, tmp_path)
    spills = re.findall(r"(\d+) bytes spill", result.log)
    assert set(spills) == {"0"}

    code = ahead_of_time.cuobjdump("-sass", result.cubin)
    if architecture == "sm_103" and "EXIT" not in code:
        return  # newer than the disassembler
    products = set(re.findall(r"\b(?:HMMA|QMMA|IMMA|OMMA)\.[\w.]+", code))
    copies = set(re.findall(r"\b(?:UTMALDG|LDGSTS)\b", code))
    assert products == {"HMMA.16816.F32"}
    assert copies == expected_copies(layer_key, architecture)
    if architecture in FOLLOWED:
        assert sass.released_in_flight(sass.disassemble(result.cubin)) == set()


@pytest.mark.parametrize(
    ("requested", "architecture"),
    [("10.0a", "10.0"), ("12.0 9.0", "12.0"), ("", "9.0")],
)
def test_what_is_compiled_ahead(
    packed_module, monkeypatch, no_gpu, requested, architecture
):
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", requested)
    assert packed_module("mma_fused", "build").architecture() == architecture


def test_an_architecture_that_is_not_listed_is_refused(
    packed_module, monkeypatch, no_gpu
):
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "7.5")
    with pytest.raises(RuntimeError, match="^mma_fused: .*7.5"):
        packed_module("mma_fused", "build").load_kernels()


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "form"), MANY)
def test_many_tokens_compile_and_fit(architecture, form, tmp_path):
    entry_point, layer_key = form
    kernels = ahead_of_time.compiled(
        "mma_fused", layer_key, architecture, small.MANY_TOKENS, tmp_path, entry_point
    )
    assert any(kernel["kernel"].startswith("gemm") for kernel in kernels)
    for kernel in kernels:
        spilled = kernel["stack"] if kernel["reloads"] is None else kernel["reloads"]
        assert not spilled, kernel
        assert kernel["shared"] <= most_shared(architecture), kernel
