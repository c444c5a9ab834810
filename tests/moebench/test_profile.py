"""The profile: kernels to stages, harness apart, launches checked, ncu's report read, solutions in
one table.

Launches and a profiler's events are made up; ncu's report is a recorded one.
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
from moebench.profiling import calls, ncu, profile, torch_profiler
from moebench.profiling.record import Counters, Kernel, ProfileRecord, WorkloadProfile
from moebench.profiling.stages import UNASSIGNED, plain_name, stage_of
from moebench.profiling.torch_profiler import busy_us, kernels, warnings
from moebench.reports import profiles

# Some kernels of two workloads, on an H200.
SAMPLE = Path(__file__).parents[1] / "samples" / "ncu_metrics.csv"
NCU = SAMPLE.read_text(encoding="utf-8")
STAGES = {
    "gemm1_swiglu_quant_kernel": "gemm1 + swiglu_quant",
    "gemm1*": "gemm1",
    "gemm2*": "gemm2",
    "route*": "route",
}
LAUNCH_COLUMNS = ["kernel", "start", "us", "call"]


def launched(*kernels, calls=5):
    """Return launches, each of which starts when all before it have ended.

    kernels: (name, us of all calls), or (name, us, launches in each call).
    """
    rows = []
    now = 0.0
    for name, us, *per_call in kernels:
        counts = per_call or [1] * calls
        duration = us / sum(counts)
        for call, count in enumerate(counts):
            for _ in range(count):
                rows.append((name, now, duration, call))
                now += duration
    return pd.DataFrame(rows, columns=LAUNCH_COLUMNS)


def kernel(stage, us, name=None, launches=1):
    return Kernel(
        stage=stage, name=name or stage, launches=launches, us=us, counters=[]
    )


def record_of(solution, *kernels, uuid="u", T=57, **rest):
    """Return a record of one workload with these kernels."""
    made_by = Provenance(
        hardware="A GPU",
        versions={"torch": "2"},
        timestamp="2026-01-01T00:00:00",
        command="moebench x",
        source_sha1="0",
        protocol="p",
    )
    fields = {"busy_us": sum(kernel.us for kernel in kernels)} | rest
    workload = WorkloadProfile(uuid=uuid, T=T, calls=5, kernels=list(kernels), **fields)
    return ProfileRecord(
        solution=solution, definition="d", provenance=made_by, workloads=[workload]
    )


# Names and stages


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        (
            "gemm1_swiglu_quant_kernel",
            "gemm1 + swiglu_quant",
        ),  # a whole name before patterns
        ("gemm1_rest", "gemm1"),
        ("gemm2_rest", "gemm2"),  # the first pattern that fits
        ("combine_kernel", None),
    ],
)
def test_the_stage_of_a_kernel(name, stage):
    assert stage_of(name, STAGES | {"gemm*": "others"}) == stage


@pytest.mark.parametrize(
    ("signature", "name"),
    [
        ("fused_layer(Maps, Args)", "fused_layer"),
        ("void ours::gemm2<128, ours::Tile<4>>(float const*, int)", "gemm2"),
        ("void at::native::(anonymous namespace)::fill<int>(int)", "fill"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
    ],
)
def test_the_plain_name_of_a_kernel(signature, name):
    assert plain_name(signature) == name


def test_kernels_are_in_the_order_of_their_stages_and_the_longest_first():
    launches = launched(
        ("gemm2_kernel", 30),
        ("route_a", 10),
        ("gemm1_x", 60, 2, 2, 2, 2, 2),
        ("gemm1_y", 75),
        ("odd", 5),
    )
    assert kernels(launches, STAGES, 5) == [
        kernel("gemm1", 15, "gemm1_y"),
        kernel("gemm1", 12, "gemm1_x", launches=2),
        kernel("gemm2", 6, "gemm2_kernel"),
        kernel("route", 2, "route_a"),
        kernel(UNASSIGNED, 1, "odd"),
    ]


def warnings_of(*per_call):
    """Return the warnings of a kernel that is launched so often in each call."""
    launches = launched(("k", 1.0, *per_call))
    return warnings(kernels(launches, {"*": "all"}, 5), launches, 5)


@pytest.mark.parametrize("per_call", [[1, 0, 1, 0, 1], [1, 1, 1, 1, 2]])
def test_a_kernel_that_some_calls_launch_is_a_warning(per_call):
    """It would be an average of two things."""
    assert warnings_of(2, 2, 2, 2, 2) == []
    (line,) = warnings_of(*per_call)
    assert line.startswith("k: ")


def test_a_kernel_without_a_stage_is_a_warning_and_a_row():
    launches = launched(("gemm1", 1.0), ("odd", 3.0))
    rows = kernels(launches, STAGES, 5)
    (line,) = warnings(rows, launches, 5)
    assert line.startswith("odd: ")

    text = profiles.table([record_of("a", *rows, warnings=[line])]).markdown()
    assert f"a, T=57: {line}" in text
    assert f"|  | {UNASSIGNED} | 0.6 |" in text


def test_no_kernel_at_all_is_a_warning():
    assert len(warnings([], launched(), 5)) == 1


# What torch.profiler records


class ChromeTrace:
    """Events as torch.profiler writes them."""

    def __init__(self):
        self.events = [{"ph": "M", "name": "process_name", "ts": 0.0}]

    def add(self, category, name, start, duration, **args):
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "ts": start,
                "dur": duration,
                "tid": 1,
                "args": args,
            }
        )

    def launch(self, api, at, kernel, start, duration, category="kernel"):
        """Add what the host calls, and the kernel on the device, with one correlation."""
        correlation = len(self.events)
        api_category = "cuda_driver" if api.startswith("cu_") else "cuda_runtime"
        self.add(api_category, api, at, 2.0, correlation=correlation)
        self.add(category, kernel, start, duration, correlation=correlation)

    def add_call(self, at):
        """Add a flush and a clone, then a call with two kernels and a memset."""
        fill = "void at::native::fill<int>(int)"
        copy = "Memcpy DtoD (Device -> Device)"
        self.launch("cudaLaunchKernel", at + 10, fill, at + 20, 50.0)
        self.launch("cudaMemcpyAsync", at + 80, copy, at + 90, 40.0, "gpu_memcpy")

        self.add("user_annotation", torch_profiler.CALL, at + 200, 300.0)
        self.add("gpu_user_annotation", torch_profiler.CALL, at + 210, 200.0)
        # The device's clock may run a little behind the host's: this kernel seems to start before
        # its call.
        self.launch("cu_LaunchKernelEx", at + 205, "route_kernel", at + 199, 10.0)
        gemm1 = "ours::gemm1(Maps, Args)"
        self.launch("cudaLaunchCooperativeKernel", at + 230, gemm1, at + 240, 100.0)
        memset = "Memset (Device)"
        self.launch("cudaMemsetAsync", at + 240, memset, at + 345, 5.0, "gpu_memset")


@pytest.fixture
def two_calls():
    """Events of two calls."""
    trace = ChromeTrace()
    trace.add_call(0.0)
    trace.add_call(1000.0)
    return trace.events


def test_what_the_harness_runs_is_kept_apart(two_calls):
    """The clones of 1.4 GB take longer than the layer."""
    launches = torch_profiler.launches(two_calls, 2)
    assert sorted(launches[["call", "kernel", "us"]].to_numpy().tolist()) == [
        [0, "Memset (Device)", 5],
        [0, "gemm1", 100],
        [0, "route_kernel", 10],
        [1, "Memset (Device)", 5],
        [1, "gemm1", 100],
        [1, "route_kernel", 10],
    ]


def test_without_a_recorded_launch_the_kernels_start_will_do(two_calls):
    recorded = [event for event in two_calls if event.get("cat") != "cuda_runtime"]
    launches = torch_profiler.launches(recorded, 2)
    assert set(launches.kernel) == {"route_kernel", "gemm1", "Memset (Device)"}


def test_a_lost_call_is_an_error(two_calls):
    with pytest.raises(CannotRun, match="2 calls, want 3"):
        torch_profiler.launches(two_calls, 3)


def test_overlapping_kernels_count_once_in_the_time_of_a_call():
    rows = [
        ("long", 0.0, 100.0, 0),
        ("inside", 10.0, 20.0, 0),
        ("later", 40.0, 70.0, 0),
        ("next", 5.0, 1.0, 1),
    ]
    launches = pd.DataFrame(rows, columns=LAUNCH_COLUMNS)
    assert busy_us(launches, 2) == (110 + 1) / 2


# What ncu counts


def counted(*launches):
    """Return launches as ncu's reader does, from (kernel, us, {field: value})."""
    rows = []
    for name, us, fields in launches:
        rows.append({"kernel": name, "us": us} | fields)
    return pd.DataFrame(rows, columns=["kernel", *ncu.METRICS])


def test_a_report_of_ncu_is_read_launch_by_launch():
    few, many = ncu.by_workload(NCU, 2)
    assert few.kernel.to_list() == ["gemm2_kernel", "combine_kernel"]
    assert many.kernel.to_list()[-1] == "combine_kernel"

    gemm2 = few.set_index("kernel").loc["gemm2_kernel"]
    expected = {"us": 96.448, "grid": 396, "block": 128, "dram_percent": 84.23}
    expected |= {"tensor_percent": 6.66, "occupancy_percent": 17.56}
    assert gemm2[list(expected)].to_dict() == expected


def test_a_metric_that_ncu_does_not_have_is_missing():
    without = re.sub(r"^.*gemm2_kernel.*pipe_tensor.*\n", "", NCU, flags=re.MULTILINE)
    few, _ = ncu.by_workload(without, 2)
    assert without != NCU
    assert few.kernel[few.tensor_percent.isna()].to_list() == ["gemm2_kernel"]


def test_counters_are_each_launchs_and_a_stages_are_weighted_by_time():
    first = {"grid": 2, "block": 128, "dram_percent": 40.0}
    second = {"dram_percent": 80.0, "tensor_percent": 61.0}
    launches = counted(
        ("gemm2_k", 300.0, first), ("gemm2_k", 100.0, second), ("route_k", 1.0, {})
    )
    record = record_of(
        "a",
        kernel("gemm1", 1.0),
        kernel("gemm2", 180.0, "gemm2_k"),
        wall_us=250.0,
        bound_us=100.0,
    )
    workload = ncu.with_counters(record.workloads[0], launches, STAGES)

    gemm1, gemm2 = workload.kernels
    assert gemm1.counters == []
    assert gemm2.counters == [Counters(us=300.0, **first), Counters(us=100.0, **second)]
    assert [line.partition(":")[0] for line in workload.warnings] == ["gemm1", "route"]

    text = profiles.table(
        [record.model_copy(update={"workloads": [workload]})]
    ).markdown()
    assert "|  | gemm2 | 180.0 (50.0, 61.0) |" in text
    assert "| a | gemm1 | 1.0 |" in text


IN_CYCLES = re.sub(r'(?<="gpu__time_duration.sum",)"ns"', '"cycle"', NCU)
NO_PERMISSION = "==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - no permission\n"


@pytest.mark.parametrize(
    ("report", "named"),
    [
        (NO_PERMISSION, "ERR_NVGPUCTRPERM"),
        ("", "ncu: "),
        (IN_CYCLES, "'cycle'"),
        (NCU, "2 workloads, want 3"),
    ],
)
def test_an_unfit_ncu_output_gets_one_line(report, named):
    with pytest.raises(CannotRun) as caught:
        ncu.by_workload(report, 3)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def stand_in_ncu(tmp_path, monkeypatch):
    """Make an `ncu` of a shell script's text, before all else on the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def make(script):
        file = tmp_path / "ncu"
        file.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        file.chmod(stat.S_IRWXU)

    return make


def test_ncu_is_started_on_the_calls_and_its_output_is_read(stand_in_ncu, tmp_path):
    note = f'echo "$@" >> {tmp_path}/arguments'
    find_log = 'while [ "$1" != --log-file ]; do shift; done'
    stand_in_ncu(f'{note}\n{find_log}; cp {SAMPLE} "$2"')
    report = ncu.record("tiny", "full", ["uuid-a", "skewed:9"])
    assert len(ncu.by_workload(report, 2)) == 2

    arguments = (tmp_path / "arguments").read_text(encoding="utf-8").strip()
    assert arguments.endswith("-m moebench.profiling.calls tiny full uuid-a skewed:9")
    assert "--csv" in arguments
    assert all(metric in arguments for metric in ncu.METRICS.values())


def test_ncus_error_is_said(stand_in_ncu):
    stand_in_ncu("echo '==ERROR== ERR_NVGPUCTRPERM'; echo later; exit 9")
    with pytest.raises(CannotRun, match="9: ==ERROR== ERR_NVGPUCTRPERM$"):
        ncu.record("tiny", "full", ["u"])


def test_without_ncu_nothing_is_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotRun, match="PATH"):
        ncu.record("tiny", "full", ["u"])


# A whole profile


@pytest.fixture
def profiled(monkeypatch):
    """Profile a function that stands in for a solution, on a machine without a GPU.

    Returns its record and the lines of what failed.
    """

    def run(function, launches, chosen, counters=False):
        function.metadata = SimpleNamespace(destination_passing_style=True)
        monkeypatch.setattr(profile, "build", lambda *_: function)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch_profiler, "record", lambda *_: [])
        monkeypatch.setattr(torch_profiler, "launches", lambda *_: launches)
        failures = []

        def say(line, failed=False):
            if failed:
                failures.append(line)

        job = profile.Job(
            solutions={"triton_fused_v2": pack.pack("triton_fused_v2")["small"]},
            layer_key="small",
            workloads=calls.choose_workloads(chosen, "small"),
            device="cpu",
            calls=launches.call.nunique(),
            counters=counters,
            command="moebench x",
            say=say,
        )
        (record,) = profile.profile_all(job)
        return record, failures

    return run


def test_a_profile_without_counters_and_the_workloads_that_run_are_kept(
    profiled, monkeypatch
):
    def refuse(*_):
        raise CannotRun("ncu: ERR_NVGPUCTRPERM")

    def fails_for_one_token(logits, *rest):
        if len(logits) == 1:
            raise ValueError("no single token\nand more")
        rest[-1].fill_(1)

    monkeypatch.setattr(ncu, "record", refuse)
    launches = launched(("odd", 1.0), calls=2)
    chosen = ["one-expert:1", "uniform:2"]
    record, failures = profiled(fails_for_one_token, launches, chosen, counters=True)

    assert len(failures) == 2
    assert failures[0].endswith("ValueError: no single token")
    (workload,) = record.workloads
    assert workload.T == 2
    assert workload.kernels[0].stage == UNASSIGNED
    assert workload.warnings[1:] == ["ncu: ERR_NVGPUCTRPERM"]


def test_workloads_by_token_count_uuid_name_and_made_up_routing():
    by_name = calls.choose_workloads(["first-rank"], "small")
    assert calls.choose_workloads(list(by_name), "small") == by_name
    # two workloads have one token
    assert len(calls.choose_workloads(["1"], "small")) == 2

    chosen = calls.choose_workloads(["16", "uniform:9", "16"], "small")
    tokens = [workload.axes["seq_len"] for workload in chosen.values()]
    assert tokens == [16, 9]


def test_inputs_are_the_same_each_time():
    def runnable(*_):
        pass

    runnable.metadata = SimpleNamespace(destination_passing_style=True)
    workload = calls.choose_workloads(["uniform:9"], "small")["uniform:9"]
    first = calls.arguments(runnable, workload, definition("small"), "cpu")
    again = calls.arguments(runnable, workload, definition("small"), "cpu")

    logits, bias, hidden_states, *_ = first
    assert logits.shape == (9, 256)
    assert bias.dtype == torch.bfloat16
    assert hidden_states.shape == (9, 512)
    for value, same_value in zip(first[:8], again[:8], strict=True):
        assert torch.equal(value.float(), same_value.float())


@pytest.mark.gpu
@pytest.mark.parametrize(
    "solution", ["triton_fused_v2", "gather_scatter_bf16", "triton_mxfp8"]
)
def test_a_profile_on_the_device(tmp_path, solution):
    """Every kernel has a stage, and a call's kernels take no longer than its wall time."""
    command = ["profile", solution, "--calls", "3", "--records", str(tmp_path)]
    assert cli.main(command) == 0

    record = read_json(tmp_path / f"{solution}.json", ProfileRecord)
    for workload in record.workloads:
        assert UNASSIGNED not in workload.stages
        assert 0 < workload.busy_us < workload.wall_us
        assert workload.bound_us < workload.wall_us
