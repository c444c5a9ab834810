"""The barriers of hopper_fused's grouped GEMMs: their source runs on the host (hopper_machine.cc),
where every access to shared memory must be ordered.

racecheck does not follow one lane that releases a stage for its warp; this machine does. It also
leaves out each call that synchronises, one at a time, and must then find something wrong.

The one launch for few tokens does not run here: its CTAs hand rows and h over through global
memory, by counters, which this machine does not look at. Its barriers are tried on the GPU, by
tests/stress, and its releases in machine code by tests/kernels/test_released_in_flight.py.
"""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from packed_sources import CUDA, packed_texts, with_one_replaced

HERE = Path(__file__).parent
STAND_IN = f'#pragma once\n#include "{HERE / "hopper_on_host.h"}"\n'
STOOD_IN_FOR = [
    "cuda.h",
    "cuda_runtime.h",
    "barrier.cuh",
    "barriers.cuh",
    "cluster.cuh",
    "counter.cuh",
    "cp_async.cuh",
    "l2.cuh",
    "launch.cuh",
    "numerics.cuh",
    "pdl.cuh",
    "read_bits.cuh",
    "registers.cuh",
    "smem_addr.cuh",
    "tma.cuh",
]
STMATRIX = re.compile(r'asm volatile\("stmatrix.*?: "memory"\);', re.DOTALL)
SHARED_MEMORY = "extern __shared__ __align__(1024) uint8_t gemm_smem[];"

# Normal tiles with and without a pair, swap-AB tiles, one of them before a normal one, a warpgroup
# without rows, an expert without.
ROWS = [176, 384, 48, 272, 80, 0, 64]
FEW_ROWS = [272, 80, 48]
# H and I: fewer K blocks than a pipeline has stages, as many, more. In gemm1 4, 1, 8, 4; in gemm2
# 2, 1, 6, 4.
SIZES = (512, 256)
OTHER_SIZES = [(128, 128), (1024, 768), (512, 512)]
# Experts so narrow that normal tiles of y are stored by TMA: 2 K blocks in gemm2, and 1 and 3, for
# which gemm1 leaves an n_block out.
NARROW = (2048, 256)
OTHER_SIZES += [NARROW, (1024, 128), (3072, 384)]
# Another fence comes between this one and the first copy that uses the barriers.
NOT_MISSED = {1: {"fence_barrier_init"}, 2: set()}

# one worker builds the programs
pytestmark = pytest.mark.xdist_group("hopper barriers")


def device_code(name, text):
    """Return a packed file's text as the host compiles it."""
    if name == "wgmma.cuh":
        layouts, _, _ = text.partition("// ---- fences ----")
        return layouts + STAND_IN.replace("#pragma once\n", "")
    if name == "grouped_gemm.cuh":
        return with_one_replaced(
            text, SHARED_MEMORY, "uint8_t* gemm_smem = shared_memory();"
        )
    if name.endswith(".cu"):
        device, _, _ = text.partition("// ---- host ----")
        return f"{device}}}  // namespace hopper_fused\n"
    return STMATRIX.sub("stmatrix(at);", text)


def write_sources(folder, hidden_size, intermediate_size):
    for path, text in packed_texts("hopper_fused", "small", CUDA).items():
        name = Path(path).name
        (folder / name).write_text(device_code(name, text))
    for name in STOOD_IN_FOR:
        (folder / name).write_text(STAND_IN)

    problem = (folder / "problem.cuh").read_text()
    problem = with_one_replaced(problem, "kHidden = 512", f"kHidden = {hidden_size}")
    problem = with_one_replaced(
        problem, "kIntermediate = 256", f"kIntermediate = {intermediate_size}"
    )
    (folder / "problem.cuh").write_text(problem)


@pytest.fixture(scope="module")
def program_for(tmp_path_factory):
    """A function of H and I that returns the program of a layer of these sizes, built once."""
    return cache(lambda *sizes: build_program(sizes, tmp_path_factory.mktemp("gemms")))


def build_program(sizes, folder):
    """Build the program that both GEMMs make for a layer of these sizes."""
    write_sources(folder, *sizes)
    compiler = ["c++", "-std=c++17", "-w", f"-I{folder}"]
    kernels = folder / "gemms.o"
    # The kernels' accesses are reported to hopper_machine.cc, whose own are not.
    instrumented = [
        "-O1",
        "-fsanitize=thread",
        "-c",
        HERE / "hopper_gemms.cc",
        "-o",
        kernels,
    ]
    subprocess.run([*compiler, *instrumented], check=True)
    machine = ["-O3", HERE / "hopper_machine.cc", kernels, "-o", folder / "program"]
    subprocess.run([*compiler, *machine], check=True)
    return folder / "program"


def run(program, gemm, h_split, rows, seed=0, without=""):
    """Return the finished process: the places that synchronise, or what is wrong and status 1."""
    command = map(str, [program, gemm, h_split, seed, without, *rows])
    return subprocess.run(list(command), capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("h_split", [1, 2])
@pytest.mark.parametrize("gemm", [1, 2])
def test_every_byte_is_ordered(program_for, gemm, h_split):
    done = run(program_for(*SIZES), gemm, h_split, ROWS)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_every_byte_of_narrow_experts_is_ordered(program_for):
    done = run(program_for(*NARROW), 2, 1, ROWS)
    assert done.returncode == 0, done.stdout


# Sizes decide the K blocks and h_split what is stored: each is tried with one of the other.
SIZES_AND_SPLITS = [(SIZES, 1), (SIZES, 2)]
for number, sizes in enumerate(OTHER_SIZES):
    SIZES_AND_SPLITS.append((sizes, 1 + number % 2))


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "h_split"), SIZES_AND_SPLITS)
@pytest.mark.parametrize("gemm", [1, 2])
def test_every_byte_is_ordered_in_other_orders(program_for, gemm, sizes, h_split):
    rows = ROWS[h_split:] + ROWS[:h_split]
    done = run(program_for(*sizes), gemm, h_split, rows, seed=h_split)
    assert done.returncode == 0, done.stdout


def not_missed(program, gemm, h_split, rows, places):
    """Return the functions that may be left out, one place at a time, without a fault."""
    functions = set()
    for place in places:
        if run(program, gemm, h_split, rows, without=place).returncode == 0:
            functions.add(place.partition(" ")[2])
    return functions


@pytest.mark.slow
@pytest.mark.parametrize("gemm", [1, 2])
def test_each_synchronisation_is_missed(program_for, gemm):
    program = program_for(*SIZES)
    places = run(program, gemm, 2, FEW_ROWS).stdout.splitlines()
    assert len(places) > 8

    assert not_missed(program, gemm, 2, FEW_ROWS, places) == NOT_MISSED[gemm]


@pytest.mark.slow
def test_each_synchronisation_of_narrow_experts_is_missed(program_for):
    program = program_for(*NARROW)
    rows = [176, *FEW_ROWS]
    places = run(program, 2, 1, rows).stdout.splitlines()
    assert any("bulk_wait_read_but" in place for place in places)

    assert not_missed(program, 2, 1, rows, places) == set()
