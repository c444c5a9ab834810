"""The solutions under load (stress.py), and that the delays of its test build are in it."""

import subprocess
import sys
from pathlib import Path

import delays
import pytest
import sass
from loaded import SOLUTIONS
from moebench.packing import pack
from packed_sources import packed_texts

PROGRAM = Path(__file__).with_name("stress.py")


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("solution", SOLUTIONS)
def test_every_call_under_load_is_as_alone(solution):
    command = [sys.executable, PROGRAM, "--solutions", solution]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize(
    "solution", ["hopper_fused_invariant", "hopper_fused", "mma_fused"]
)
def test_a_delayed_build_waits_at_every_barrier(solution):
    texts = packed_texts(solution, "full")
    changed = delays.delayed(texts)

    different = {Path(path).name for path in texts if changed[path] != texts[path]}
    assert different == {"pdl.cuh", "barrier.cuh"}


def test_a_solution_without_barriers_has_no_delayed_build():
    assert not delays.can_be_delayed(pack.pack("triton_fused_v2")["full"])


@pytest.mark.slow
def test_only_the_delayed_build_sleeps(tmp_path):
    texts = packed_texts("hopper_fused_invariant", "full")
    sleeps = {}
    for name, build in {"as_is": texts, "delayed": delays.delayed(texts)}.items():
        (tmp_path / name).mkdir()
        built = sass.compiled(build, "few_rows_gemm1.cu", tmp_path / name, "90a")
        sleeps[name] = "NANOSLEEP" in sass.opcodes(sass.disassemble(built.cubin))
    assert sleeps == {"as_is": False, "delayed": True}
