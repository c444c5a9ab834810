"""hopper_fused's CUDA sources, compiled for sm_90a without a GPU: none gives up speed, releases a
stage while it is read, or reads past L1's coherence what the kernel before may still write.
"""

import re
import subprocess
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
import sass
from moebench.core import paths
from packed_sources import include_flags, packed_texts, write_texts

FOLDER = paths.SOLUTIONS / "hopper_fused"
# What ptxas says where it makes wgmma wait for each other, and where it ignores setmaxnreg.
GIVEN_UP = re.compile(r"C75\d\d|serializ|setmaxnreg.*ignored", re.IGNORECASE)
SPILLED = re.compile(r"(\d+) bytes spill stores")
UNIQUE_SYMBOL = re.compile(r" u (?:guard variable for )?(\w+)")
MOST_SPILLED = 64  # bytes: the loading threads keep a few addresses in memory
# 128 rows' sums leave too few registers, 20 words of which spill in the loop; the paths for unusual
# scales spill more.
MOST_SPILLED_MXFP4 = 1300
# The threads that load and convert have 40 and 56 registers.
MOST_SPILLED_CONVERTED = 240

ONE_LAUNCH = "few_tokens/fused_layer.cu"
ROUTE = "many_tokens/route_permute.cu"
ORDER = "many_tokens/mxfp4/order_tokens.cu"
FP8_GEMMS = ["many_tokens/grouped_gemm1.cu", "many_tokens/grouped_gemm2.cu"]
MXFP4_GEMMS = ["many_tokens/mxfp4/mxfp4_gemm1.cu", "many_tokens/mxfp4/mxfp4_gemm2.cu"]
CONVERTED = "many_tokens/mxfp4/converted"
CONVERTED_GEMMS = [f"{CONVERTED}/converted_gemm1.cu", f"{CONVERTED}/converted_gemm2.cu"]
QUEUE_UNUSUAL = f"{CONVERTED}/queue_unusual.cu"
FP8_SOURCES = [ONE_LAUNCH, ROUTE, *FP8_GEMMS, "many_tokens/combine.cu"]
MXFP4_SOURCES = [
    ONE_LAUNCH,
    ROUTE,
    ORDER,
    *MXFP4_GEMMS,
    *CONVERTED_GEMMS,
    QUEUE_UNUSUAL,
]
MXFP4_SOURCES += ["many_tokens/combine.cu", "few_tokens/mxfp4/add_rows.cu"]
HOST_SOURCES = ["launch_layer.cu", "few_tokens/all_reduce/open_peers.cu"]
MULTIPLYING = {ONE_LAUNCH, *FP8_GEMMS, *MXFP4_GEMMS, *CONVERTED_GEMMS}
# They begin before the caller's last kernel has ended.
OVERLAPPING = {ONE_LAUNCH, ROUTE, ORDER}
# The scales of h of a thread's two rows are two loads, LDS R0 and LDS R2 behind it. In the loop the
# code waits for the second alone before both are used, as loads of a warp from shared memory end in
# order. The finder takes each load by itself, and names the first.
WAITS_FOR_LATER_LOAD = ("deepseek-v4-pro-ep8-mxfp4", f"{CONVERTED}/converted_gemm2.cu")
QUICK = ("full", ROUTE)  # seconds; the others are in the slow set

# no output columns shared; most shared; widths of odd blocks; I 3072 and another activation; 512
# experts of I 1024, top-k given
FP8_LAYERS = [
    "full",
    "qwen3-next",
    "small-one-group",
    "minimax-m3-ep8",
    "qwen3.5-397b-routed",
]
NARROW = "qwen3-235b-tp4"  # H is ten times I: another gemm1, the rest as the others
MXFP4_LAYERS = ["deepseek-v4-pro-ep8-mxfp4", "small-mxfp4"]
HOST_CODE_OF = ("full", MXFP4_LAYERS[0])  # whose host code is that of all
# Their consumers load the weights themselves, which nobody writes to.
READ_WEIGHTS = [(layer_key, ONE_LAUNCH) for layer_key in MXFP4_LAYERS]
CASES = [("full", source) for source in HOST_SOURCES]
CASES.append(("deepseek-v4-pro-ep8-mxfp4", "launch_layer.cu"))
CASES += product(FP8_LAYERS, FP8_SOURCES)
CASES += product([NARROW], FP8_GEMMS)
CASES += product(MXFP4_LAYERS, MXFP4_SOURCES)


@dataclass(frozen=True)
class Compiled:
    """A source as nvcc compiles it."""

    cubin: Path
    object_file: Path | None  # of HOST_CODE_OF alone
    log: str  # what ptxas said


def compiled(layer_key, source, folder):
    """Compile a packed source in a folder; return the result."""
    write_texts(folder, packed_texts("hopper_fused", layer_key))
    target = "-gencode=arch=compute_90a,code=sm_90a"
    command = [
        "nvcc",
        "-std=c++17",
        "-O2",
        "-Xcompiler",
        "-fPIC",
        target,
        "-Xptxas",
        "-v",
    ]
    command += include_flags(folder)

    object_file = None
    cubins = folder / "cubins"
    cubins.mkdir()
    if layer_key in HOST_CODE_OF:
        object_file = folder / "kernel.o"
        command += [
            "-keep",
            "-keep-dir",
            cubins,
            "-c",
            folder / source,
            "-o",
            object_file,
        ]
    else:
        command += ["-cubin", folder / source, "-o", cubins / "kernel.cubin"]

    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (cubin,) = cubins.glob("*.cubin")
    return Compiled(cubin, object_file, done.stderr)


def unique_symbols(object_file):
    """Return the namespaces of variables that all libraries of a process share."""
    command = ["nm", "-C", object_file]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return set(UNIQUE_SYMBOL.findall(symbols))


def parameters():
    """Return the cases, of which all but QUICK are slow."""
    listed = []
    for case in CASES:
        marks = [] if case == QUICK else [pytest.mark.slow]
        listed.append(pytest.param(*case, marks=marks))
    return listed


def test_every_source_is_compiled():
    files = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.cu")}
    assert files == {source for _, source in CASES}


@sass.needs_compilers
@pytest.mark.slow
@pytest.mark.parametrize("source", [*MXFP4_GEMMS, *CONVERTED_GEMMS, QUEUE_UNUSUAL])
def test_an_fp8_layer_has_no_kernel_for_mxfp4_weights(source, tmp_path):
    assert sass.disassemble(compiled(NARROW, source, tmp_path).cubin) == {}


def check_speed(source, log, opcodes):
    """Check that products do not wait for each other, and that sums are not spilled."""
    assert not GIVEN_UP.search(log), log
    most_spilled = MOST_SPILLED
    if source in MXFP4_GEMMS:
        most_spilled = MOST_SPILLED_MXFP4
    elif source in CONVERTED_GEMMS:
        most_spilled = MOST_SPILLED_CONVERTED
    for spilled in SPILLED.findall(log):
        assert int(spilled) <= most_spilled, log
    if source in MULTIPLYING:
        assert {"QGMMA", "UTMALDG"} <= opcodes


@sass.needs_compilers
@pytest.mark.parametrize(("layer_key", "source"), parameters())
def test_machine_code_is_quick_and_releases_nothing_too_early(
    layer_key, source, tmp_path
):
    result = compiled(layer_key, source, tmp_path)
    functions = sass.disassemble(result.cubin)

    check_speed(source, result.log, sass.opcodes(functions))
    loads = sass.released_in_flight(functions)
    assert len(loads) == ((layer_key, source) == WAITS_FOR_LATER_LOAD)
    if source in MULTIPLYING:
        assert sass.arrivals(functions)
    if source in OVERLAPPING and (layer_key, source) not in READ_WEIGHTS:
        counts = sass.read_only_loads(functions)
        assert set(counts.values()) == {0}
    # Another definition's library would find its scratch in such a variable.
    if result.object_file:
        assert unique_symbols(result.object_file) <= {"std", "tvm"}
