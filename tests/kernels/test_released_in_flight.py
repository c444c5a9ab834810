"""No kernel gives shared memory back while a load from it may be in flight, on any path of its
machine code: the analysis itself (sass.py), and what is compiled nowhere else.

hopper_fused's kernels are looked at where they are compiled, tests/hopper_fused/
test_hopper_compile.py, and mma_fused's in tests/mma_fused/test_mma_compile.py.
"""

import pytest
import sass
from every_solution import slow
from packed_sources import packed_texts

SOLUTION = "hopper_fused_invariant"
FILE = "few_rows_gemm1.cu"
# one rank of 32 experts; 128 small experts with top-k given; few experts, clamped; widths that are
# no whole pairs of tiles; 512 experts of I 512 or 1024, as tensor parallelism makes them
DEFINITIONS = [
    "full",
    slow("qwen3-30b-routed"),
    slow("minimax-m3-ep8"),
    slow("small-one-group"),
    slow("qwen3.5-35b"),
    slow("qwen3.5-397b-routed"),
]


def machine_code(texts, folder):
    """Return function -> instructions of FILE in a solution's sources."""
    return sass.disassemble(sass.compiled(texts, FILE, folder, "90a").cubin)


@sass.needs_compilers
@pytest.mark.parametrize("definition", DEFINITIONS)
def test_a_stage_is_read_when_it_is_released(definition, tmp_path):
    functions = machine_code(packed_texts(SOLUTION, definition), tmp_path)
    assert sass.arrivals(functions)
    assert sass.released_in_flight(functions) == set()


def without_what_was_read(texts):
    """Return the sources as they were: an arrival that depends on nothing."""
    changed = dict(texts)
    for path, text in texts.items():
        if path.endswith(("/barrier.cuh", "/cluster.cuh")):
            changed[path] = text.replace("read_bits(read...)", "0u")
    assert changed != texts
    return changed


@sass.needs_compilers
@pytest.mark.slow
def test_a_release_that_depends_on_nothing_is_found(tmp_path):
    texts = without_what_was_read(packed_texts(SOLUTION, "full"))
    assert sass.released_in_flight(machine_code(texts, tmp_path))


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
    assert [each.load for each in in_flight(code)] == ["0000: LDS.64 R2, [R4]"]


def test_a_wait_before_the_arrival_or_at_it_ends_the_load():
    used = instruction(16, "FMUL", "R6, R2, R2", NOTHING | WAITS_FOR_0)
    before = [
        instruction(0, *LOAD),
        used,
        instruction(32, *ARRIVE),
        instruction(48, "EXIT"),
    ]
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
