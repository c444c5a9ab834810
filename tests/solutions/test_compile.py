"""Every kernel that triton_fused_v2 launches, compiled for GPUs that are not here."""

import json
from functools import cache
from importlib import import_module

import ahead_of_time
import pytest
from harness.core import paths
from harness.packing import manifest
from harness.tuning.record import Record

from solutions.triton_fused_v2.tiles import ARCHITECTURES, by_rule, table_name

# GPUs with a table of their own, as ahead_of_time.py wants them named
HEADS = [Record(path).head for path in sorted(paths.TUNING.glob("*_e32_h7168_i2048.jsonl"))]
TUNED = {f"{head.architecture}:{head.provenance.hardware}": head for head in HEADS}


def ruled(architecture, num_tokens):
    """What the rule chooses for the definition "full", which ahead_of_time.py compiles."""
    multiprocessors = ahead_of_time.MULTIPROCESSORS[architecture]
    return by_rule(architecture, multiprocessors, (32, 7168, 2048), 8 / 256, num_tokens)


# both sides of every border, one permute chunk and many, sizes that are and are not multiples of 16
EDGES = {at + n for a in ARCHITECTURES for at in range(1, 2500) for n in (0, 1) if ruled(a, at) != ruled(a, at + 1)}
TOKENS = tuple(sorted({1, 80, 2000, 11948, 14107} | EDGES))
GEMMS = {"gemm1_swiglu_quant_kernel", "gemm1_kernel", "gemm2_kernel"}
FEW = (80, 2000)  # as few as launch every kernel


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """(architecture, with a GPU or without, and token counts) -> what ahead_of_time.py says of each kernel."""
    folder = tmp_path_factory.mktemp("packed")
    return cache(lambda *machine: ahead_of_time.compiled("triton_fused_v2", "full", *machine, folder))


def at(machines, *few):
    """Test these machines' kernels, in the slow set; a machine's tests share what one worker compiles."""
    cases = [
        pytest.param(machine, tokens, id=f"{machine}-{'all' if tokens == TOKENS else 'few'}", marks=marks)
        for machine, tokens, marks in [
            *((m, FEW, pytest.mark.xdist_group(f"compile {m}")) for m in few),
            *((m, TOKENS, [pytest.mark.slow, pytest.mark.xdist_group(f"compile all {m}")]) for m in machines),
        ]
    ]
    return pytest.mark.parametrize(("machine", "tokens"), cases)


HOPPER = [machine for machine in (*ARCHITECTURES, *TUNED) if machine.startswith("sm_90")]


def describe(kernels):
    return "\n".join(json.dumps(kernel) for kernel in kernels)


@at(ARCHITECTURES, "sm_90")
def test_every_stage_compiles_in_every_tile_of_the_rule(compiled, machine, tokens):
    """A user would miss: the first call at some token count dies in the compiler."""
    kernels = compiled(machine, tokens)
    stages = set(manifest.read_manifest("triton_fused_v2").stages)
    assert {kernel["kernel"] for kernel in kernels} == stages - {"quantise_tokens_kernel"}
    choices = [ruled(machine, num_tokens) for num_tokens in tokens]
    for stage in ("gemm1", "gemm2"):
        tiles = (getattr(choice, stage) for choice in choices)
        assert built(kernels, stage) == {(t.block_m, t.group, t.num_warps, t.num_stages) for t in tiles}


def built(kernels, stage):
    """(BLOCK_M, GROUP, warps, stages) of each of a GEMM's kernels."""
    return {
        (k["constants"]["BLOCK_M"], k["constants"]["GROUP"], k["num_warps"], k["num_stages"])
        for k in kernels
        if k["kernel"].startswith(stage)
    }


@at(TUNED)
def test_a_tuned_gpu_runs_its_table(compiled, machine, tokens):
    """A user would miss: a table under a name that the solution does not look for."""
    head = TUNED[machine]
    name = table_name(head.provenance.hardware, head.local_experts, head.hidden, head.intermediate)
    rows = import_module(f"solutions.triton_fused_v2.{name}").TABLE
    for stage in ("gemm1", "gemm2"):
        fields = ("block_m", "group", "num_warps", "num_stages")
        tabled = {tuple(row[stage][field] for field in fields) for row in rows}
        assert built(compiled(machine, tokens), stage) and built(compiled(machine, tokens), stage) <= tabled


@at([*ARCHITECTURES, *TUNED], "sm_90")
def test_shared_memory_fits(compiled, machine, tokens):
    """A user would miss: "out of resource: shared memory" at launch, on the GPU only."""
    room = ahead_of_time.SHARED_MEMORY[machine.split(":")[0]]
    over = [k for k in compiled(machine, tokens) if k["shared"] > room]
    assert not over, describe(over)


@at(HOPPER, "sm_90")
def test_gemms_use_the_tensor_cores_and_tma(compiled, machine, tokens):
    """A user would miss: a GEMM that fell back to slow instructions on a Hopper GPU."""
    gemms = [k for k in compiled(machine, tokens) if k["kernel"] in GEMMS]
    slow = [k for k in gemms if not k["wgmma"] or not (k["bulk_tensor_copy"] or k["constants"].get("TMA") is False)]
    assert not slow, describe(slow)
    assert {k["kernel"] for k in gemms} == GEMMS


@at([*ARCHITECTURES, *TUNED], "sm_90")
def test_no_spilled_value_is_read(compiled, machine, tokens):
    """A user would miss: a kernel several times slower as its sums left the registers."""
    kernels = compiled(machine, tokens)
    stored = [k for k in kernels if k["stack"] and (machine in HOPPER or k["reloads"] is None)]  # None: not decoded
    read = [k for k in kernels if k["reloads"]]
    assert not stored + read, describe(stored + read)


@pytest.mark.slow
def test_the_routed_form_compiles_as_well(tmp_path):
    """A user would miss: a form that spills, or leaves the tensor cores, where the other one does not."""
    geometry, entry_point = "deepseek-v3-ep8-routed", manifest.read_manifest("triton_fused_v2").bf16_entry_point
    kernels = ahead_of_time.compiled("triton_fused_v2", geometry, "sm_90", FEW, tmp_path, entry_point)
    stages = set(manifest.read_manifest("triton_fused_v2").stages)
    assert {kernel["kernel"] for kernel in kernels} == stages - {"route_kernel"}
    assert not [k for k in kernels if k["stack"]], describe(kernels)
    assert all(k["wgmma"] for k in kernels if k["kernel"] in GEMMS), describe(kernels)
