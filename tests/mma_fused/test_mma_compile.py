"""mma_fused's kernels, compiled for every architecture that it lists, without a GPU."""

import os
import shutil
from functools import cache

import mma_compiled
import mma_small_layer as small
import pytest
import torch
from harness.operators import catalogue
from harness.packing.manifest import read_manifest
from harness.packing.pack import pack
from harness.report.compiled import RECORD, RECORD_MANY
from harness.submission import bundle, clean_build
from harness.tuning.compile_alone import CUOBJDUMP

NEEDS = pytest.mark.skipif(
    shutil.which("nvcc") is None or not os.access(CUOBJDUMP, os.X_OK), reason="needs nvcc and cuobjdump"
)
EVERY_ARCHITECTURE = pytest.mark.parametrize("architecture", small.ARCHITECTURES)
OTHERS = ("kimi-k2-ep1", "qwen3-next")  # the most experts; the most experts chosen and the smallest layer


def shared_memory(architecture):
    """Bytes that a CTA may have."""
    return small.ARCHITECTURES[architecture].smem_kib * 1024


def test_hardware_is_what_it_is_compiled_for():
    """A user would miss: a GPU that the solution says it runs on, and refuses."""
    assert set(read_manifest("mma_fused").target_hardware) == small.ARCHITECTURES.keys()
    for record in (RECORD, RECORD_MANY):
        assert all(mma_compiled.recorded(record, architecture) for architecture in small.ARCHITECTURES)


# ---- the one launch ----


@NEEDS
@pytest.mark.slow
@EVERY_ARCHITECTURE
def test_one_launch_compiles_as_recorded(architecture, tmp_path):
    """A user would miss: sums spilled to memory, or other instructions than the page says, on a GPU not here."""
    row = mma_compiled.one_launch(architecture, tmp_path / "build")
    assert row["shared"] <= shared_memory(architecture)
    assert set(row["mma"]) == ({"HMMA.16816.F32"} if row["mma"] or architecture != "sm_103" else set())
    tma = small.ARCHITECTURES[architecture].tma
    assert all(name.startswith("UTMALDG" if tma else "LDGSTS") for name in row["copies"])
    (known,) = mma_compiled.recorded(RECORD, architecture)
    # another release of the compiler may use other registers, and unroll other loops
    assert known["shared"] == row["shared"]
    assert set(known["mma"]) == set(row["mma"])
    assert row["spilled"] == 0


@NEEDS
@pytest.mark.slow
@pytest.mark.parametrize("geometry", OTHERS)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_120"])
def test_other_definitions_fit(architecture, geometry, tmp_path):
    """A user would miss: a model whose lists of rows do not fit beside the stages."""
    row = mma_compiled.one_launch(architecture, tmp_path / "build", geometry)
    assert row["shared"] <= shared_memory(architecture)
    assert row["spilled"] == 0


@NEEDS
@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="with a device it is compiled for that one")
def test_a_submission_for_blackwell_is_compiled_for_it(tmp_path):
    """A user would miss: a bundle whose clean build compiles the kernel of another GPU, or not at all."""
    bundle.write(pack("mma_fused")["full"], tmp_path / "b")
    name = catalogue.definition_name("full")
    assert "CUDA sources compiled and linked by nvcc" in clean_build.build(tmp_path / "b", name, "sm_100")


def test_what_is_compiled_ahead_is_what_was_asked_for(import_packed, monkeypatch, no_gpu):
    """A user would miss: the same, as the clean build only tells that something was compiled."""
    build = import_packed("mma_fused.build")
    for asked, found in (("10.0a", "10.0"), ("12.0 9.0", "12.0"), ("", "9.0")):
        monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", asked)
        assert build.architecture() == found
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "7.5")
    with pytest.raises(RuntimeError, match="mma_fused: the GPU has compute capability 7.5, want one of 8.0, "):
        build.load_kernels()


# ---- above 256 tokens ----


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """mma_compiled.many_tokens, each once."""
    return cache(lambda architecture, *of: mma_compiled.many_tokens(architecture, tmp_path_factory.mktemp("of"), *of))


@pytest.mark.slow
@EVERY_ARCHITECTURE
def test_many_tokens_compile_as_recorded(compiled, architecture):
    """A user would miss: sums spilled to memory, or a launch that asks for more shared memory than there is."""
    kernels = compiled(architecture)
    assert [k for k in kernels if k["reloads"] or (k["reloads"] is None and k["stack"])] == []
    assert [k for k in kernels if k["shared"] > shared_memory(architecture)] == []
    rows = mma_compiled.gemm_rows(architecture, kernels)
    # another release of the compiler may use other registers
    assert [r | {"registers": 0} for r in mma_compiled.recorded(RECORD_MANY, architecture)] == [
        r | {"registers": 0} for r in rows
    ]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_100"])
def test_the_routed_form_compiles_as_well(compiled, architecture):
    """A user would miss: a form that spills where the other one does not."""
    kernels = compiled(architecture, "many_tokens/layer.py::many_tokens_routed", "deepseek-v3-ep8-routed")
    assert mma_compiled.gemm_rows(architecture, kernels)
    assert [k for k in kernels if k["reloads"]] == []
