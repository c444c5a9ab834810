"""The profile: kernels to stages, harness apart, launches checked, ncu's report read, solutions in
one table.
"""

import os
import re
import stat
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from moebench import cli
from moebench.core.errors import CannotRun
from moebench.core.provenance import Provenance
from moebench.core.schema import read_json
from moebench.operators.catalogue import definition
from moebench.packing import pack
from moebench.profiling import calls, ncu, profile, table, torch_profiler
from moebench.profiling.record import Counters, Kernel, ProfileRecord, WorkloadProfile
from moebench.profiling.stages import UNASSIGNED, plain_name, stage_of
from moebench.profiling.torch_profiler import busy_us, kernels, warnings

SAMPLE = (
    Path(__file__).parents[1] / "samples" / "ncu_metrics.csv"
)  # some kernels of two workloads, on an H200
NCU = SAMPLE.read_text(encoding="utf-8")
GEMM2 = (
    96.448,
    396,
    128,
    84.23,
    6.66,
    17.56,
)  # us, grid, block, DRAM, tensor and occupancy % of its launch at T = 57
STAGES = {
    "gemm1_swiglu_quant_kernel": "gemm1 + swiglu_quant",
    "gemm1*": "gemm1",
    "gemm2*": "gemm2",
    "route*": "route",
}


def launched(*each, calls=5):
    """Launches as torch.profiler's reader gives them, from (name, us of all calls) or (name, us,
    launches by call).

    Each starts when all before it have ended.
    """
    rows, now = [], 0.0
    for name, us, *per_call in each:
        at = [call for call, count in enumerate(per_call or [1] * calls) for _ in range(count)]
        for call in at:
            rows.append((name, now, us / len(at), call))
            now += us / len(at)
    return pd.DataFrame(rows, columns=["kernel", "start", "us", "call"])


def kernel(stage, us, name=None, counters=()):
    return Kernel(stage=stage, name=name or stage, launches=1, us=us, counters=list(counters))


def record_of(solution, *kernels, uuid="u", T=57, sha1="0", **rest):
    where = {"hardware": "A GPU", "versions": {"torch": "2"}, "timestamp": "2026-01-01T00:00:00"}
    made = Provenance(**where, command="moebench x", source_sha1=sha1, protocol="p")
    fields = {"busy_us": sum(kernel.us for kernel in kernels)} | rest
    found = WorkloadProfile(uuid=uuid, T=T, calls=5, kernels=list(kernels), **fields)
    return ProfileRecord(solution=solution, definition="d", provenance=made, workloads=[found])


def python_runnable(function):
    """What FIB's builder would return for a destination-passing function."""
    function.metadata = SimpleNamespace(destination_passing_style=True)
    return function


def profiled(monkeypatch, failures, seen, run, **changes):
    """The record of a solution that is this function and launches what was seen, on a machine
    without a GPU.
    """
    monkeypatch.setattr(profile, "build", lambda *_: python_runnable(run))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch_profiler, "record", lambda *_: [])
    monkeypatch.setattr(torch_profiler, "launches", lambda *_: seen)
    fields = {
        "solutions": {"triton_fused_v2": pack.pack("triton_fused_v2")["small"]},
        "geometry": "small",
        "device": "cpu",
        "workloads": calls.choose(["one-expert:1", "uniform:2"], "small"),
        "calls": 5,
        "counters": False,
        "command": "moebench x",
        "say": lambda line, failed=False: failures.extend([line] if failed else []),
    }
    (record,) = profile.profile_all(profile.Job(**fields | changes))
    return record


def test_a_kernel_is_known_by_its_plain_name_and_an_exact_one_goes_before_patterns():
    assert stage_of("gemm1_swiglu_quant_kernel", STAGES) == "gemm1 + swiglu_quant"
    assert stage_of("gemm1_rest", STAGES) == "gemm1" and stage_of("combine_kernel", STAGES) is None
    assert stage_of("gemm12", {"gemm1*": "first", "gemm*": "second"}) == "first"
    assert plain_name("fused_layer(Maps, Args)") == "fused_layer"
    assert plain_name("void ours::gemm2<128, ours::Tile<4>>(float const*, int)") == "gemm2"
    assert plain_name("void at::native::(anonymous namespace)::fill<int>(int)") == "fill"
    assert plain_name("Memcpy DtoD (Device -> Device)") == "Memcpy DtoD (Device -> Device)"


def test_kernels_are_in_the_order_of_their_stages_and_the_longest_first():
    seen = launched(
        ("gemm2_kernel", 30),
        ("route_a", 10),
        ("gemm1_x", 60, 2, 2, 2, 2, 2),
        ("gemm1_y", 75),
        ("odd", 5),
    )
    found = kernels(seen, STAGES, 5)
    assert [(k.stage, k.name, k.launches, k.us) for k in found] == [
        ("gemm1", "gemm1_y", 1, 15),
        ("gemm1", "gemm1_x", 2, 12),
        ("gemm2", "gemm2_kernel", 1, 6),
        ("route", "route_a", 1, 2),
        (UNASSIGNED, "odd", 1, 1),
    ]


@pytest.mark.parametrize(
    ("per_call", "faults"), [([1] * 5, 0), ([2] * 5, 0), ([1, 0, 1, 0, 1], 1), ([1, 1, 1, 1, 2], 1)]
)
def test_launches_are_checked_against_the_calls(per_call, faults):
    """A user would miss: a kernel that only some calls launch, which makes an average of two
    things.
    """
    seen = launched(("k", 1.0, *per_call))
    assert len(warnings(kernels(seen, {"*": "all"}, 5), seen, 5)) == faults


def test_what_has_no_stage_and_nothing_at_all_are_warnings():
    """A user would miss: time of a kernel that was renamed silently leaves the breakdown."""
    seen = launched(("gemm1", 1.0), ("odd", 3.0))
    found = kernels(seen, STAGES, 5)
    (line,) = warnings(found, seen, 5)
    assert line.startswith("odd: ")
    text = table.table([record_of("a", *found, warnings=[line])]).markdown()
    assert f"a, T=57: {line}" in text and f"|  | {UNASSIGNED} | 0.6 |" in text
    assert len(warnings([], launched(), 5)) == 1


def gpu_trace(calls=2):
    """Events of a Chrome trace as torch.profiler writes it: a flush and a clone, then a call with
    two kernels.
    """
    events = [{"ph": "M", "name": "process_name", "ts": 0.0}]

    def add(cat, name, ts, dur, **args):
        events.append(
            {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": 1, "args": args}
        )

    def launch(api, name, ts, correlation, start, dur, cat="kernel"):
        add(
            "cuda_driver" if api.startswith("cu_") else "cuda_runtime",
            api,
            ts,
            2.0,
            correlation=correlation,
        )
        add(cat, name, start, dur, correlation=correlation)

    for call in range(calls):
        at, ids = 1000.0 * call, 10 * call
        launch(
            "cudaLaunchKernel", "void at::native::fill<int>(int)", at + 10, ids + 1, at + 20, 50.0
        )
        launch(
            "cudaMemcpyAsync",
            "Memcpy DtoD (Device -> Device)",
            at + 80,
            ids + 2,
            at + 90,
            40.0,
            "gpu_memcpy",
        )
        add("user_annotation", torch_profiler.CALL, at + 200, 300.0)
        add("gpu_user_annotation", torch_profiler.CALL, at + 210, 200.0)
        # The device's clock may run a little behind the host's: this kernel seems to start before
        # its call.
        launch("cu_LaunchKernelEx", "route_kernel", at + 205, ids + 3, at + 199, 10.0)
        launch(
            "cudaLaunchCooperativeKernel",
            "ours::gemm1(Maps, Args)",
            at + 230,
            ids + 4,
            at + 240,
            100.0,
        )
        launch("cudaMemsetAsync", "Memset (Device)", at + 240, ids + 5, at + 345, 5.0, "gpu_memset")
    return events


def test_what_the_harness_runs_is_kept_apart():
    """A user would miss: the clones of 1.4 GB weigh more than the layer and would fill every
    table.
    """
    ours = torch_profiler.launches(gpu_trace(), 2)
    assert {
        (name, us, call)
        for name, us, call in ours[["kernel", "us", "call"]].itertuples(index=False)
    } == {
        (name, us, call)
        for name, us in (("route_kernel", 10), ("gemm1", 100), ("Memset (Device)", 5))
        for call in (0, 1)
    }
    unrecorded = [
        e for e in gpu_trace() if e.get("cat") != "cuda_runtime"
    ]  # then a kernel's own start will do
    assert set(torch_profiler.launches(unrecorded, 2).kernel) == set(ours.kernel)


def test_a_lost_call_is_an_error():
    with pytest.raises(CannotRun, match="2 calls, want 3"):
        torch_profiler.launches(gpu_trace(2), 3)


def test_overlapping_kernels_count_once_in_the_time_of_a_call():
    """A user would miss: a call of 402 us shown as 439, the sum of kernels that overlap."""
    rows = [
        ("long", 0.0, 100.0, 0),
        ("inside", 10.0, 20.0, 0),
        ("later", 40.0, 70.0, 0),
        ("next", 5.0, 1.0, 1),
    ]
    assert (
        busy_us(pd.DataFrame(rows, columns=["kernel", "start", "us", "call"]), 2) == (110 + 1) / 2
    )


def counted(*launches):
    """Launches as ncu's reader gives them, from (kernel, us) or (kernel, us, {field: value})."""
    rows = [{"kernel": name, "us": us} | dict(*more) for name, us, *more in launches]
    return pd.DataFrame(rows, columns=["kernel", *ncu.METRICS])


def test_a_report_of_ncu_is_read_launch_by_launch():
    names = ["gemm2_kernel", "combine_kernel"]
    few, many = ncu.by_workload(NCU, 2)
    assert few.kernel.to_list() == names and many.kernel.to_list()[-1] == "combine_kernel"
    (gemm2,) = few[few.kernel == "gemm2_kernel"].itertuples()
    assert (gemm2.us, gemm2.grid, gemm2.block) == GEMM2[:3]
    assert (gemm2.dram_percent, gemm2.tensor_percent, gemm2.occupancy_percent) == GEMM2[3:]
    lines = [
        line for line in NCU.splitlines() if not ("gemm2_kernel" in line and "pipe_tensor" in line)
    ]
    few, _ = ncu.by_workload("\n".join(lines), 2)
    assert few.tensor_percent.isna().to_list() == [name == "gemm2_kernel" for name in names]


def test_counters_are_each_launchs_and_a_stages_are_weighted_by_time():
    first, second = (
        {"grid": 2, "block": 128, "dram_percent": 40.0},
        {"dram_percent": 80.0, "tensor_percent": 61.0},
    )
    found = counted(("gemm2_k", 300.0, first), ("gemm2_k", 100.0, second), ("route_k", 1.0))
    record = record_of(
        "a", kernel("gemm1", 1.0), kernel("gemm2", 180.0, "gemm2_k"), wall_us=250.0, bound_us=100.0
    )
    one = ncu.with_counters(record.workloads[0], found, STAGES)
    gemm1, gemm2 = one.kernels
    assert gemm1.counters == [] and gemm2.counters == [
        Counters(us=300.0, **first),
        Counters(us=100.0, **second),
    ]
    assert [line.partition(":")[0] for line in one.warnings] == ["gemm1", "route"]
    text = table.table([record.model_copy(update={"workloads": [one]})]).markdown()
    assert "|  | gemm2 | 180.0 (50.0, 61.0) |" in text and "| a | gemm1 | 1.0 |" in text


@pytest.mark.parametrize(
    ("report", "named"),
    [
        ("==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - no permission\n", "ERR_NVGPUCTRPERM"),
        ("", "ncu: "),
        (re.sub(r'(?<="gpu__time_duration.sum",)"ns"', '"cycle"', NCU), "'cycle'"),
        (NCU, "2 workloads, want 3"),
    ],
)
def test_an_unfit_ncu_output_gets_one_line(report, named):
    with pytest.raises(CannotRun) as caught:
        ncu.by_workload(report, 3)
    assert named in str(caught.value) and "\n" not in str(caught.value)


def test_ncu_is_started_on_the_calls_and_its_output_is_read_or_its_error_said(
    tmp_path, monkeypatch
):
    """A stand-in for ncu, which keeps what it was started with."""

    def stand_in(script):
        (tmp_path / "ncu").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (tmp_path / "ncu").chmod(stat.S_IRWXU)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    copy = f'while [ "$1" != --log-file ]; do shift; done; cp {SAMPLE} "$2"'
    stand_in(f'echo "$@" >> {tmp_path}/arguments\n{copy}')
    assert len(ncu.by_workload(ncu.record("tiny", "full", ["uuid-a", "skewed:9"]), 2)) == 2
    arguments = (tmp_path / "arguments").read_text(encoding="utf-8").strip()
    assert arguments.endswith("-m moebench.profiling.calls tiny full uuid-a skewed:9")
    assert "--csv" in arguments and all(metric in arguments for metric in ncu.METRICS.values())
    stand_in("echo '==ERROR== ERR_NVGPUCTRPERM'; echo later; exit 9")
    with pytest.raises(CannotRun, match="9: ==ERROR== ERR_NVGPUCTRPERM$"):
        ncu.record("tiny", "full", ["u"])
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(CannotRun, match="PATH"):
        ncu.record("tiny", "full", ["u"])


def test_a_profile_without_counters_and_the_workloads_that_run_are_kept(monkeypatch):
    """A user would miss: all other figures, as ncu may not count here or one workload raises."""

    def refuse(*_):
        raise CannotRun("ncu: ERR_NVGPUCTRPERM")

    def run(logits, *rest):
        if len(logits) == 1:
            raise ValueError("no single token\nand more")
        rest[-1].fill_(1)

    monkeypatch.setattr(ncu, "record", refuse)
    failed, seen = [], launched(("odd", 1.0), calls=2)
    (workload,) = profiled(monkeypatch, failed, seen, run, calls=2, counters=True).workloads
    assert len(failed) == 2 and failed[0].endswith("ValueError: no single token")
    assert (workload.T, workload.kernels[0].stage, workload.warnings[1:]) == (
        2,
        UNASSIGNED,
        ["ncu: ERR_NVGPUCTRPERM"],
    )


def test_workloads_by_token_count_uuid_name_and_made_up_routing():
    by_name = calls.choose(["first-rank"], "small")
    assert calls.choose(list(by_name), "small") == by_name
    chosen = calls.choose(["16", "uniform:9", "16"], "small")
    assert [workload.axes["seq_len"] for workload in chosen.values()] == [16, 9]
    assert len(calls.choose(["1"], "small")) == 2  # two workloads have one token
    how = python_runnable(lambda *_: None), chosen["uniform:9"], definition("small"), "cpu"
    first, again = (calls.arguments(*how) for _ in range(2))
    assert (
        first[0].shape == (9, 256)
        and first[1].dtype == torch.bfloat16
        and first[2].shape == (9, 512)
    )
    assert all(torch.equal(x.float(), y.float()) for x, y in zip(first[:8], again[:8], strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("solution", ["triton_fused_v2", "gather_scatter_bf16", "triton_mxfp8"])
def test_a_profile_on_the_device(tmp_path, solution):
    """Every kernel has a stage, and a call's kernels take no longer than its wall time."""
    assert cli.main(["profile", solution, "--calls", "3", "--records", str(tmp_path)]) == 0
    for workload in read_json(tmp_path / f"{solution}.json", ProfileRecord).workloads:
        assert UNASSIGNED not in workload.stages
        assert 0 < workload.busy_us < workload.wall_us and workload.bound_us < workload.wall_us
