"""A pull request to a FIB data set: a solution, its current traces, what the data set lacks, and
what was run where.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from flashinfer_bench import Solution, Workload

from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import CannotRun, UserError
from moebench.judging import dataset
from moebench.operators import catalogue
from moebench.operators.workloads import of_data_set
from moebench.packing import solution_files
from moebench.packing.manifest import folder_name
from moebench.reports.table import Table
from moebench.results import measurements
from moebench.results.summary import shown_tolerance

# The author of what FIB compares a definition's other solutions with; a definition has one at most.
BASELINE = "baseline"
DATA_SET_TENSORS = "dataset="  # in the protocol of a trace that was not measured on ours
OTHER_LAYER = ("axes", "inputs", "outputs")  # fields of a definition that make it another layer
COUNTS = ["passed", "failed", "not run"]
RUN_COLUMNS = "solution machine tolerance source traces tensors date protocol versions".split()
VALIDATE = [
    sys.executable,
    "-c",
    "from flashinfer_bench.cli.main import cli; cli()",
    "validate",
    "--disable-gpu",
]
NOT_MEASURED = (
    "{name} is not submitted: it has no timed PASSED trace of its source as it is now; "
    "record some on a CUDA GPU: moebench run --solutions {folder} --definition {key} --save"
)


@dataclass(frozen=True)
class Layer:
    """A definition in a data set.

    files: this repository's that are, or will be, in the data set unchanged. workloads: its own,
    or this repository's if their tensors are among `files`. differences: parts in which this
    repository's definition of that name is another.
    """

    files: list[Path]
    workloads: list[Workload]
    differences: list[str]


@dataclass(frozen=True)
class PullRequest:
    """What is written to a data set for one definition.

    contents: by path. run_lines: rows of the table of runs, by column. baselines: names of the
    definition's baseline solutions.
    """

    solution: Solution
    into: Path
    layer: Layer
    contents: dict[Path, bytes | str]
    run_lines: list[dict]
    baselines: set[str]


def plan(
    solution: Solution, baselines: list[Solution], into: Path, traces: list[Path]
) -> PullRequest:
    """Return the pull request of a solution of one definition; nothing is written yet.

    baselines: solutions for a data set that has no baseline. traces: files beside the data set's
    own. Raises UserError where a file of somebody else is in the way, CannotRun for a solution
    that was never measured.
    """
    check_folder(into)
    definition = solution.definition
    layer = layer_in(into, definition)
    generated = generated_workloads(layer, into)
    baseline_files = (into / "solutions" / BASELINE).rglob("*.json")
    present = {path.stem for path in baseline_files if path.parent.name == definition}

    submitted = [solution]
    for baseline in baselines:
        if present <= {baseline.name}:
            submitted.append(baseline.model_copy(update={"author": BASELINE}))

    contents: dict[Path, bytes | str] = {}
    for path in layer.files:
        contents[into / repository_path(path)] = path.read_bytes()
    run_lines = []
    for each in submitted:
        trace_file = into / "traces" / f"{paths.author_folder(each.author, definition)}.jsonl"
        earlier = [trace_file] if trace_file.exists() and trace_file.stat().st_size else []
        rows = measured(each, [*traces, *earlier], layer.workloads, generated)
        if each is solution:
            check_measured(solution, rows)
        contents |= solution_contents(each, trace_file, rows, into)
        run_lines += runs(each, rows, len(layer.workloads))

    names = present | {baseline.name for baseline in submitted[1:]}
    return PullRequest(solution, into, layer, contents, run_lines, names)


def write(planned: PullRequest) -> bool:
    """Write a pull request and its description; return whether FIB's validate finds no error."""
    for path, content in planned.contents.items():
        write_atomically(path, content)

    checks = "layout,solution,trace,baseline"
    if planned.layer.files:
        checks += ",definition,workload"
    report = validate(planned.into, planned.solution.definition, checks)

    text = description(planned, report)
    file = planned.into / f"{planned.solution.name}.pull_request.md"
    write_atomically(file, text)
    print(text)
    print(f"This text is in {file}")

    is_missing = report.startswith("not run") and bool(os.environ.get("FIB_MAIN"))
    return "[ERROR]" not in report and not is_missing


def check_folder(into: Path) -> None:
    """Raise UserError for a folder that is neither new nor a data set, and for this repository."""
    is_occupied = into.is_dir() and any(into.iterdir()) and not (into / "definitions").is_dir()
    if into.resolve() == paths.ROOT or is_occupied:
        raise UserError(
            f"--into: got {into}, want a new folder, or a checkout of a FlashInfer-Trace data set"
        )


def check_measured(solution: Solution, rows: pd.DataFrame) -> None:
    """Raise CannotRun for a solution that no trace shows timed and PASSED as it is now."""
    passed = rows.passed.astype(bool) & rows.ms.notna()
    if not (passed & (rows.source == "current")).any():
        folder = folder_name(solution.name, solution.definition)
        key = catalogue.by_name()[solution.definition]
        raise CannotRun(NOT_MEASURED.format(name=solution.name, folder=folder, key=key))


def layer_in(into: Path, definition: str) -> Layer:
    """Return a definition, by name, as it is in a data set once the pull request is written.

    Raises UserError where the data set's is another layer than this repository's of that name.
    """
    files = [paths.definition_file(definition)]
    differences = []
    present = {path.stem: path for path in (into / "definitions").rglob("*.json")}
    if definition in present and not is_in(into, files[0]):
        files = []
        differences = dataset.differing(dataset.definition(definition, into))
    if not set(OTHER_LAYER).isdisjoint(differences):
        raise UserError(
            f"--into: {present[definition]}: it is another layer than this repository's "
            "definition of this name"
        )

    present_workloads = of_data_set(definition, into)
    workloads = [workload for _, workload in dataset.labelled(definition)]
    workload_files = [paths.workload_file(definition)]
    for workload in workloads:
        workload_files += tensor_files(workload)
    if present_workloads and not all(is_in(into, path) for path in workload_files):
        return Layer(files, present_workloads, differences)
    return Layer([*files, *workload_files], workloads, differences)


def tensor_files(workload: Workload) -> list[Path]:
    """Return the files of this repository with a workload's tensors."""
    specs = workload.inputs.values()
    return [paths.ROOT / spec.path for spec in specs if spec.type == "safetensors"]


def repository_path(path: Path) -> Path:
    """Return a file's path in this repository, which it has in a data set, too."""
    return path.relative_to(paths.ROOT)


def is_in(into: Path, path: Path) -> bool:
    """Return whether a data set has a file of this repository, with the same content."""
    copy = into / repository_path(path)
    return path.is_file() and copy.is_file() and copy.read_bytes() == path.read_bytes()


def generated_workloads(layer: Layer, into: Path) -> list[str]:
    """Return the uuids of the workloads whose tensors are this repository's."""
    uuids = []
    for workload in layer.workloads:
        files = tensor_files(workload)
        if all(path in layer.files or is_in(into, path) for path in files):
            uuids.append(workload.uuid)
    return uuids


def measured(
    solution: Solution, traces: list[Path], workloads: list[Workload], generated: list[str]
) -> pd.DataFrame:
    """Return the rows of a solution on these workloads, and which of their traces are `submitted`.

    Submitted are traces of the current source, timed unless they failed: one for each workload and
    machine, the run with the median time, as FIB takes the fastest of several whatever their
    tolerance. generated: uuids of workloads whose tensors are this repository's; of the others only
    traces measured with the data set's tensors count.
    """
    rows = measurements.load_solution(solution, traces)
    uuids = [workload.uuid for workload in workloads]
    rows = rows[rows.uuid.isin(uuids) & (rows.clock == "events")]

    is_usable = (rows.source == "current") & (rows.ms.notna() | ~rows.passed.astype(bool))
    usable = rows[is_usable]
    has_their_tensors = usable.protocol.str.contains(DATA_SET_TENSORS)
    usable = usable[usable.uuid.isin(generated) | has_their_tensors]

    shown = {}
    for machine, machine_rows in usable.groupby("hardware"):
        shown[machine] = shown_tolerance(machine_rows)
    usable = usable[usable.tolerance == usable.hardware.map(shown)]
    usable = measurements.median_runs(usable, ["hardware", "uuid"])

    rows = rows.assign(submitted=rows.index.isin(usable.index))
    rows = rows.sort_values("submitted", ascending=False, kind="stable")
    return rows.drop_duplicates(["hardware", "tolerance", "source", "uuid"])


def runs(solution: Solution, rows: pd.DataFrame, workload_count: int) -> list[dict]:
    """Return a line for each machine, tolerance and state of the source, or one that there is none.

    Its keys are among RUN_COLUMNS and COUNTS.
    """
    lines = []
    for (machine, _, source), run in rows.groupby(["hardware", "tolerance", "source"]):
        has_their_tensors = run.protocol.str.contains(DATA_SET_TENSORS)
        tensors = has_their_tensors.map({True: "the data set's", False: "generated"})
        passed = int(run.passed.sum())
        lines.append(
            {
                "solution": solution.name,
                "machine": machine,
                "tolerance": distinct(run.tolerance_text),
                "source": source,
                "traces": "submitted" if run.submitted.any() else "left out",
                "tensors": distinct(tensors),
                "date": distinct(run.timestamp.str[:10]),
                "protocol": distinct(run.protocol),
                "versions": distinct(run.versions),
                "passed": passed,
                "failed": len(run) - passed,
                "not run": workload_count - len(run),
            }
        )
    if lines:
        return lines
    counts = {"passed": 0, "failed": 0, "not run": workload_count}
    return [{"solution": solution.name, "traces": "none"} | counts]


def distinct(column: pd.Series) -> str:
    """Return a column's values in order, each once."""
    return "; ".join(dict.fromkeys(column))


def solution_contents(
    solution: Solution, trace_file: Path, rows: pd.DataFrame, into: Path
) -> dict[Path, str]:
    """Return the content of a solution's file and of its author's traces, by path.

    The traces that are submitted replace the solution's traces of before. Raises UserError where
    somebody else's file is in its place or has its name, of which FIB wants one in a data set.
    """
    folder = into / "solutions" / paths.author_folder(solution.author, solution.definition)
    place = folder / f"{solution.name}.json"
    check_place(solution, place, into)

    before = trace_file.read_text(encoding="utf-8") if trace_file.exists() else ""
    names_it = re.compile(rf'"solution": *"{re.escape(solution.name)}"')
    lines = []
    for line in before.split("\n"):  # JSON may hold other line ends
        is_replaced = names_it.search(line) and '"solution_sha1"' in line  # which our traces have
        if line and not is_replaced:
            lines.append(line)
    lines += [trace.model_dump_json() for trace in rows.trace[rows.submitted]]

    contents = {place: solution.model_dump_json(indent=2) + "\n"}
    if before or lines:
        contents[trace_file] = "".join(f"{line}\n" for line in lines)
    return contents


def check_place(solution: Solution, place: Path, into: Path) -> None:
    """Raise UserError where another author's solution is in this place or has this name."""
    present, _ = solution_files.read(sorted((into / "solutions").rglob("*.json")))
    for path, other in present.items():
        is_its_own = path == place and other.author == solution.author
        if (path == place or other.name == solution.name) and not is_its_own:
            raise UserError(f"--into: another solution is called {solution.name}: {path}")


def validate(into: Path, definition: str, checks: str) -> str:
    """Return FIB's report on a definition of a data set, or why there is none.

    FIB_MAIN: an environment variable, a checkout of FIB that has `validate`.
    """
    fib_main = os.environ.get("FIB_MAIN", "")
    search_path = fib_main + os.pathsep + os.environ.get("PYTHONPATH", "")
    command = [*VALIDATE, "--dataset", into, "--definitions", definition]
    command += ["--checks", checks, "--outputs", "stdout"]

    env = os.environ | {"PYTHONPATH": search_path}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        last_words = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return f"not run: {last_words}"
    return done.stdout.partition("\n---")[2].strip()


def description(planned: PullRequest, report: str) -> str:
    """Return the text of the pull request: what was run, what is written, what FIB says of it."""
    points = [f"baseline: {', '.join(sorted(planned.baselines)) or 'none'}"]
    if planned.layer.differences:
        differences = ", ".join(planned.layer.differences)
        points.append(f"the definition of the measurement has another text: {differences}")

    written = []
    for path in planned.contents:
        written.append(path.parent if path.suffix == ".safetensors" else path)
    points += [f"`{path.relative_to(planned.into)}`" for path in dict.fromkeys(written)]

    notes = ["\n".join(f"- {point}" for point in points)]
    notes.append(f"FlashInfer-Bench's `validate`:\n\n```\n{report}\n```\n")
    columns = [*RUN_COLUMNS, *COUNTS]
    rows = [list(map(line.get, columns)) for line in planned.run_lines]
    title = planned.solution.definition
    table = Table(columns, [rows], title=title, words=len(RUN_COLUMNS), notes=notes)
    return table.markdown(titled=True)
