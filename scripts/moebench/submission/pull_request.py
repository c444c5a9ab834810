"""A pull request to a FIB data set: a solution, its current traces, what the data set lacks, and
what was run where.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from flashinfer_bench import Solution, Workload

from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import UserError
from moebench.judging import dataset
from moebench.operators.workloads import of_data_set
from moebench.packing import solution_files
from moebench.reports.table import Table
from moebench.results import measurements
from moebench.results.summary import shown_of

# the author of what FIB compares a definition's other solutions with; there is one at most
BASELINE = "baseline"
HEAD = [
    "solution",
    "machine",
    "tolerance",
    "source",
    "traces",
    "tensors",
    "date",
    "protocol",
    "versions",
]
COUNTS = ["passed", "failed", "not run"]
VALIDATE = [
    sys.executable,
    "-c",
    "from flashinfer_bench.cli.main import cli; cli()",
    "validate",
    "--disable-gpu",
]


class Layer(NamedTuple):
    """A definition in a data set. files: this repository's that the data set gets, or has from
    here.

    workloads: the data set's, or this repository's with their tensors among `files`. differs: in
    what this repository's definition of that name is another.
    """

    files: list[Path]
    workloads: list[Workload]
    differs: list[str]


def layer_in(into: Path, name: str) -> Layer:
    """A definition, by name, as it is in a data set once the pull request is written.

    Raises UserError where the data set's is another layer than this repository's of that name.
    """
    definition = paths.definition_file(name)
    there = {path.stem: path for path in (into / "definitions").rglob("*.json")}
    ours, differs = [definition], []
    if name in there and not is_in(into, definition):
        ours, differs = [], dataset.differing(dataset.definition(name, into))
    if "axes" in differs or "inputs or outputs" in differs:
        raise UserError(
            f"--into: {there[name]}: it is another layer than this repository's definition of this name"
        )
    theirs = of_data_set(name, into)
    workloads = [workload for _, workload in dataset.labelled(name)]
    data = [
        paths.workload_file(name),
        *(path for workload in workloads for path in stored(workload)),
    ]
    if theirs and not all(is_in(into, path) for path in data):
        return Layer(ours, theirs, differs)
    return Layer([*ours, *data], workloads, differs)


def stored(workload: Workload) -> list[Path]:
    """Files of this repository with a workload's tensors."""
    return [
        paths.ROOT / spec.path for spec in workload.inputs.values() if spec.type == "safetensors"
    ]


def is_in(into: Path, path: Path) -> bool:
    """Whether a data set has a file of this repository, with the same content."""
    there = into / path.relative_to(paths.ROOT)
    return path.is_file() and there.is_file() and there.read_bytes() == path.read_bytes()


def measured(
    solution: Solution, traces: list[Path], workloads: list[Workload], generated: list[str]
) -> pd.DataFrame:
    """The rows of a solution on these workloads, and which of their traces are `submitted`.

    Submitted are traces of the current source, timed unless they failed: one of each workload and
    machine, as FIB takes the fastest of several whatever their tolerance. generated: uuids of
    workloads whose tensors are this repository's; of others only traces count that were measured on
    the data set's.
    """
    rows = measurements.load_solution(solution, traces)
    rows = rows[
        rows.uuid.isin([workload.uuid for workload in workloads]) & (rows.clock == "events")
    ]
    usable = rows[(rows.source == "current") & (rows.ms.notna() | ~rows.passed.astype(bool))]
    usable = usable[usable.uuid.isin(generated) | usable.protocol.str.contains("dataset=")]
    shown = {machine: shown_of(of_machine) for machine, of_machine in usable.groupby("hardware")}
    usable = usable[usable.tolerance == usable.hardware.map(shown)].drop_duplicates(
        ["hardware", "uuid"]
    )
    rows = rows.assign(submitted=rows.index.isin(usable.index)).sort_values(
        "submitted", ascending=False, kind="stable"
    )
    return rows.drop_duplicates(["hardware", "tolerance", "source", "uuid"])


def runs(solution: Solution, rows: pd.DataFrame, workloads: int) -> list[list]:
    """Lines below HEAD and COUNTS, one for each machine, tolerance and state of the source."""
    lines = []
    for (machine, _, source), run in rows.groupby(["hardware", "tolerance", "source"]):
        tensors = run.protocol.str.contains("dataset=").map(
            {True: "the data set's", False: "generated"}
        )
        columns = run.tolerance_text, tensors, run.timestamp.str[:10], run.protocol, run.versions
        tolerance, *about = ("; ".join(dict.fromkeys(column)) for column in columns)
        state = "submitted" if run.submitted.any() else "left out"
        passed = int(run.passed.sum())
        counts = [passed, len(run) - passed, workloads - len(run)]
        lines.append([solution.name, machine, tolerance, source, state, *about, *counts])
    return lines or [
        [solution.name, None, None, None, "none", None, None, None, None, 0, 0, workloads]
    ]


def files_of(solution: Solution, traces: Path, rows: pd.DataFrame, into: Path) -> dict[Path, str]:
    """Path -> content of a solution and of its author's traces, where those submitted replace those
    from before.

    Raises UserError where somebody else's file is in its place or has its name, of which FIB wants
    one in a data set.
    """
    place = (
        into
        / "solutions"
        / paths.of_author(solution.author, solution.definition)
        / f"{solution.name}.json"
    )
    there, _ = solution_files.read(sorted((into / "solutions").rglob("*.json")))
    for path, other in there.items():
        if (path == place or other.name == solution.name) and (path, other.author) != (
            place,
            solution.author,
        ):
            raise UserError(f"--into: another solution is called {solution.name}: {path}")
    before = traces.read_text(encoding="utf-8") if traces.exists() else ""
    of_it = re.compile(rf'"solution": *"{re.escape(solution.name)}"')
    lines = [line for line in before.split("\n") if line]  # JSON may hold other line ends
    lines = [
        line for line in lines if not (of_it.search(line) and '"solution_sha1"' in line)
    ]  # which ours have
    lines += [trace.model_dump_json() for trace in rows.trace[rows.submitted]]
    content = {place: solution.model_dump_json(indent=2) + "\n"}
    if before or lines:
        content[traces] = "".join(f"{line}\n" for line in lines)
    return content


def validate(into: Path, name: str, checks: str) -> str:
    """FIB's report on a definition of a data set, or why there is none. FIB_MAIN: a checkout that
    has `validate`.
    """
    env = os.environ | {
        "PYTHONPATH": os.environ.get("FIB_MAIN", "") + os.pathsep + os.environ.get("PYTHONPATH", "")
    }
    asked = ["--dataset", into, "--definitions", name, "--checks", checks, "--outputs", "stdout"]
    done = subprocess.run([*VALIDATE, *asked], env=env, capture_output=True, text=True)
    said = (done.stderr.strip().splitlines() or ["no output"])[-1]
    return f"not run: {said}" if done.returncode else done.stdout.partition("\n---")[2].strip()


def prepare(solutions: list[Solution], into: Path, given: list[Path]) -> bool:
    """Write what is submitted of one definition, and its description; return whether FIB's validate
    finds no error.

    solutions: the submitted one, and a baseline for a set without one. given: traces beside the
    set's. Raises UserError
    """
    if into.resolve() == paths.ROOT or (
        into.is_dir() and any(into.iterdir()) and not (into / "definitions").is_dir()
    ):
        raise UserError(
            f"--into: got {into}, want a new folder, or a checkout of a FlashInfer-Trace data set"
        )
    own, *others = solutions
    name = own.definition
    layer = layer_in(into, name)
    generated = [
        workload.uuid
        for workload in layer.workloads
        if all(path in layer.files or is_in(into, path) for path in stored(workload))
    ]
    baselines = {
        path.stem
        for path in (into / "solutions" / BASELINE).rglob("*.json")
        if path.parent.name == name
    }
    beside = [
        other.model_copy(update={"author": BASELINE})
        for other in others
        if baselines <= {other.name}
    ]

    content = {into / path.relative_to(paths.ROOT): path.read_bytes() for path in layer.files}
    lines = []
    for solution in [own, *beside]:
        traces = into / "traces" / f"{paths.of_author(solution.author, name)}.jsonl"
        earlier = [traces] if traces.exists() and traces.stat().st_size else []
        rows = measured(solution, [*given, *earlier], layer.workloads, generated)
        content |= files_of(solution, traces, rows, into)
        lines += runs(solution, rows, len(layer.workloads))
    for path, text in content.items():
        write_atomically(path, text)

    report = validate(
        into,
        name,
        "layout,solution,trace,baseline" + (",definition,workload" if layer.files else ""),
    )
    points = [
        f"baseline: {', '.join(sorted(baselines | {other.name for other in beside})) or 'none'}"
    ]
    if layer.differs:
        points.append(
            f"the definition of the measurement has another text: {', '.join(layer.differs)}"
        )
    written = dict.fromkeys(
        path.parent if path.suffix == ".safetensors" else path for path in content
    )
    points += [f"`{path.relative_to(into)}`" for path in written]
    notes = ["\n".join(f"- {point}" for point in points)]
    notes.append(f"FlashInfer-Bench's `validate`:\n\n```\n{report}\n```\n")
    text = Table([*HEAD, *COUNTS], [lines], title=name, words=len(HEAD), notes=notes).markdown(
        titled=True
    )
    description = into / f"{own.name}.pull_request.md"
    write_atomically(description, text)
    print(text, f"This text is in {description}", sep="\n")
    return "[ERROR]" not in report and not (
        report.startswith("not run") and os.environ.get("FIB_MAIN")
    )
