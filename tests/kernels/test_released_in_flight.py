"""No kernel gives shared memory back while a load from it may be in flight, on any path of its
machine code; and none reads past L1's coherence what the kernel before may still write.
"""

import os
import shutil

import pytest
import sass
from every_solution import slow
from moebench.packing import pack

from solutions.mma_fused.targets import TARGETS

pytestmark = pytest.mark.skipif(
    shutil.which("nvcc") is None or not os.access(sass.NVDISASM, os.X_OK),
    reason="needs nvcc and nvdisasm",
)

# one rank of 32 experts; 128 small experts with top-k given; few experts, clamped; widths that are
# no whole pairs of tiles; 512 experts of I 512 or 1024, as tensor parallelism makes them
DEFINITIONS = (
    "full",
    "qwen3-30b-routed",
    "minimax-m3-ep8",
    "small-one-group",
    "qwen3.5-35b",
    "qwen3.5-397b-routed",
)
FILES = {
    "hopper_fused": (
        "few_tokens/fused_layer.cu",
        "many_tokens/grouped_gemm1.cu",
        "many_tokens/grouped_gemm2.cu",
    ),
    "hopper_fused_invariant": ("few_rows_gemm1.cu",),
}
QUICK = ("full", "few_rows_gemm1.cu")
# weights that consumers read themselves
MXFP4 = ("deepseek-v4-flash-mxfp4", "deepseek-v4-pro-ep8-mxfp4", "small-mxfp4")
HOPPER = []
for solution, files in FILES.items():
    for file in files:
        for definition in DEFINITIONS:
            marks = () if (definition, file) == QUICK else pytest.mark.slow
            HOPPER.append(pytest.param(solution, definition, file, marks=marks))
MXFP4_FILES = (
    "few_tokens/fused_layer.cu",
    "many_tokens/mxfp4/mxfp4_gemm1.cu",
    "many_tokens/mxfp4/mxfp4_gemm2.cu",
)
for definition in MXFP4:
    HOPPER += [slow("hopper_fused", definition, file) for file in MXFP4_FILES]


def texts_of(solution, definition):
    return {file.path: file.content for file in pack.pack(solution)[definition].sources}


@pytest.mark.parametrize(("solution", "definition", "file"), HOPPER)
def test_a_stage_is_read_when_it_is_released(solution, definition, file, tmp_path):
    cubin = sass.compile_cubin(texts_of(solution, definition), file, tmp_path, "90a")
    functions = sass.disassemble(cubin)

    arrivals = [each for code in functions.values() for each in code if sass.is_arrival(each)]
    assert arrivals
    assert sass.released_in_flight(cubin) == set()


@pytest.mark.slow
@pytest.mark.parametrize("definition", ["full", "qwen3-30b-routed", "minimax-m3-ep8"])
@pytest.mark.parametrize("capability", ["8.0", "8.9", "9.0", "12.0"])
def test_a_warp_refills_a_stage_that_it_has_read(definition, capability, tmp_path):
    texts = texts_of("mma_fused", definition)
    flags = TARGETS[capability].flags()
    architecture = capability.replace(".", "")
    cubin = sass.compile_cubin(texts, "one_launch/fused_layer.cu", tmp_path, architecture, flags)
    functions = sass.disassemble(cubin)

    copies = [each for code in functions.values() for each in code if sass.is_copy(each)]
    assert bool(copies) == TARGETS[capability].tma
    assert sass.released_in_flight(cubin) == set()


def without_what_was_read(texts):
    """The sources as they were: an arrival that depends on nothing."""
    changed = dict(texts)
    for path, text in texts.items():
        if path.endswith(("/barrier.cuh", "/cluster.cuh")):
            changed[path] = text.replace("read_bits(read...)", "0u")
    assert changed != texts
    return changed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solution", "file"),
    [
        ("hopper_fused_invariant", "few_rows_gemm1.cu"),
        ("hopper_fused", "few_tokens/fused_layer.cu"),
    ],
)
def test_a_release_that_depends_on_nothing_is_found(solution, file, tmp_path):
    texts = without_what_was_read(texts_of(solution, "full"))
    cubin = sass.compile_cubin(texts, file, tmp_path, "90a")

    assert sass.released_in_flight(cubin)


@pytest.mark.parametrize(
    ("definition", "file"),
    [
        ("full", "many_tokens/route_permute.cu"),
        slow("qwen3-30b-routed", "many_tokens/route_permute.cu"),
        slow("full", "few_tokens/fused_layer.cu"),
        slow("qwen3-30b-routed", "few_tokens/fused_layer.cu"),
        slow("small-mxfp4", "many_tokens/mxfp4/order_tokens.cu"),
    ],
)
def test_kernels_that_overlap_the_caller_read_coherently(definition, file, tmp_path):
    cubin = sass.compile_cubin(texts_of("hopper_fused", definition), file, tmp_path, "90a")
    assert set(sass.read_only_loads(cubin).values()) == {0}


# ---- the analysis itself ----

# Machine code is too long to keep; this is its form, with the control bits of each instruction.
WAITS_FOR_0 = 1 << 11
WRITES_0 = 0 << 5
NOTHING = sass.NO_SCOREBOARD << 5


def instruction(address, opcode, operands="", control=NOTHING, guard=None):
    return sass.Instruction(f"{address:04x}", guard, opcode, operands, control)


def in_flight(instructions, labels=None):
    sass.connect(instructions, labels or {})
    return sass.loads_in_flight("kernel", instructions, sass.is_arrival)


LOAD = ("LDS.64", "R2, [R4]", WRITES_0)
ARRIVE = ("SYNCS.ARRIVE.TRANS64.A1T0", "RZ, [R5], RZ")


def test_a_load_that_nobody_has_waited_for_is_in_flight():
    code = [instruction(0, *LOAD), instruction(16, *ARRIVE), instruction(32, "EXIT")]
    assert [at.load for at in in_flight(code)] == ["0000: LDS.64 R2, [R4]"]


def test_a_wait_before_the_arrival_or_at_it_ends_the_load():
    used = instruction(16, "FMUL", "R6, R2, R2", NOTHING | WAITS_FOR_0)
    before = [instruction(0, *LOAD), used, instruction(32, *ARRIVE), instruction(48, "EXIT")]
    assert not in_flight(before)

    waits = instruction(16, *ARRIVE, NOTHING | WAITS_FOR_0)
    assert not in_flight([instruction(0, *LOAD), waits, instruction(32, "EXIT")])


def test_a_load_of_the_previous_turn_of_a_loop_is_seen():
    arrive = instruction(0, *ARRIVE)
    load = instruction(16, *LOAD)
    back = instruction(32, "BRA", "`(.L_x_0)", guard="@P0")
    code = [arrive, load, back, instruction(48, "EXIT")]
    assert len(in_flight(code, {".L_x_0": arrive})) == 1


def test_one_branch_that_waits_is_not_enough():
    load = instruction(0, *LOAD)
    skip = instruction(16, "BRA", "`(.L_x_0)", guard="@P0")
    use = instruction(32, "FMUL", "R6, R2, R2", NOTHING | WAITS_FOR_0)
    arrive = instruction(48, *ARRIVE)
    code = [load, skip, use, arrive, instruction(64, "EXIT")]
    assert len(in_flight(code, {".L_x_0": arrive})) == 1


def test_a_branch_without_targets_is_refused():
    with pytest.raises(ValueError, match="without targets"):
        sass.connect([instruction(0, "BRX", "R2 -0x10")], {})
