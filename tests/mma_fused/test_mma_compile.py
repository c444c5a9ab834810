"""mma_fused's kernels, compiled for every architecture that it lists, without a GPU."""

import os
import re
import shutil
import subprocess

import ahead_of_time
import mma_host
import mma_small_layer as small
import pytest
from ahead_of_time import CUOBJDUMP
from moebench.packing.manifest import read_manifest

NEEDS = pytest.mark.skipif(
    shutil.which("nvcc") is None or not os.access(CUOBJDUMP, os.X_OK),
    reason="needs nvcc and cuobjdump",
)
# the longest lists of rows; the smallest layer; clamped, with the largest I
OTHER_LAYERS = "qwen3.5-397b", "qwen3-next", "deepseek-v4-pro-ep8-routed"
OTHERS = [
    (name, architecture) for name in OTHER_LAYERS for architecture in ("sm_80", "sm_90", "sm_120")
]
INSIDE = "many_tokens/many_tokens.py::many_tokens", "full"
ROUTED = "many_tokens/many_tokens.py::many_tokens_routed", "deepseek-v3-ep8-routed"
SIZE = '#include "fused_layer_on_host.cuh"\nint main() { printf("%zu", sizeof(Smem)); }\n'


def most_shared(architecture):
    """Bytes of shared memory that a CTA may have."""
    return small.ARCHITECTURES[architecture].smem_kib * 1024


def test_hardware_is_what_it_is_compiled_for():
    """A user would miss: a GPU that the solution says it runs on, and refuses."""
    assert set(read_manifest("mma_fused").target_hardware) == small.ARCHITECTURES.keys()


@NEEDS
@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer_key", "architecture"), [*(("full", name) for name in small.ARCHITECTURES), *OTHERS]
)
def test_one_launch_compiles_and_fits(architecture, layer_key, tmp_path):
    """A user would miss: sums spilled to memory, lists of rows that do not fit beside the stages,
    or other instructions than the page says, on a GPU that is not here."""
    of = small.ARCHITECTURES[architecture]
    (tmp_path / "size.cc").write_text(SIZE)
    program = mma_host.build(mma_host.sources(None, layer_key), tmp_path / "size.cc", of, tmp_path)
    assert int(subprocess.run([program], capture_output=True, check=True).stdout) <= most_shared(
        architecture
    )

    folder = tmp_path / "device"
    folder.mkdir()
    for name, text in small.cuda_files(layer_key).items():
        (folder / name).write_text(text)
    built, target = folder / "kernel.o", architecture.removeprefix("sm_")
    flags = [
        "-std=c++17",
        "-O2",
        f"-gencode=arch=compute_{target},code=sm_{target}",
        "-Xptxas",
        "-v",
        *of.flags(),
    ]
    command = ["nvcc", *flags, "-c", folder / "fused_layer.cu", "-o", built]
    said = subprocess.run(command, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert not sum(map(int, re.findall(r"(\d+) bytes spill", said.stderr))), said.stderr
    code = subprocess.run([CUOBJDUMP, "-sass", built], capture_output=True, text=True).stdout
    if architecture == "sm_103" and "EXIT" not in code:
        return  # newer than the disassembler
    assert set(re.findall(r"\b(?:HMMA|QMMA|IMMA|OMMA)\.[\w.]+", code)) == {"HMMA.16816.F32"}
    copies = set(re.findall(r"\b(?:UTMALDG|LDGSTS)\b", code))
    staged = (layer_key, architecture) == (
        "qwen3-next",
        "sm_90",
    )  # tokens too: short rows, and room for them
    assert copies == ({"UTMALDG"} if of.tma else {"LDGSTS"}) | ({"LDGSTS"} if staged else set())


def test_what_is_compiled_ahead_is_what_was_asked_for(packed_module, monkeypatch, no_gpu):
    """A user would miss: a clean build that compiles the kernel of another GPU, or not at all."""
    build = packed_module("mma_fused", "build")
    for asked, found in (("10.0a", "10.0"), ("12.0 9.0", "12.0"), ("", "9.0")):
        monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", asked)
        assert build.architecture() == found
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "7.5")
    with pytest.raises(RuntimeError, match="^mma_fused: .*7.5"):
        build.load_kernels()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "form"),
    [*((name, INSIDE) for name in small.ARCHITECTURES), ("sm_80", ROUTED), ("sm_100", ROUTED)],
)
def test_many_tokens_compile_and_fit(architecture, form, tmp_path):
    """A user would miss: sums spilled to memory, or a launch that asks for more shared memory than
    there is.
    """
    entry_point, layer_key = form
    kernels = ahead_of_time.compiled(
        "mma_fused", layer_key, architecture, small.MANY_TOKENS, tmp_path, entry_point
    )
    assert any(kernel["kernel"].startswith("gemm") for kernel in kernels)
    for kernel in kernels:
        assert not kernel["reloads"] and not (kernel["reloads"] is None and kernel["stack"]), kernel
        assert kernel["shared"] <= most_shared(architecture), kernel
