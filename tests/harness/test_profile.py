"""The profile: kernels to stages, harness apart, counts checked, ncu's report read, solutions side by side."""

import json
import os
import re
import shlex
import stat
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from harness import cli
from harness.commands import profile as profile_command
from harness.core import paths
from harness.core.errors import UserError
from harness.core.provenance import Provenance
from harness.core.schema import read_json
from harness.operators import workloads
from harness.packing import manifest, pack
from harness.packing.stages import UNASSIGNED, plain_name, stage_of
from harness.profiling import calls, ncu, profile, torch_profiler
from harness.profiling.calls import ProfileError
from harness.profiling.points import choose_points, inputs_of
from harness.profiling.record import Counters, KernelTime, ProfileRecord, WorkloadProfile, read_records
from harness.profiling.side_by_side import compare
from harness.profiling.stages import HOST_OPERATIONS, busy_us, kernel_times, stage_times, warnings
from harness.report import profiles
from harness.report.profiles import kernels, tables
from harness.judging import gpu_clock
from rich.console import Console

from definitions.moe_fp8_block_scale import definition

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

SAMPLE = Path(__file__).parents[1] / "samples" / "ncu_metrics.csv"  # two workloads, captured on an H200
NCU = SAMPLE.read_text()
GEMM2 = (96.448, 396, 128, 84.23, 6.66, 17.56)  # us, grid, block, DRAM, tensor and occupancy % of its launch at T = 57
TABLE = {"gemm1_swiglu_quant_kernel": "gemm1 + swiglu_quant", "gemm1*": "gemm1", "gemm2*": "gemm2", "route*": "route"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The solutions folder with a solution `tiny` and one based on it, `variant`."""
    manifest = """
        author = "tests"
        description = "Writes ones."
        language = "python"
        entry_point = "main.py::run"
        target_hardware = ["cpu"]
    """
    for name, more in (("tiny", ""), ("variant", 'based_on = "tiny"')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "solution.toml").write_text(f'name = "{name}"\n{more}\n{manifest}')
    (tmp_path / "tiny" / "main.py").write_text("def run(*args):\n    args[-1].fill_(1)\n")
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path)
    return tmp_path


def add_stages(folder, text, name="tiny"):
    with (folder / name / "solution.toml").open("a") as file:
        file.write(f"\n{text}\n")


def launched(*kernels, calls=5):
    """Launches as torch.profiler's reader gives them, from (name, us of all calls) or (name, us, launches by call).

    Each starts when all before it have ended.
    """
    rows, now = [], 0.0
    for name, us, *per_call in kernels:
        at = [call for call, count in enumerate(per_call or [1] * calls) for _ in range(count)]
        for call in at:
            rows.append((name, now, us / len(at), call))
            now += us / len(at)
    return pd.DataFrame(rows, columns=["kernel", "start", "us", "call"])


def profile_of(stages, calls=5, uuid="u", T=57, **rest):
    """A profile from stage -> {kernel: microseconds over all calls}."""
    times = [(name, us) for kernels in stages.values() for name, us in kernels.items()]
    table = {name: stage for stage, kernels in stages.items() for name in kernels}
    found = stage_times(launched(*times, calls=calls), table, "device")
    fields = {"other": [], "wall_us": None, "host_us": None, "bound_us": None, "warnings": []} | rest
    return WorkloadProfile(uuid=uuid, T=T, calls=calls, stages=found, **fields)


def record_of(solution, *profiles, sha1="0"):
    where = {"hardware": "A GPU", "versions": {"torch": "2"}, "timestamp": "2026-01-01T00:00:00"}
    made = Provenance(**where, command="moebench x", source_sha1=sha1, protocol="torch.profiler, 5 calls")
    return ProfileRecord(solution=solution, definition="d", clock="device", provenance=made, workloads=profiles)


def texts(records):
    return [table.markdown(titled=True) for table in tables(records)]


def python_runnable(function):
    """What FIB's builder would return for a destination-passing function."""
    function.metadata = SimpleNamespace(destination_passing_style=True)
    return function


def job(failures=None, **changes):
    def say(line, failed=False):
        if failed:
            failures.append(line)

    fields = {
        "solutions": {"triton_fused_v2": pack.pack("triton_fused_v2")["small"]},
        "geometry": "small",
        "device": "cpu",
        "points": choose_points(["one:1", "none:2"], "small"),
        "calls": 5,
        "counters": False,
        "chrome_trace": None,
        "command": "moebench x",
        "say": say,
    }
    return profile.Job(**fields | changes)


def profiled(failed, **changes):
    (record,) = profile.profile_all(job(failed, **changes))
    return record


# Kernels to stages


def test_an_exact_name_goes_before_patterns_and_these_in_their_order():
    assert stage_of("gemm1_swiglu_quant_kernel", TABLE) == "gemm1 + swiglu_quant"
    assert stage_of("gemm1_rest", TABLE) == "gemm1"
    assert stage_of("gemm1", {"gemm*": "products", "gemm1": "gemm1"}) == "gemm1"
    assert stage_of("gemm12", {"gemm1*": "first", "gemm*": "second"}) == "first"
    assert stage_of("combine_kernel", TABLE) is None


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("gemm1_kernel", "gemm1_kernel"),
        ("fused_layer(Maps, Args)", "fused_layer"),
        ("void ours::gemm2<128, ours::Tile<4>>(float const*, int)", "gemm2"),
        ("(anonymous namespace)::spin_kernel(long)", "spin_kernel"),
        ("void at::native::(anonymous namespace)::fill<int>(int)", "fill"),
        ("Memset (Device)", "Memset (Device)"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
    ],
)
def test_kernels_are_known_by_their_plain_name(name, plain):
    assert plain_name(name) == plain


def test_stages_are_in_the_tables_order_and_their_shares_make_a_whole():
    seen = launched(("gemm2_kernel", 30), ("route_a", 10), ("gemm1_x", 60, 2, 2, 2, 2, 2), ("odd", 100))
    stages = stage_times(seen, TABLE, "device")
    assert [(s.stage, s.share) for s in stages] == [
        ("gemm1", 0.3),
        ("gemm2", 0.15),
        ("route", 0.05),
        (UNASSIGNED, 0.5),
    ]
    assert stages[0].kernels == [KernelTime(name="gemm1_x", instances=10, total_us=60.0, average_us=6.0)]


def test_an_unassigned_kernel_is_loud_in_every_output():
    """A user would miss: time of a kernel that was renamed silently leaves the breakdown."""
    seen = launched(("gemm1", 1.0), ("odd", 3.0))
    lines = warnings(stage_times(seen, TABLE, "device"), seen, 5)
    assert lines == ["odd: unassigned: no pattern in [stages] of solution.toml fits"]
    profile = profile_of({"gemm1": {"gemm1": 1.0}, UNASSIGNED: {"odd": 3.0}}, warnings=lines)
    table = kernels({"a": profile}, "device")
    assert f"**Warning**: a: {lines[0]}" in table.markdown() and f"| {UNASSIGNED} | odd |" in table.markdown()
    console = Console(width=160, record=True, file=open(os.devnull, "w"))
    console.print(table.terminal())
    assert f"WARNING a: {lines[0]}" in console.export_text()


def test_no_kernel_at_all_is_said():
    assert warnings([], launched(), 5) == ["no kernel was seen inside the calls"]


def test_torch_operations_are_a_stage_of_their_own_only_on_a_cpu():
    seen = launched(("aten::empty", 1.0))
    assert stage_times(seen, TABLE, "cpu")[0].stage == HOST_OPERATIONS
    assert stage_times(seen, TABLE | {"aten::*": "route"}, "cpu")[0].stage == "route"
    assert stage_times(seen, TABLE, "device")[0].stage == UNASSIGNED


@pytest.mark.parametrize(
    ("per_call", "line"),
    [
        ((1, 1, 1, 1, 1), None),
        ((2, 2, 2, 2, 2), None),
        ((1, 0, 1, 0, 1), "k: in 3 of 5 calls"),
        ((1, 1, 1, 1, 2), "k: 1 to 2 launches a call, want the same in all 5 calls"),
    ],
)
def test_launches_are_checked_against_the_calls(per_call, line):
    """A user would miss: a kernel that only some calls launch, which makes an average of two things."""
    launches = launched(("k", 1.0, *per_call))
    assert warnings(stage_times(launches, {"*": "all"}, "device"), launches, 5) == ([line] if line else [])


# The table in solution.toml


def test_the_stages_never_enter_the_packed_solution(folder):
    """A user would miss: naming a stage marks all committed traces stale."""
    before = pack.pack("tiny")["full"]
    add_stages(folder, '[stages]\n"ones*" = "ones"')
    after = pack.pack("tiny")["full"]
    assert manifest.read_manifest("tiny").stages == {"ones*": "ones"}
    assert after.hash() == before.hash() and after.model_dump_json() == before.model_dump_json()


def test_a_variant_has_its_bases_stages_unless_it_has_its_own(folder):
    add_stages(folder, '[stages]\nones = "ones"')
    assert manifest.read_manifest("variant").stages == {"ones": "ones"}
    add_stages(folder, '[stages]\ntwos = "twos"', "variant")
    assert manifest.read_manifest("variant").stages == {"twos": "twos"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stages = 3", "stages: Input should be a valid dictionary, got 3"),
        ("[stages]\nones = 3", "stages.ones: Input should be a valid string, got 3"),
        ('[stages]\nones = ""', "stages.ones: String should have at least 1 character, got ''"),
        ('[stages]\nones = "unassigned"', "stages.ones: kernels without a stage are called that, got 'unassigned'"),
        ("[stages]\nones = ", "solution.toml: "),
    ],
)
def test_a_malformed_table_gets_one_line(folder, text, message):
    add_stages(folder, text)
    with pytest.raises(manifest.PackingError) as caught:
        manifest.read_manifest("tiny")
    said = str(caught.value)
    assert said.startswith("tiny: ") and message in said and "\n" not in said


def test_without_a_table_every_kernel_is_unassigned(folder):
    assert manifest.read_manifest("tiny").stages == {}
    assert [stage.stage for stage in stage_times(launched(("ones", 1.0)), {}, "device")] == [UNASSIGNED]


# torch.profiler


def gpu_trace(calls=2):
    """Events of a Chrome trace as torch.profiler writes it: a flush and a clone, then a call with two kernels."""
    events = [{"ph": "M", "name": "process_name", "ts": 0.0}]

    def add(cat, name, ts, dur, **args):
        events.append({"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": 1, "args": args})

    def launch(api, name, ts, correlation, start, dur, cat="kernel"):
        add("cuda_driver" if api.startswith("cu_") else "cuda_runtime", api, ts, 2.0, correlation=correlation)
        add(cat, name, start, dur, correlation=correlation)

    for call in range(calls):
        at, ids = 1000.0 * call, 10 * call
        launch("cudaLaunchKernel", "void at::native::fill<int>(int)", at + 10, ids + 1, at + 20, 50.0)
        launch("cudaMemcpyAsync", "Memcpy DtoD (Device -> Device)", at + 80, ids + 2, at + 90, 40.0, "gpu_memcpy")
        add("user_annotation", torch_profiler.CALL, at + 200, 300.0)
        add("gpu_user_annotation", torch_profiler.CALL, at + 210, 200.0)
        # The device's clock may run a little behind the host's: this kernel seems to start before its call.
        launch("cu_LaunchKernelEx", "route_kernel", at + 205, ids + 3, at + 199, 10.0)
        launch("cudaLaunchCooperativeKernel", "ours::gemm1(Maps, Args)", at + 230, ids + 4, at + 240, 100.0)
        launch("cudaMemsetAsync", "Memset (Device)", at + 240, ids + 5, at + 345, 5.0, "gpu_memset")
    return events


def test_what_the_harness_runs_is_kept_apart():
    """A user would miss: the clones of 1.4 GB weigh more than the layer and would fill every table."""
    ours, others = torch_profiler.launches(gpu_trace(), 2, "device")
    assert {(name, us, call) for name, us, call in ours[["kernel", "us", "call"]].itertuples(index=False)} == {
        (name, us, call)
        for name, us in (("route_kernel", 10), ("gemm1", 100), ("Memset (Device)", 5))
        for call in (0, 1)
    }
    assert [(k.name, k.instances, k.total_us) for k in kernel_times(others)] == [
        ("fill", 2, 100.0),
        ("Memcpy DtoD (Device -> Device)", 2, 80.0),
    ]


def test_a_kernel_without_a_recorded_launch_goes_by_its_own_start():
    events = [e for e in gpu_trace() if e.get("cat") != "cuda_runtime"]
    ours, _ = torch_profiler.launches(events, 2, "device")
    assert set(ours.kernel) == {"route_kernel", "gemm1", "Memset (Device)"}


def test_a_kernel_that_one_call_lacks_is_noticed():
    events = [e for e in gpu_trace(3) if not (e["name"] == "route_kernel" and e["ts"] > 2000)]
    ours, _ = torch_profiler.launches(events, 3, "device")
    assert "route_kernel: in 2 of 3 calls" in warnings(stage_times(ours, TABLE, "device"), ours, 3)


def test_overlapping_kernels_count_once_in_the_time_of_a_call():
    """A user would miss: a call of 402 us shown as 439, the sum of kernels that overlap."""
    events = gpu_trace(3)
    for event in events:
        if event["name"] == "Memset (Device)":  # starts 15 us before gemm1 ends, and ends 5 us after it
            event.update(ts=event["ts"] - 20, dur=20.0)
        if event["name"] == "route_kernel":  # so the gap between it and gemm1 is 21 us
            event.update(dur=20.0)
    ours, _ = torch_profiler.launches(events, 3, "device")
    assert busy_us(ours, 3) == 20 + 100 + 5
    route, gemm1, rest = stage_times(ours, TABLE | {"Memset*": "fill"}, "device")[::-1]
    found = {stage.stage: (stage.begin_us, stage.end_us) for stage in (route, gemm1, rest)}
    assert found == {"route": (0.0, 20.0), "gemm1": (41.0, 141.0), "fill": (126.0, 146.0)}


def test_a_kernel_inside_another_adds_nothing_to_the_time_of_a_call():
    rows = [("long", 0.0, 100.0, 0), ("inside", 10.0, 20.0, 0), ("later", 40.0, 70.0, 0), ("next", 5.0, 1.0, 1)]
    assert busy_us(pd.DataFrame(rows, columns=["kernel", "start", "us", "call"]), 2) == (110 + 1) / 2


def test_a_lost_call_is_an_error():
    with pytest.raises(ProfileError, match="recorded 2 calls, want 3"):
        torch_profiler.launches(gpu_trace(2), 3, "device")


# ncu


def counted(*launches):
    """Launches as ncu's reader gives them, from (kernel, us) or (kernel, us, {field: value})."""
    rows = [{"kernel": name, "us": us} | dict(*more) for name, us, *more in launches]
    return pd.DataFrame(rows, columns=["kernel", *ncu.METRICS])


def test_a_report_of_ncu_is_read_launch_by_launch():
    kernels = ["route_kernel", "place_kernel", "gemm1_swiglu_quant_kernel", "gemm2_kernel", "combine_kernel"]
    few, many = ncu.by_point(NCU, 2)
    assert few.kernel.to_list() == kernels and many.kernel.to_list()[-1] == "combine_kernel"
    (gemm2,) = few[few.kernel == "gemm2_kernel"].itertuples()
    assert (gemm2.us, gemm2.grid, gemm2.block) == GEMM2[:3]
    assert (gemm2.dram_percent, gemm2.tensor_percent, gemm2.occupancy_percent) == GEMM2[3:]
    lines = [line for line in NCU.splitlines() if not ("gemm2_kernel" in line and "pipe_tensor" in line)]
    few, _ = ncu.by_point("\n".join(lines), 2)
    assert few.tensor_percent.isna().to_list() == [name == "gemm2_kernel" for name in kernels]


def test_counters_of_a_stage_are_weighted_by_time():
    stages = stage_times(launched(("gemm2_kernel", 900.0, 2, 2, 2, 2, 2), ("gemm1", 1.0)), TABLE, "device")
    first, second = {"grid": 2, "block": 128, "dram_percent": 40.0}, {"dram_percent": 80.0, "tensor_percent": 61.0}
    found = counted(("gemm2_kernel", 300.0, first), ("gemm2_kernel", 100.0, second))
    (gemm1, gemm2), lines = ncu.with_counters(stages, found, TABLE)
    assert gemm1.counters is None and gemm1.kernels[0].counters == [] and lines == ["gemm1: not seen by ncu"]
    assert gemm2.counters == Counters(us=400.0, dram_percent=50.0, tensor_percent=61.0)
    assert gemm2.kernels[0].counters == [Counters(us=300.0, **first), Counters(us=100.0, **second)]


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ("==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - no permission\n", "ncu: ==ERROR== ERR_NVGPUCTRPERM"),
        ("", "ncu: no table in its output"),
        (re.sub(r'(?<="gpu__time_duration.sum",)"ns"', '"cycle"', NCU), "got the unit 'cycle', want nanoseconds"),
        (NCU, "its output has 2 workloads, want 3"),
    ],
)
def test_an_unfit_ncu_output_gets_one_line(report, message):
    with pytest.raises(ProfileError) as caught:
        ncu.by_point(report, 3)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def fake(folder, name, script):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)


def test_ncu_is_started_on_the_calls_and_its_output_is_read(tmp_path, monkeypatch):
    """A stand-in for ncu, which keeps what it was started with."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    copy = f'while [ "$1" != --log-file ]; do shift; done; cp {SAMPLE} "$2"'
    fake(tmp_path, "ncu", f'echo "$@" >> {tmp_path}/arguments\n{copy}')
    assert len(ncu.by_point(ncu.record("tiny", "full", ["uuid-a", "real:9"]), 2)) == 2
    arguments = (tmp_path / "arguments").read_text().strip()
    assert arguments.endswith("-m harness.profiling.calls tiny full uuid-a real:9")
    assert "--csv" in arguments and all(metric in arguments for metric in ncu.METRICS.values())


def test_ncu_that_fails_or_is_missing_gets_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    fake(tmp_path, "ncu", "echo '==ERROR== ERR_NVGPUCTRPERM - no permission'; echo later; exit 9")
    with pytest.raises(ProfileError, match="^ncu: exit status 9: ==ERROR== ERR_NVGPUCTRPERM - no permission$"):
        ncu.record("tiny", "full", ["u"])
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(ProfileError, match="^ncu is not installed"):
        ncu.record("tiny", "full", ["u"])


def test_every_call_under_ncu_is_marked(monkeypatch):
    """What ncu gets: a separator before each workload, then one call alone."""
    done = []
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: done.append("on"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: done.append("off"))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: done.append(gpu_clock.MARK))
    monkeypatch.setattr(calls, "device_here", lambda: "cpu")
    monkeypatch.setattr(calls, "build", lambda *_: python_runnable(lambda *args: done.append("call")))
    assert calls.main(["triton_fused_v2", "small", "one:1", "none:2"]) == 0
    of_one = [*["call"] * calls.WARMUP_RUNS, "on", gpu_clock.MARK, "off", "on", "call", "off"]
    assert done == of_one * 2


def test_one_call_for_a_sanitizer_finds_what_is_not_written(monkeypatch, capsys):
    """A user would miss: a clean report of a kernel that did nothing."""
    for write, status, line in ((lambda *args: args[-1].fill_(2), 0, "one:1: 0 NaN"), (lambda *args: 0, 1, "512 NaN")):
        monkeypatch.setattr(calls, "build", lambda *_, write=write: python_runnable(write))
        assert calls.main(["--once", "triton_fused_v2", "small", "one:1"]) == status
        assert line in capsys.readouterr().out


def without_kernels(monkeypatch, run=lambda *args: args[-1].fill_(1)):
    monkeypatch.setattr(profile, "build", lambda *_: python_runnable(run))


def test_reports_of_both_profilers_become_one_record(monkeypatch):
    without_kernels(monkeypatch)
    counters = {"grid": 264, "block": 128, "dram_percent": 88.2}
    by_point = [counted(("gemm1_swiglu_quant_kernel", 241.6, counters)), counted(("gemm2_kernel", 9.0))]
    monkeypatch.setattr(ncu, "record", lambda *_: "report")
    monkeypatch.setattr(ncu, "by_point", lambda *_: by_point)
    seen = launched(("gemm1_swiglu_quant_kernel", 1210.0), ("gemm2_kernel", 765.0)), launched(("fill", 1.0))
    monkeypatch.setattr(torch_profiler, "launches", lambda *_: seen)
    monkeypatch.setattr(profile, "wall_times", lambda *_: {"one:1": 500.0})
    monkeypatch.setattr(profile.Job, "clock", "device")
    failed = []
    record = profiled(failed, counters=True)
    few, many = record.workloads
    assert [few.uuid, few.T, many.T] == ["one:1", 1, 2] and few.wall_us == 500.0 and many.wall_us is None
    assert record.clock == "device" and few.bound_us > 0
    assert few.host_us == pytest.approx(500 - (1210 + 765) / 5) and few.other[0].name == "fill"
    assert few.warnings == ["gemm2: not seen by ncu"] and failed == []
    assert [stage.stage for stage in few.stages] == ["gemm1 + swiglu_quant", "gemm2"]
    assert few.stages[0].kernels[0].counters == [Counters(us=241.6, **counters)]
    assert few.stages[0].counters == Counters(us=241.6, dram_percent=88.2)
    assert "gemm1 + swiglu_quant: not seen by ncu" in many.warnings
    assert record.provenance.source_sha1 == pack.pack("triton_fused_v2")["small"].hash()
    assert record.provenance.protocol == "torch.profiler, 5 calls, and one call under ncu"


def test_a_profile_without_working_counters_is_kept_and_says_so(monkeypatch):
    def refuse(*_):
        raise ProfileError("ncu: ==ERROR== ERR_NVGPUCTRPERM")

    without_kernels(monkeypatch)
    monkeypatch.setattr(ncu, "record", refuse)
    failed = []
    record = profiled(failed, counters=True)
    assert failed == ["triton_fused_v2: ncu: ==ERROR== ERR_NVGPUCTRPERM"]
    assert all("ncu: ==ERROR== ERR_NVGPUCTRPERM" in workload.warnings for workload in record.workloads)


def test_a_solution_that_raises_is_reported_and_the_other_workloads_go_on(monkeypatch):
    def run(logits, *rest):
        if len(logits) == 1:
            raise ValueError("no single token\nand more")
        rest[-1].fill_(1)

    without_kernels(monkeypatch, run)
    failed = []
    record = profiled(failed, calls=2)
    assert failed == ["triton_fused_v2: one:1: ValueError: no single token"]
    (workload,) = record.workloads
    assert [(s.stage, s.kernels[0].name) for s in workload.stages] == [(HOST_OPERATIONS, "aten::fill_")]


# Side by side


def test_stages_that_both_keep_apart_are_compared_one_by_one():
    a = profile_of({"route": {"r": 10.0}, "gemm1": {"g": 100.0}, "gemm2": {"h": 50.0}}, wall_us=40.0, host_us=8.0)
    b = profile_of({"route": {"r": 20.0}, "gemm1": {"g": 50.0}, "combine": {"c": 5.0}}, wall_us=30.0, host_us=15.0)
    us = compare({"a": a, "b": b})
    assert list(us.index) == ["route", "gemm1", "gemm2", "combine", "pipeline", "host and gaps", "wall"]
    assert us.loc["route"].to_list() == [2.0, 4.0] and us.loc["gemm1"].to_list() == [20.0, 10.0]
    assert us.loc["gemm2"].dropna().to_dict() == {"a": 10.0} and us.loc["combine"].dropna().to_dict() == {"b": 1.0}
    assert us.loc["pipeline"].to_list() == [32.0, 15.0] and us.loc["wall"].to_list() == [40.0, 30.0]


def test_kernels_that_overlap_are_not_compared_by_their_sum():
    """A user would miss: a solution that is ahead, shown as behind, and less than no time on the host."""
    a = profile_of({"gemm1": {"g": 100.0}, "gemm2": {"h": 150.0}}, wall_us=40.0, host_us=-10.0)
    b = profile_of({"gemm1": {"g": 120.0}, "gemm2": {"h": 100.0}}, wall_us=50.0, host_us=6.0)
    us = compare({"a": a, "b": b})
    assert us.loc["pipeline"].dropna().to_dict() == {"b": 44.0}
    assert us.loc["host and gaps"].dropna().to_dict() == {"b": 6.0} and us.loc["wall"].to_list() == [40.0, 50.0]
    one_call, _, side_by_side = texts([record_of("first", a), record_of("second", b)])
    assert "| T=57 | first | 40.0 | - | - | 50.0 | >= 10.0 | - |" in one_call and "Overlap: by how" in one_call
    assert "| pipeline | - | 44.0 | - |" in side_by_side and "add up to at least 10.0 us more" in side_by_side
    a = a.model_copy(update={"busy_us": 37.5, "host_us": 2.5})
    us = compare({"a": a, "b": b})
    assert us.loc["pipeline"].to_list() == [37.5, 44.0] and us.loc["host and gaps"].to_list() == [2.5, 6.0]
    one_call, _, side_by_side = texts([record_of("first", a), record_of("second", b)])
    assert "| T=57 | first | 40.0 | - | - | 50.0 | 12.5 | 2.5 |" in one_call
    assert "add up to 12.5 us more" in side_by_side


def test_what_one_solution_fuses_is_summed_before_it_is_compared():
    """A user would miss: a fused stage beside an empty cell, and no ratio for the part that matters most."""
    fused = profile_of({"route": {"r": 5.0}, "gemm1 + swiglu_quant": {"g": 90.0}, "gemm2": {"h": 40.0}})
    apart = profile_of({"route": {"r": 5.0}, "gemm1": {"g": 80.0}, "swiglu_quant": {"s": 100.0}, "gemm2": {"h": 40.0}})
    for first, second in ((fused, apart), (apart, fused)):
        us = compare({"first": first, "second": second})
        assert list(us.index) == ["route", "gemm1 + swiglu_quant", "gemm2", "pipeline"]
        assert set(us.loc["gemm1 + swiglu_quant"]) == {18.0, 36.0}
    whole = profile_of({"route + gemm1 + swiglu_quant + gemm2": {"fused_layer": 45.0}})
    us = compare({"a": apart, "b": whole})
    assert list(us.index) == ["route + gemm1 + swiglu_quant + gemm2", "pipeline"] and (us.b / us.a == 0.2).all()


def test_tables_show_every_figure_of_a_record():
    counters = Counters(us=9.0, dram_percent=88.25, occupancy_percent=12.5)
    a = profile_of({"gemm1": {"g": 30.0, "g2": 10.0}}, wall_us=11.0, host_us=3.0, bound_us=4.0)
    a = a.model_copy(update={"stages": [a.stages[0].model_copy(update={"counters": counters})]})
    b = profile_of({"gemm1": {"g": 80.0}})
    one_call, both, side_by_side = texts([record_of("first", a), record_of("second", b)])
    assert "| T=57 | first | 11.0 | 4.0 | 2.75 | 8.0 | - | 3.0 |" in one_call and "Mean of 5 calls." in one_call
    assert "| gemm1 | g | 6.0 | 75.0% | 9.0 | 88.2 | - | 12.5 |" in both
    assert "|  | g2 | 2.0 | 25.0% |" in both and "| gemm1 | g | 16.0 | 100.0% |" in both
    assert "DRAM %" not in texts([record_of("second", b)])[1]
    assert "| gemm1 | 8.0 | 16.0 | 2.00x |" in side_by_side and "second / first" in side_by_side


def parsed(*argv):
    return cli.parser_for("profile").parse_args(["profile", *argv])


@pytest.mark.parametrize("form", profile_command.FORMATS)
def test_every_format_goes_into_a_file(tmp_path, capsys, form):
    args = parsed("first", "second", "--format", form, "--output", str(tmp_path / "out"))
    records = [record_of(name, profile_of({"gemm1": {"g": us}})) for name, us in (("first", 40.0), ("second", 20.0))]
    profile_command.show(records, args)
    text = (tmp_path / "out").read_text()
    assert capsys.readouterr().out == ""
    if form == "json":
        found = json.loads(text)
        assert [ProfileRecord(**record) for record in found["records"]] == records
        (compared,) = found["head_to_head"]
        us, ratio = {"first": 8.0, "second": 4.0}, {"first": 1.0, "second": 0.5}
        assert compared["T"] == 57 and compared["rows"][0] == {"stage": "gemm1", "us": us, "ratio": ratio}
    else:
        assert "first and second, T=57, one call" in text and "0.50x" in text


def test_several_chrome_traces_get_a_file_each():
    def names(*workloads):
        found = job(points=choose_points(workloads, "small"), chrome_trace=Path("a/t.json"))
        return [str(found.trace_file("s", point)) for point in found.points]

    assert names("uniform:1", "uniform:2") == ["a/t-s-uniform-1.json", "a/t-s-uniform-2.json"]
    assert names("uniform:1") == ["a/t.json"]


# Workloads


def test_workloads_by_token_count_uuid_name_and_made_up_routing():
    by_name = choose_points(["first-rank"], "small")
    assert choose_points([by_name[0].uuid], "small") == by_name
    assert [point.axes["seq_len"] for point in choose_points(["16", "uniform:9", "16"], "small")] == [16, 9]
    assert len(choose_points(["1"], "small")) == 2  # two workloads have one token
    (point,) = choose_points(["uniform:9"], "small")
    first, again = (inputs_of(point, definition("small"), "cpu") for _ in range(2))
    assert first[0].shape == (9, 256) and first[1].dtype == torch.bfloat16 and first[2].shape == (9, 512)
    assert all(torch.equal(x.float(), y.float()) for x, y in zip(first[:8], again[:8], strict=True))


@pytest.mark.parametrize(
    ("geometry", "tokens"),
    [
        ("full", [1, 32, 901, 14107]),
        ("bf16", [16, 128, 1024, 8192]),
        ("mxfp8", [1, 16, 512, 8192]),
        ("small", [19]),
        ("bf16_small", [40]),
        ("mxfp8_small", [24]),
    ],
)
def test_every_definition_has_default_workloads(monkeypatch, geometry, tokens):
    monkeypatch.setattr(workloads, "make", lambda geometry: None)
    found = [point.axes["seq_len"] for point in choose_points([], geometry)]
    assert found == tokens


# The command


INTERPRETED = [
    (
        "triton_fused_v2",
        "one-token",
        ["route", "permute", "gemm1", "swiglu_quant", "gemm2", "combine", HOST_OPERATIONS],
    ),
    ("gather_scatter_bf16", "one-token", ["sort", "gemm1 + swiglu", "gemm2 + scatter", "sum", HOST_OPERATIONS]),
    ("triton_mxfp8", "one-token", ["product", "sum of shares", HOST_OPERATIONS]),
    (
        "torch_grouped_bf16",
        "one-token",
        ["sort", "gather + scatter", "gemm1 + gemm2", "swiglu", "sum", HOST_OPERATIONS],
    ),
]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's job, for CPUs")
@pytest.mark.parametrize(("solution", "workload", "stages"), INTERPRETED)
def test_a_profile_on_a_cpu_from_end_to_end(tmp_path, capsys, solution, workload, stages):
    """Without a GPU: interpreted kernels by stage, marked as CPU time; the record is that of the JSON output."""
    trace = tmp_path / "trace.json"
    args = ["profile", solution, "--workloads", workload, "--calls", "2", "--format", "json"]
    args += ["--records", str(tmp_path / "records"), "--chrome-trace", str(trace)]
    status = cli.main(args)
    said = capsys.readouterr()
    assert status == 0 and "says nothing about a GPU" in said.err
    record = read_json(tmp_path / "records" / f"{solution}.json", ProfileRecord)
    assert json.loads(said.out) == {"records": [record.model_dump()], "head_to_head": []}
    packed = next(p for p in pack.pack(solution).values() if p.definition == record.definition)
    assert record.clock == "cpu" and record.provenance.source_sha1 == packed.hash()
    (found,) = record.workloads
    assert (found.T, found.calls, found.wall_us, found.warnings) == (1, 2, None, [])
    assert record.provenance.command == shlex.join(["moebench", *args])
    assert [stage.stage for stage in found.stages] == stages
    kernels = [kernel for stage in found.stages[:-1] for kernel in stage.kernels]
    assert all(kernel.instances % 2 == 0 and kernel.total_us > 0 for kernel in kernels)
    assert sum(stage.share for stage in found.stages) == pytest.approx(1, abs=1e-3)
    flush_and_clone = {kernel.name: kernel.instances for kernel in found.other}
    inputs = len(json.loads(paths.definition_file(record.definition).read_text())["inputs"])
    assert flush_and_clone["aten::zero_"] == 2 and flush_and_clone["aten::clone"] >= 2 * (inputs - 2)
    assert len(torch_profiler.launches(json.loads(trace.read_text())["traceEvents"], 2, "cpu")[0])


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's job, for CPUs")
def test_a_solution_for_another_machine_is_skipped_with_its_reason(capsys):
    """A user would miss: why there is no figure of torch's own product, before anything was timed."""
    solutions = ["torch_mxfp8_emulated", "torch_scaled_mxfp8"]
    options = ["--definition", "mxfp8_fp16", "--workloads", "one-token", "--calls", "1"]
    assert cli.main(["profile", *solutions, *options]) == 0
    said = capsys.readouterr()
    assert "torch_scaled_mxfp8: SKIPPED: needs sm_100; this machine has no CUDA device" in said.err
    assert HOST_OPERATIONS in said.out and "torch_scaled_mxfp8" not in said.out


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's job, for CPUs")
def test_an_interrupted_profile_shows_the_solutions_that_are_done(monkeypatch, capsys, tmp_path):
    """A user would miss: the figures of a solution that was done before Ctrl-C."""
    profile_one = profile.profile

    def interrupted(name, *rest):
        if name == "triton_mxfp8":
            raise KeyboardInterrupt
        return profile_one(name, *rest)

    monkeypatch.setattr(profile, "profile", interrupted)
    options = ["--definition", "mxfp8_small", "--workloads", "one-token", "--calls", "1", "--records", str(tmp_path)]
    assert cli.main(["profile", "torch_mxfp8_emulated", "triton_mxfp8", *options]) == 130
    shown = capsys.readouterr()
    assert "torch_mxfp8_emulated" in shown.out and shown.err.splitlines()[-1] == "interrupted"
    assert [path.name for path in tmp_path.iterdir()] == ["torch_mxfp8_emulated.json"]


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["nothing"], 2, "unknown solution 'nothing'; there are: "),
        (["triton_fused_v2", "--workloads", "8"], 2, "unknown workload '8'; there are: T = 0, 1, 5, 16"),
        (["triton_fused_v2", "--workloads", "odd:8"], 2, "unknown workload 'odd:8'"),
        (["triton_mxfp8", "--workloads", "real:8"], 2, "unknown workload 'real:8'"),
        (["triton_fused_v2", "--calls", "0"], 2, "got '0', want a whole number, 1 or more"),
        (["triton_fused_v2", "--counters"], 1, "--counters needs a CUDA device; torch sees none"),
        (["hopper_fused"], 1, "hopper_fused: SKIPPED: needs sm_90; this machine has no CUDA device"),
        (["torch_scaled_mxfp8"], 1, "torch_scaled_mxfp8: SKIPPED: needs sm_100; this machine has no CUDA device"),
        (
            ["triton_mxfp8", "--definition", "mxfp8"],
            1,
            "mxfp8 needs a CUDA device; without one: --definition mxfp8_small",
        ),
        (["triton_mxfp8", "--definition", "odd"], 2, "unknown definition 'odd'; there are: full"),
    ],
)
def test_what_cannot_be_profiled_gets_one_line(no_gpu, capsys, args, status, message):
    assert cli.main(["profile", *args]) == status
    said = capsys.readouterr()
    (line,) = [line for line in said.err.splitlines() if not line.startswith("No CUDA")]
    assert message in line and said.out == ""


# The page


def test_the_page_holds_what_was_recorded_and_says_what_is_stale(tmp_path):
    current = pack.pack("triton_fused_v2")["full"].hash()
    overlaps = profile_of({"gemm1": {"g": 40.0}}, wall_us=6.0, host_us=-2.0, bound_us=3.0)
    fresh = record_of("triton_fused_v2", overlaps, sha1=current)
    gone = record_of("gone", profile_of({"gemm1": {"g": 20.0}}, wall_us=5.0, host_us=1.0, warnings=["odd"]))
    assert "--records docs/data/profile" in profiles.block(tmp_path)
    for record in (fresh, gone):
        (tmp_path / f"{record.solution}.json").write_text(record.model_dump_json())
    block = profiles.block(tmp_path)
    assert "## A GPU" in block and "### T = 57, u" in block
    assert "| T=57 | gone | 5.0 | - | - | 4.0 | - | 1.0 |" in block
    assert "| T=57 | triton_fused_v2 | 6.0 | 3.0 | 2.00 | 8.0 | >= 2.0 | - |" in block  # host time is not known
    assert "| **triton_fused_v2** |  |  |  |\n| gemm1 | g | 8.0 | 100.0% |" in block
    assert "**Warning**: gone: odd" in block
    assert "- gone (source 0), triton_fused_v2 (source" in block and "has changed since: gone.**" in block


@pytest.mark.parametrize("text", ["{", "{}", '{"solution": 3}'])
def test_a_broken_record_is_named_in_one_line(tmp_path, text):
    (tmp_path / "odd.json").write_text(text)
    with pytest.raises(UserError, match=r"^odd\.json: not a ProfileRecord: .*$") as caught:
        read_records(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.gpu
@pytest.mark.parametrize("solution", ["triton_fused_v2", "gather_scatter_bf16", "triton_mxfp8"])
def test_a_profile_on_the_device(tmp_path, solution):
    """Every kernel has a stage, and a call's kernels take no longer than its wall time."""
    assert cli.main(["profile", solution, "--calls", "3", "--records", str(tmp_path)]) == 0
    for workload in read_json(tmp_path / f"{solution}.json", ProfileRecord).workloads:
        assert UNASSIGNED not in [stage.stage for stage in workload.stages] and workload.other
        assert 0 < workload.pipeline_us < workload.wall_us and workload.bound_us < workload.wall_us
