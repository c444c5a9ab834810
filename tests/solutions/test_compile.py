"""Every kernel that triton_fused_v2 launches, compiled for GPUs that are not here."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest
from harness.core import paths
from harness.packing import manifest, pack
from harness.tuning.record import Record

from solutions.triton_fused_v2.tiles import SEPARATE_SWIGLU_FROM, TABLE, table_name

ARCHITECTURES = sorted({architecture for architecture, _ in TABLE})
# GPUs with a table of their own, as ahead_of_time.py wants them named
HEADS = [Record(path).head for path in sorted(paths.TUNING.glob("*_h7168_i2048.jsonl"))]
TUNED = {f"{head.architecture}:{head.provenance.hardware}": head for head in HEADS}
LIMITS = sorted({limit for rows in TABLE.values() for limit, _ in rows if limit})
# both sides of every border, one permute chunk and many, sizes that are and are not multiples of 16
EDGES = {n for limit in (*LIMITS, SEPARATE_SWIGLU_FROM - 1) for n in (limit, limit + 1)}
TOKENS = sorted({1, 80, 2000, 11948, 14107} | EDGES)
GEMMS = {"gemm1_swiglu_quant_kernel", "gemm1_kernel", "gemm2_kernel"}
SHARED_MEMORY = 227 * 1024  # of one thread block, on sm_90 and on sm_100 alike


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Architecture, also with a tuned GPU -> what ahead_of_time.py says of each kernel; one process for each."""
    solution = pack.pack("triton_fused_v2")["full"]
    folder = tmp_path_factory.mktemp("packed") / "triton_fused_v2"
    for source in solution.sources:
        path = folder / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.content)
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["CUDA_VISIBLE_DEVICES"] = ""  # what is compiled does not depend on the GPU that is here
    script = Path(__file__).parents[1] / "support" / "ahead_of_time.py"

    def compile_for(architecture):
        command = [sys.executable, *script, folder, solution.spec.entry_point, architecture]
        done = subprocess.run([*command, *map(str, TOKENS)], env=env, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]
        return [json.loads(line) for line in done.stdout.splitlines()]

    with ThreadPoolExecutor(2) as pool:
        return dict(zip([*ARCHITECTURES, *TUNED], pool.map(compile_for, [*ARCHITECTURES, *TUNED]), strict=True))


def describe(kernels):
    return "\n".join(json.dumps(kernel) for kernel in kernels)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_stage_compiles_in_every_tabled_tile(compiled, architecture):
    """A user would miss: the first call at some token count dies in the compiler."""
    names = {kernel["kernel"] for kernel in compiled[architecture]}
    declared = manifest.read_manifest("triton_fused_v2").stages
    assert names == set(declared)
    for stage in ("gemm1", "gemm2"):
        built = {
            (k["constants"]["BLOCK_M"], k["constants"]["GROUP"], k["num_warps"], k["num_stages"])
            for k in compiled[architecture]
            if k["kernel"].startswith(stage)
        }
        tabled = {(t.block_m, t.group, t.num_warps, t.num_stages) for _, t in TABLE[architecture, stage]}
        assert built == tabled


@pytest.mark.parametrize("gpu", TUNED)
def test_a_tuned_gpu_runs_its_table(compiled, gpu):
    """A user would miss: a table under a name that the solution does not look for."""
    head = TUNED[gpu]
    name = table_name(head.provenance.hardware, head.local_experts, head.hidden, head.intermediate)
    rows = import_module(f"solutions.triton_fused_v2.{name}").TABLE
    for stage in ("gemm1", "gemm2"):
        fields = ("block_m", "group", "num_warps", "num_stages")
        tabled = {tuple(row[stage][field] for field in fields) for row in rows}
        built = {
            (k["constants"]["BLOCK_M"], k["constants"]["GROUP"], k["num_warps"], k["num_stages"])
            for k in compiled[gpu]
            if k["kernel"].startswith(stage)
        }
        assert built and built <= tabled


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *TUNED])
def test_shared_memory_fits(compiled, architecture):
    """A user would miss: "out of resource: shared memory" at launch, on the GPU only."""
    over = [k for k in compiled[architecture] if k["shared"] > SHARED_MEMORY]
    assert not over, describe(over)


def test_gemms_use_the_tensor_cores_and_tma(compiled):
    """A user would miss: a product that quietly fell back to slow instructions on a Hopper GPU."""
    hopper = [k for name, kernels in compiled.items() if name.startswith("sm_90") for k in kernels]
    gemms = [k for k in hopper if k["kernel"] in GEMMS]
    slow = [k for k in gemms if not k["wgmma"] or not (k["bulk_tensor_copy"] or k["constants"].get("TMA") is False)]
    assert {k["kernel"] for k in gemms} == GEMMS
    assert not slow, describe(slow)


def test_nothing_spills_on_hopper(compiled):
    """A user would miss: a kernel several times slower as its sums left the registers."""
    hopper = [k for name, kernels in compiled.items() if name.startswith("sm_90") for k in kernels]
    spilled = [k for k in hopper if k["stack"] or k["local"]]
    assert not spilled, describe(spilled)
