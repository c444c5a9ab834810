"""A pull request to a FIB data set, for one solution and definition:

definitions/, workloads/, blob/                     files that the data set lacks
solutions/AUTHOR/moe/DEFINITION/SOLUTION.json       the solution, and a baseline if there is none
traces/AUTHOR/moe/DEFINITION.jsonl                  current traces of both
SOLUTION.pull_request.md                            what was run where, and what FIB says of it

`moebench submit --to dataset` calls `plan` for each definition, then `write`.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from flashinfer_bench import Solution

from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import CannotRun, UserError, telling_line
from moebench.operators import catalogue
from moebench.packing import solution_files
from moebench.packing.manifest import folder_name
from moebench.reports.table import Row, Table
from moebench.submission import runs
from moebench.submission.data_set import (
    DataSetDefinition,
    check_folder,
    definition_in,
    repository_path,
)

# Author of baselines, with which FIB compares a definition's other solutions. There is one at most.
BASELINE = "baseline"
FIB_PROGRAM = "from flashinfer_bench.cli.main import cli; cli()"
NOT_MEASURED = (
    "{name} is not submitted: it has no timed PASSED trace of its source as it is now; "
    "record some on a CUDA GPU: moebench run --solutions {folder} --definition {key} --save"
)


@dataclass
class PullRequest:
    """What is written to the data set in the folder `into`.

    solution: the one that is submitted. target: its definition in the data set. contents: path ->
    content, of the files to write. run_rows: rows of the table of runs (`runs.table_rows`).
    baselines: names of the definition's baseline solutions. clock: by which all traces that go
    along were timed, a baseline's, too; None until the submitted solution's are known.
    """

    solution: Solution
    into: Path
    target: DataSetDefinition
    contents: dict[Path, bytes | str] = field(default_factory=dict)
    run_rows: list[Row] = field(default_factory=list)
    baselines: set[str] = field(default_factory=set)
    clock: str | None = None

    def add(self, solution: Solution, traces: list[Path]) -> None:
        """Add a solution's file, those of its traces that are submitted, and its rows of the table.

        Raises what `check_measured` and `check_place` raise.
        """
        folder = paths.author_folder(solution.author, solution.definition)
        solution_file = self.into / "solutions" / folder / f"{solution.name}.json"
        trace_file = self.into / "traces" / f"{folder}.jsonl"
        is_filled = trace_file.exists() and trace_file.stat().st_size > 0
        earlier = [trace_file] if is_filled else []
        trace_files = [*traces, *earlier]
        rows = runs.runs_on(self.target, solution, trace_files, self.clock)
        if solution is self.solution:
            check_measured(solution, rows)
            self.clock = rows.clock.iloc[0]
        check_place(solution, solution_file, self.into)
        self.run_rows += runs.table_rows(solution, rows, len(self.target.workloads))

        text = solution.model_dump_json(indent=2)
        self.contents[solution_file] = f"{text}\n"
        trace_lines = lines_of_others(solution, trace_file)
        trace_lines += [trace.model_dump_json() for trace in rows.trace[rows.submitted]]
        if earlier or trace_lines:
            self.contents[trace_file] = "".join(f"{line}\n" for line in trace_lines)


def plan(
    solution: Solution, baselines: list[Solution], into: Path, traces: list[Path]
) -> PullRequest:
    """Return the pull request of a solution of one definition; nothing is written yet.

    baselines: solutions for a data set that has no baseline. traces: trace files beside those in
    the data set. Raises UserError where another author's file is in the way, and CannotRun for a
    solution that was never measured.
    """
    check_folder(into)
    definition = solution.definition
    planned = PullRequest(solution, into, definition_in(into, definition))
    for path in planned.target.files:
        planned.contents[into / repository_path(path)] = path.read_bytes()
    planned.add(solution, traces)

    baseline_files = (into / "solutions" / BASELINE).rglob("*.json")
    present = {path.stem for path in baseline_files if path.parent.name == definition}
    planned.baselines |= present
    for baseline in baselines:
        if present <= {baseline.name}:
            planned.add(baseline.model_copy(update={"author": BASELINE}), traces)
            planned.baselines.add(baseline.name)
    return planned


def write(planned: PullRequest) -> bool:
    """Write a pull request and its description; return whether FIB's validate finds no error."""
    for path, content in planned.contents.items():
        write_atomically(path, content)

    checks = "layout,solution,trace,baseline"
    if planned.target.files:
        checks += ",definition,workload"
    report = validate(planned.into, planned.solution.definition, checks)

    text = description(planned, report)
    file = planned.into / f"{planned.solution.name}.pull_request.md"
    write_atomically(file, text)
    print(text)
    print(f"This text is in {file}")

    is_missing = report.startswith("not run") and bool(os.environ.get("FIB_MAIN"))
    return "[ERROR]" not in report and not is_missing


def check_measured(solution: Solution, rows: pd.DataFrame) -> None:
    """Raise CannotRun where no run of the solution's current source PASSED and was timed."""
    if not (runs.is_timed_pass(rows) & (rows.source == "current")).any():
        folder = folder_name(solution.name, solution.definition)
        key = catalogue.by_name()[solution.definition]
        raise CannotRun(NOT_MEASURED.format(name=solution.name, folder=folder, key=key))


def check_place(solution: Solution, solution_file: Path, into: Path) -> None:
    """Raise UserError where solution_file is another author's, and where another solution in the
    data set has the same name, as FIB wants each name once.
    """
    files = sorted((into / "solutions").rglob("*.json"))
    present, _ = solution_files.read(files)
    for path, other in present.items():
        is_there = path == solution_file
        is_earlier = is_there and other.author == solution.author
        is_in_the_way = is_there or other.name == solution.name
        if is_in_the_way and not is_earlier:
            raise UserError(
                f"--into: another solution is called {solution.name}: {path}"
            )


def lines_of_others(solution: Solution, trace_file: Path) -> list[str]:
    """Return the lines of a trace file without this repository's traces of a solution."""
    if not trace_file.exists():
        return []

    names_solution = re.compile(rf'"solution": *"{re.escape(solution.name)}"')
    text = trace_file.read_text(encoding="utf-8")
    remaining = []
    for line in text.split("\n"):  # JSON may hold other line ends
        is_ours = names_solution.search(line) and '"solution_sha1"' in line
        if line and not is_ours:
            remaining.append(line)
    return remaining


def validate(into: Path, definition: str, checks: str) -> str:
    """Return the report of FIB's `validate` on a definition of a data set, or why there is none.

    The environment variable FIB_MAIN may name a checkout of FIB that has `validate`. checks: what
    to validate.
    """
    command = [sys.executable, "-c", FIB_PROGRAM, "validate", "--disable-gpu"]
    command += ["--dataset", into, "--definitions", definition]
    command += ["--checks", checks, "--outputs", "stdout"]

    search_path = [os.environ.get("FIB_MAIN", ""), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(search_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        return f"not run: {telling_line(done.stderr)}"
    return done.stdout.partition("\n---")[2].strip()


def description(planned: PullRequest, report: str) -> str:
    """Return the text of the pull request: what was run, what is written, what FIB says of it."""
    baselines = ", ".join(sorted(planned.baselines))
    points = [f"baseline: {baselines or 'none'}"]
    if planned.target.differences:
        differences = ", ".join(planned.target.differences)
        points.append(
            f"the definition of the measurement has another text: {differences}"
        )

    written = {}
    for path in planned.contents:
        shown = path.parent if path.suffix == ".safetensors" else path
        written[shown.relative_to(planned.into)] = None
    points += [f"`{path}`" for path in written]

    points_text = "\n".join(f"- {point}" for point in points)
    validated = f"FlashInfer-Bench's `validate`:\n\n```\n{report}\n```\n"
    table = Table(
        head=runs.HEAD,
        sections=[planned.run_rows],
        title=planned.solution.definition,
        word_columns=runs.WORD_COLUMNS,
        notes=[points_text, validated],
    )
    return table.markdown(titled=True)
