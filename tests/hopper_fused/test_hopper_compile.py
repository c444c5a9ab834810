"""hopper_fused's CUDA sources, compiled for sm_90a without a GPU."""

import os
import re
import shutil
import subprocess

import pytest
import tvm_ffi.libinfo
from ahead_of_time import CUOBJDUMP
from moebench.core import paths
from moebench.packing import pack

FOLDER = paths.SOLUTIONS / "hopper_fused"
# What ptxas says where it makes wgmma wait for each other, and where it ignores setmaxnreg.
GIVEN_UP = re.compile(r"C75\d\d|serializ|setmaxnreg.*ignored", re.IGNORECASE)
SPILLED = re.compile(r"(\d+) bytes spill stores")
UNIQUE_SYMBOL = re.compile(r" u (?:guard variable for )?(\w+)")
MOST_SPILLED = 64  # bytes: the loading threads keep a few addresses in memory
# 128 rows' sums leave too few registers, 20 words of which spill in the loop; the paths for unusual
# scales spill more.
MOST_SPILLED_MXFP4 = 1300

MXFP4_GEMMS = ("many_tokens/mxfp4/mxfp4_gemm1.cu", "many_tokens/mxfp4/mxfp4_gemm2.cu")
FP8_GEMMS = ("many_tokens/grouped_gemm1.cu", "many_tokens/grouped_gemm2.cu")
QUICK = "combine.cu"  # a few seconds; the others are in the slow set
# no output columns shared; most shared; top-k given; widths of odd blocks; I 3072 and another
# activation; MXFP4 weights
LAYER_KEYS = [
    "full",
    "qwen3-next",
    "deepseek-v3-ep8-routed",
    "small-one-group",
    "minimax-m3-ep8",
    "deepseek-v4-pro-ep8-mxfp4",
]
SOURCES = []
for layer_key in LAYER_KEYS:
    for path in sorted(FOLDER.rglob("*.cu")):
        quick = layer_key == "full" and path.name == QUICK
        marks = () if quick else pytest.mark.slow
        name = path.relative_to(FOLDER).as_posix()
        SOURCES.append(pytest.param(layer_key, name, marks=marks))


def compiled(layer_key, source, folder):
    """Return the object file of a packed source, and what ptxas said."""
    includes = {tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path()}
    for file in pack.pack("hopper_fused")[layer_key].sources:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.content)
        includes.add(str(path.parent))

    target = "-gencode=arch=compute_90a,code=sm_90a"
    command = ["nvcc", "-std=c++17", "-O2", "-Xcompiler", "-fPIC", target, "-Xptxas", "-v"]
    command += [f"-I{include}" for include in sorted(includes)]
    command += ["-c", folder / source, "-o", folder / "kernel.o"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "kernel.o", done.stderr


def multiplying_sources(layer_key):
    """Return the files of which a layer compiles kernels with wgmma; others' are empty."""
    gemms = MXFP4_GEMMS if layer_key.endswith("-mxfp4") else FP8_GEMMS
    return ("few_tokens/fused_layer.cu", *gemms)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
@pytest.mark.parametrize(("layer_key", "source"), SOURCES)
def test_compiles_without_giving_up_speed(layer_key, source, tmp_path):
    """Products that wait for each other, or sums that are spilled, are a slower table."""
    kernel, log = compiled(layer_key, source, tmp_path)
    assert not GIVEN_UP.search(log), log
    most_spilled = MOST_SPILLED_MXFP4 if source in MXFP4_GEMMS else MOST_SPILLED
    assert all(int(spilled) <= most_spilled for spilled in SPILLED.findall(log)), log

    if source in multiplying_sources(layer_key) and os.access(CUOBJDUMP, os.X_OK):
        code = subprocess.run([CUOBJDUMP, "-sass", kernel], capture_output=True, text=True).stdout
        assert "QGMMA" in code
        assert "UTMALDG" in code
    # A variable that all libraries of a process share: another definition's library would find its
    # scratch in it.
    command = ["nm", "-C", kernel]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert set(UNIQUE_SYMBOL.findall(symbols)) <= {"std", "tvm"}
