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
        layer_key,
        name,
        marks=() if layer_key == "full" and name.endswith(QUICK) else pytest.mark.slow,
    )
    # no output columns shared; most shared; top-k given; widths of odd blocks; I 3072 and another
    # activation; MXFP4 weights
    for layer_key in (
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


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
@pytest.mark.parametrize(("layer_key", "source"), SOURCES)
def test_compiles_without_giving_up_speed(layer_key, source, tmp_path):
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
    for file in pack.pack("hopper_fused")[layer_key].sources:
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
    assert all(int(spilled) <= MOST_SPILLED for spilled in SPILLED.findall(done.stderr)), (
        done.stderr
    )
    if source.endswith(("fused_layer.cu", "grouped_gemm1.cu", "grouped_gemm2.cu")) and os.access(
        CUOBJDUMP, os.X_OK
    ):
        code = subprocess.run([CUOBJDUMP, "-sass", built], capture_output=True, text=True).stdout
        assert "QGMMA" in code and "UTMALDG" in code
    # A variable that all libraries of a process share: another definition's library would find its
    # scratch in it.
    symbols = subprocess.run(["nm", "-C", built], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r" u (?:guard variable for )?(\w+)", symbols)) <= {"std", "tvm"}
