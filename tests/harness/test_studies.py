"""The generated blocks of docs/w16a16.md and docs/mxfp8.md: what was recorded, and what of it is stale."""

import re

import pytest
from harness.core import paths
from harness.core.provenance import Provenance
from harness.packing import pack
from harness.profiling.record import Counters, KernelTime, ProfileRecord, StageTime, WorkloadProfile, read_records
from harness.report import studies

STYLES = ("align_fused_bf16", "gather_scatter_bf16")


def rows(block):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines() if line[:2] == "| "]


@pytest.fixture
def profiles(tmp_path, monkeypatch):
    """An empty folder in the place of docs/data/profile/."""
    monkeypatch.setattr(paths, "PROFILES", tmp_path)
    return tmp_path


def write(folder, solution, definition, sha1, counted=True):
    """A record of one call with two launches of gemm1, with ncu's counters or without."""
    counters = [Counters(us=us, grid=2, block=128, dram_percent=50.0) for us in (30.0, 10.0)]
    kernel = KernelTime(
        name="gemm1_kernel", instances=2, total_us=40.0, average_us=20.0, counters=counters if counted else []
    )
    stage = StageTime(stage="gemm1", kernels=[kernel], total_us=40.0, share=1.0)
    known = {"other": [], "wall_us": 50.0, "host_us": 10.0, "bound_us": None, "warnings": []}
    workload = WorkloadProfile(uuid="u", T=16, calls=1, stages=[stage], **known)
    provenance = Provenance(
        hardware="A GPU", versions={}, timestamp="2026-01-01", source_sha1=sha1, command="moebench x"
    )
    record = ProfileRecord(
        solution=solution, definition=definition, clock="device", provenance=provenance, workloads=[workload]
    )
    folder.mkdir(exist_ok=True)
    (folder / f"{solution}.json").write_text(record.model_dump_json(exclude_defaults=True))


def test_the_bf16_page_has_every_token_count_and_the_counters_of_both_ends():
    summary = rows(studies.summary(studies.BF16))
    assert [row[0] for row in summary[2:]] == [str(2**n) for n in range(4, 14)]
    gemm1 = rows(studies.gemm1(studies.BF16))[2:]
    assert {(row[0], row[1].strip("`*\\")) for row in gemm1} == {(t, name) for t in ("16", "8192") for name in STYLES}
    assert all(re.fullmatch(r"\d+\.\d", cell) for row in gemm1 for cell in row[3:])


def test_a_calls_launches_or_stages_are_added_up(profiles):
    write(profiles / "bf16", "align_fused_bf16", "d", pack.pack("align_fused_bf16")["bf16"].hash())
    assert rows(studies.calls(studies.BF16))[2:] == [
        ["16", "`align_fused_bf16`", "gemm1 30.0, gemm1 10.0", "40.0", "-", "50.0"]
    ]
    gemm1 = rows(studies.gemm1(studies.BF16))[2:]
    assert gemm1[0][2:] == ["`gemm1_kernel`", "30.0", "50.0", "-"] and len(gemm1) == 2
    assert "stale" not in studies.gemm1(studies.BF16)
    write(profiles / "mxfp8", "triton_mxfp8", "d", pack.pack("triton_mxfp8")["mxfp8"].hash(), counted=False)
    assert rows(studies.calls(studies.MXFP8))[2:] == [["16", "`triton_mxfp8`", "gemm1 40.0", "40.0", "-", "50.0"]]


@pytest.mark.parametrize("study", [studies.BF16, studies.MXFP8])
def test_the_pages_mark_what_is_stale_and_what_is_not_there(profiles, study):
    """A user would miss: figures of a source that is no longer there."""
    name = study.ours[0]
    assert studies.gemm1(study) == studies.calls(study) == studies.NOT_RECORDED
    write(profiles / study.folder, name, "d", "0")
    for block in (studies.gemm1(study), studies.calls(study)):
        assert f"`{name}`\\*" in block and studies.STALE in block


def test_every_committed_record_is_one_and_lies_with_its_operator():
    for folder, operator in ((".", "moe_fp8_block_scale_"), ("bf16", "moe_bf16_"), ("mxfp8", "mxfp8_linear_")):
        for record in read_records(paths.PROFILES / folder):
            assert record.definition.startswith(operator)
