"""mma_fused's kernel, compiled for every architecture that it lists, without a GPU."""

import importlib
import os
import shutil
import sys

import mma_compiled
import pytest
import torch
from harness.operators import catalogue
from harness.packing.manifest import read_manifest
from harness.packing.pack import pack, pack_packages
from harness.submission import bundle, clean_build

from solutions.mma_fused.targets import TARGETS

NEEDS = pytest.mark.skipif(
    shutil.which("nvcc") is None or not os.access(mma_compiled.CUOBJDUMP, os.X_OK), reason="needs nvcc and cuobjdump"
)
OTHERS = ("kimi-k2-ep1", "qwen3-next")  # the most experts; the most experts chosen and the smallest layer


def test_hardware_is_what_it_is_compiled_for():
    """A user would miss: a GPU that the solution says it runs on, and refuses."""
    listed = {f"sm_{architecture.replace('.', '')}" for architecture in TARGETS}
    assert set(read_manifest("mma_fused").target_hardware) == listed == set(mma_compiled.recorded())


@NEEDS
@pytest.mark.slow
@pytest.mark.parametrize("architecture", TARGETS)
def test_compiles_as_recorded(architecture, tmp_path):
    """A user would miss: sums spilled to memory, or other instructions than the page says, on a GPU not here."""
    row = mma_compiled.compiled(architecture, tmp_path / "build")
    assert row["spilled"] == 0
    assert row["shared"] <= TARGETS[architecture].smem_kib * 1024
    assert set(row["mma"]) == ({"HMMA.16816.F32"} if row["mma"] or row["architecture"] != "sm_103" else set())
    assert all(name.startswith("UTMALDG" if TARGETS[architecture].tma else "LDGSTS") for name in row["copies"])
    known = mma_compiled.recorded()[row["architecture"]]
    # another release of the compiler may use other registers, and unroll other loops
    assert known["shared"] == row["shared"]
    assert set(known["mma"]) == set(row["mma"])


@NEEDS
@pytest.mark.slow
@pytest.mark.parametrize("geometry", OTHERS)
@pytest.mark.parametrize("architecture", ["8.0", "9.0", "12.0"])
def test_other_definitions_fit(architecture, geometry, tmp_path):
    """A user would miss: a model whose lists of rows do not fit beside the stages."""
    row = mma_compiled.compiled(architecture, tmp_path / "build", geometry)
    assert row["spilled"] == 0
    assert row["shared"] <= TARGETS[architecture].smem_kib * 1024


@NEEDS
@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="with a device it is compiled for that one")
def test_a_submission_for_blackwell_is_compiled_for_it(tmp_path):
    """A user would miss: a bundle whose clean build compiles the kernel of another GPU, or not at all."""
    bundle.write(pack("mma_fused")["full"], tmp_path / "b")
    name = catalogue.definition_name("full")
    assert "CUDA sources compiled and linked by nvcc" in clean_build.build(tmp_path / "b", name, "sm_100")


def test_what_is_compiled_ahead_is_what_was_asked_for(monkeypatch, tmp_path):
    """A user would miss: the same, as the clean build only tells that something was compiled."""
    (folder,) = pack_packages(["mma_fused"], tmp_path, [])
    (folder / "__init__.py").unlink()  # it imports main.py, which compiles
    monkeypatch.syspath_prepend(tmp_path)
    build = importlib.import_module("mma_fused.build")
    for name in [name for name in sys.modules if name.partition(".")[0] == "mma_fused"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for asked, found in (("10.0a", "10.0"), ("12.0 9.0", "12.0"), ("", "9.0")):
        monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", asked)
        assert build.architecture() == found
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "7.5")
    with pytest.raises(RuntimeError, match="mma_fused: the GPU has compute capability 7.5, want one of 8.0, "):
        build.load_kernels()
