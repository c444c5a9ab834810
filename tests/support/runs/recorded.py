"""Small trace sets that tests write, with figures of their own."""

import json
from functools import cache

from flashinfer_bench import (
    BuildSpec,
    Correctness,
    Environment,
    Evaluation,
    Performance,
    Solution,
    SourceFile,
    Trace,
)
from flashinfer_bench.data import load_jsonl_file
from moebench.core import paths
from moebench.operators.catalogue import definition_name
from moebench.results import trace_files

NAME = definition_name("full")


@cache
def workloads(definition):
    """Return this repository's workloads of a definition's name."""
    traces = load_jsonl_file(Trace, paths.workload_file(definition))
    return [trace.workload for trace in traces]


RECORDS = workloads(NAME)
RELAXED = "relaxed: rtol=0.2 atol=0.1 ratio=0.85"
DEFAULT = "default: rtol=0.01 atol=0.01 ratio=0.95"


def workload(seq_len, definition=NAME):
    """Return one of this repository's workloads."""
    for each in workloads(definition):
        if each.axes["seq_len"] == seq_len:
            return each
    raise LookupError(f"{definition}: no workload with T={seq_len}")


def solution(name):
    """Return a Solution of the full layer, whose hash its traces may name."""
    spec = BuildSpec(
        language="python", target_hardware=["cpu"], entry_point="main.py::run"
    )
    source = SourceFile(path="main.py", content=f"def run(): return {name!r}")
    return Solution(
        name=name, definition=NAME, author="tests", spec=spec, sources=[source]
    )


def performance(ms, reference_ms):
    """Return the times of a trace; ms=0 is what a run without times leaves."""
    if not ms:
        return Performance(latency_ms=0, reference_latency_ms=0, speedup_factor=0)
    speedup = reference_ms / ms
    return Performance(
        latency_ms=ms, reference_latency_ms=reference_ms, speedup_factor=speedup
    )


def correctness(matched):
    errors = {"max_relative_error": 2, "max_absolute_error": 3}
    return Correctness(**errors, extra={"matched_ratio": matched})


def trace(
    name,
    seq_len,
    ms=1.0,
    reference_ms=10.0,
    *,
    status="PASSED",
    matched=0.99,
    tolerance=RELAXED,
    hardware="NVIDIA H200",
    day="2026-01-01",
    sha1=None,
    log="",
    definition=NAME,
    **libs,
):
    """Return a trace of solution(name); libs as in Environment."""
    libs = {"torch": "2.11", "protocol": "once", "tolerance": tolerance} | libs
    libs |= {"solution_sha1": sha1 or solution(name).hash(), "command": "python x"}
    was_compared = status in ("PASSED", "INCORRECT_NUMERICAL")

    evaluation = Evaluation(
        status=status,
        environment=Environment(hardware=hardware, libs=libs),
        timestamp=f"{day}T00:00:00",
        log=log,
        correctness=correctness(matched) if was_compared else None,
        performance=performance(ms, reference_ms) if status == "PASSED" else None,
    )
    return Trace(
        definition=definition,
        workload=workload(seq_len, definition),
        solution=name,
        evaluation=evaluation,
    )


def everywhere(name, ms, **changes):
    """Return a trace of a solution on every workload of the full layer."""
    return [trace(name, each.axes["seq_len"], ms, 20.0, **changes) for each in RECORDS]


def record(packed, **more):
    """Return a trace of a packed solution for each workload of its definition."""
    options = {"sha1": packed.hash(), "definition": packed.definition} | more
    traces = []
    for each in workloads(packed.definition):
        traces.append(trace(packed.name, each.axes["seq_len"], **options))
    return traces


def times_in(file):
    """Return the ms of a file's traces, sorted."""
    traces = trace_files.read_saved(file)
    return sorted(trace.evaluation.performance.latency_ms for trace in traces)


def write(file, traces):
    """Write a JSONL file of traces; return its path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{trace.model_dump_json()}\n" for trace in traces))
    return file


def trace_set(root, traces, solutions=("fast", "slow")):
    """Write a data set at root with this repository's workloads, these traces, and the solutions
    that it has the source of. Returns root.
    """
    (root / "solutions").mkdir(parents=True, exist_ok=True)
    for folder in ("definitions", "workloads"):
        if not (root / folder).exists():
            (root / folder).symlink_to(paths.ROOT / folder)

    for name in solutions:
        content = json.loads(solution(name).model_dump_json())
        (root / "solutions" / f"{name}.json").write_text(json.dumps(content))
    write(root / "traces" / "moe" / f"{NAME}.jsonl", traces)
    return root
