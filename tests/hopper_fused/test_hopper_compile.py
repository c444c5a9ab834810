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
QUICK = ("combine.cu", "route_permute.cu")  # a few seconds each; the others are in the slow set
SOURCES = [
    pytest.param(
        geometry,
        name,
        marks=() if geometry == "full" and name.endswith(QUICK) else pytest.mark.slow,
    )
    # no output columns shared; most shared; top-k given; widths of odd blocks; I 3072 and another
    # activation; MXFP4 weights
    for geometry in (
        "full",
        "qwen3-next",
        "deepseek-v3-ep8-routed",
        "small-one-group",
        "minimax-m3-ep8",
        "deepseek-v4-pro-ep8-mxfp4",
    )
    for name in sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.cu"))
]
MOST_SPILLED = 64  # bytes: the loading threads keep a few addresses in memory
# 128 rows' sums leave too few registers, 20 words of which spill in the loop; the paths for unusual
# scales spill more.
MOST_SPILLED_MXFP4 = 1300


MXFP4_GEMMS = ("many_tokens/mxfp4_gemm1.cu", "many_tokens/mxfp4_gemm2.cu")
FP8_GEMMS = ("many_tokens/grouped_gemm1.cu", "many_tokens/grouped_gemm2.cu")


def multiplying_sources(geometry):
    """Return the files of which a layer compiles kernels with wgmma; others' are empty."""
    gemms = MXFP4_GEMMS if geometry.endswith("-mxfp4") else FP8_GEMMS
    return ("few_tokens/fused_layer.cu", *gemms)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
@pytest.mark.parametrize(("geometry", "source"), SOURCES)
def test_compiles_without_giving_up_speed(geometry, source, tmp_path):
    """A change that serialises the products or spills their sums would show only as a slower table,
    on a GPU.
    """
    built = tmp_path / "kernel.o"
    includes = {tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path()}
    command = [
        "nvcc",
        "-std=c++17",
        "-O2",
        "-Xcompiler",
        "-fPIC",
        "-gencode=arch=compute_90a,code=sm_90a",
    ]
    command += ["-Xptxas", "-v"]
    for file in pack.pack("hopper_fused")[geometry].sources:
        path = tmp_path / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.content)
        includes.add(str(path.parent))
    command += [f"-I{folder}" for folder in sorted(includes)] + [
        "-c",
        str(tmp_path / source),
        "-o",
        str(built),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not GIVEN_UP.search(done.stderr), done.stderr
    most_spilled = MOST_SPILLED_MXFP4 if source in MXFP4_GEMMS else MOST_SPILLED
    assert all(int(spilled) <= most_spilled for spilled in SPILLED.findall(done.stderr)), (
        done.stderr
    )
    if source in multiplying_sources(geometry) and os.access(CUOBJDUMP, os.X_OK):
        code = subprocess.run([CUOBJDUMP, "-sass", built], capture_output=True, text=True).stdout
        assert "QGMMA" in code and "UTMALDG" in code
    # A variable that all libraries of a process share: another definition's library would find its
    # scratch in it.
    symbols = subprocess.run(["nm", "-C", built], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r" u (?:guard variable for )?(\w+)", symbols)) <= {"std", "tvm"}
