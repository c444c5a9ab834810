"""Small trace sets that tests write, with figures of their own."""

import json
import shutil
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
from moebench.operators.moe_fp8_block_scale import definition_name

NAME = definition_name("full")


@cache
def workloads(definition):
    """This repository's workloads of a definition's name."""
    return [trace.workload for trace in load_jsonl_file(Trace, paths.workload_file(definition))]


RECORDS = workloads(NAME)
RELAXED = "relaxed: rtol=0.2 atol=0.1 ratio=0.85"
DEFAULT = "default: rtol=0.01 atol=0.01 ratio=0.95"


def workload(seq_len, definition=NAME):
    """One of this repository's workloads."""
    return next(w for w in workloads(definition) if w.axes["seq_len"] == seq_len)


def solution(name):
    """A Solution of the full layer, whose hash its traces may name."""
    spec = BuildSpec(language="python", target_hardware=["cpu"], entry_point="main.py::run")
    source = SourceFile(path="main.py", content=f"def run(): return {name!r}")
    return Solution(name=name, definition=NAME, author="tests", spec=spec, sources=[source])


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
    """A trace of solution(name); ms=0 is what a run without times leaves; libs as in
    Environment.
    """
    numerical = status in ("PASSED", "INCORRECT_NUMERICAL")
    performance = Performance(
        latency_ms=ms,
        reference_latency_ms=reference_ms if ms else 0,
        speedup_factor=reference_ms / ms if ms else 0,
    )
    libs = {"torch": "2.11", "protocol": "once", "tolerance": tolerance} | libs
    evaluation = Evaluation(
        status=status,
        environment=Environment(
            hardware=hardware,
            libs=libs | {"solution_sha1": sha1 or solution(name).hash(), "command": "python x"},
        ),
        timestamp=f"{day}T00:00:00",
        log=log,
        correctness=Correctness(
            max_relative_error=2, max_absolute_error=3, extra={"matched_ratio": matched}
        )
        if numerical
        else None,
        performance=performance if status == "PASSED" else None,
    )
    return Trace(
        definition=definition,
        workload=workload(seq_len, definition),
        solution=name,
        evaluation=evaluation,
    )


def record(packed, **more):
    """A trace of a packed solution for each workload of its definition."""
    told = {"sha1": packed.hash(), "definition": packed.definition} | more
    return [
        trace(packed.name, workload.axes["seq_len"], **told)
        for workload in workloads(packed.definition)
    ]


def write(file, traces):
    """A JSONL file of traces, and its path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{t.model_dump_json()}\n" for t in traces))
    return file


def trace_set(root, traces, solutions=("fast", "slow")):
    """A data set at root with the 19 workloads, these traces, and the solutions that it has the
    source of.
    """
    for folder in ("definitions", "workloads"):
        shutil.copytree(
            paths.ROOT / folder,
            root / folder,
            ignore=shutil.ignore_patterns("*.py", "__pycache__"),
            dirs_exist_ok=True,
        )
    for name in solutions:
        file = root / "solutions" / f"{name}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(json.loads(solution(name).model_dump_json())))
    write(root / "traces" / "moe" / f"{NAME}.jsonl", traces)
    return root
