"""A pull request to a FIB data set: a solution, its current traces, what the data set lacks, and what was run where."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
from flashinfer_bench import Solution, Workload

from harness.core import paths
from harness.core.atomic_file import write_atomically
from harness.core.errors import UserError
from harness.judging import dataset
from harness.operators.workloads import of_data_set
from harness.packing import files
from harness.report.table import Table
from harness.results import table
from harness.results.summary import shown_of

BASELINE = "baseline"  # the author of what FIB compares a definition's other solutions with; there is one at most
HEAD = [*"solution machine tolerance source traces tensors date protocol versions passed failed".split(), "not run"]
VALIDATE = [sys.executable, "-c", "from flashinfer_bench.cli.main import cli; cli()", "validate", "--disable-gpu"]


def of_ours(name: str, into: Path) -> tuple[list[Path], list[Workload], list[str]]:
    """This repository's files of a definition that a data set lacks or has from here, the workloads with them, and in
    what its own definition of that name is another; raises UserError where that is the layer."""
    known = {path.stem: path for path in (into / "definitions").rglob("*.json")}
    mine, other = [paths.definition_file(name)], []
    if name in known and not is_ours(paths.definition_file(name), into):
        mine, other = [], dataset.differing(dataset.definition(name, into))
    if "axes" in other or "inputs or outputs" in other:
        raise UserError(f"--into: {known[name]}: it is another layer than this repository's definition of this name")
    workloads, own = of_data_set(name, into), [workload for _, workload in dataset.labelled(name)]
    of_own = [paths.workload_file(name), *(path for workload in own for path in stored(workload))]
    if not workloads or all(is_ours(path, into) for path in of_own):
        mine, workloads = [*mine, *of_own], own
    return mine, workloads, other


def stored(workload: Workload) -> list[Path]:
    return [paths.ROOT / spec.path for spec in workload.inputs.values() if spec.type == "safetensors"]


def is_ours(path: Path, into: Path) -> bool:
    there = into / path.relative_to(paths.ROOT)
    return path.is_file() and there.is_file() and there.read_bytes() == path.read_bytes()


def measured(solution: Solution, given: list[Path], workloads: list[Workload], generated: list[str]):
    """The rows of a solution on these workloads, and which traces are `submitted`: of the current source, timed unless
    they failed, one of each workload and machine, as FIB takes the fastest of several, whatever their tolerance; of
    workloads other than these, whose tensors are `generated` here, only those measured on the data set's."""
    rows = table.of_solution(solution, given)
    rows = rows[rows.uuid.isin([workload.uuid for workload in workloads]) & (rows.clock == "events")]
    usable = rows[(rows.source == "current") & (rows.ms.notna() | ~rows.passed.astype(bool))]
    usable = usable[usable.uuid.isin(generated) | usable.protocol.str.contains("dataset=")]
    shown = {machine: shown_of(of) for machine, of in usable.groupby("hardware")}
    usable = usable[usable.tolerance == usable.hardware.map(shown)].drop_duplicates(["hardware", "uuid"])
    rows = rows.assign(submitted=rows.index.isin(usable.index)).sort_values("submitted", ascending=False, kind="stable")
    return rows.drop_duplicates(["hardware", "tolerance", "source", "uuid"])


def runs(solution: Solution, rows: pd.DataFrame, known: int) -> list[list]:
    """Lines of the table of HEAD, one for each machine and tolerance. known: how many workloads there are."""
    lines = []
    for (machine, _, source), of in rows.groupby(["hardware", "tolerance", "source"]):
        tensors = of.protocol.str.contains("dataset=").map({True: "the data set's", False: "generated"})
        told = [of.tolerance_text, tensors, of.timestamp.str[:10], of.protocol, of.versions]
        tolerance, *others = ["; ".join(dict.fromkeys(column)) for column in told]
        counts = [int(of.passed.sum()), int((~of.passed).sum()), known - len(of)]
        state = "submitted" if of.submitted.any() else "left out"
        lines.append([solution.name, machine, tolerance, source, state, *others, *counts])
    return lines or [[solution.name, *[None] * 3, "none", *[None] * 4, 0, 0, known]]


def files_of(solution: Solution, traces: Path, rows: pd.DataFrame, into: Path) -> dict[Path, str]:
    """Path -> content of a solution and of its author's traces, where those submitted stand in for the solution's own.
    Raises UserError where a file of somebody else is there or has its name, of which FIB wants one in a data set."""
    own = into / "solutions" / paths.of_author(solution.author, solution.definition) / f"{solution.name}.json"
    found, _ = files.read(sorted((into / "solutions").rglob("*.json")))
    for path, other in found.items():
        if (path == own or other.name == solution.name) and (path, other.author) != (own, solution.author):
            raise UserError(f"--into: another solution is called {solution.name}: {path}")
    before = traces.read_text(encoding="utf-8") if traces.exists() else ""
    of_it = re.compile(rf'"solution": *"{re.escape(solution.name)}"')
    lines = [line for line in before.split("\n") if line and not of_it.search(line)]  # JSON may hold other line ends
    text = "".join(f"{line}\n" for line in [*lines, *(t.model_dump_json() for t in rows.trace[rows.submitted])])
    return {own: solution.model_dump_json(indent=2) + "\n"} | ({traces: text} if before or text else {})


def validate(into: Path, name: str, checks: str) -> str:
    """FIB's report on a definition of a data set, or why there is none. FIB_MAIN: a checkout that has `validate`."""
    env = os.environ | {"PYTHONPATH": os.environ.get("FIB_MAIN", "") + os.pathsep + os.environ.get("PYTHONPATH", "")}
    asked = ["--dataset", into, "--definitions", name, "--checks", checks, "--outputs", "stdout"]
    done = subprocess.run([*VALIDATE, *asked], env=env, capture_output=True, text=True)
    said = (done.stderr.strip().splitlines() or ["no output"])[-1]
    return f"not run: {said}" if done.returncode else done.stdout.partition("\n---")[2].strip()


def prepare(solutions: list[Solution], into: Path, given: list[Path]) -> bool:
    """Write what is submitted of one definition, and its description; return whether FIB's validate finds no error.

    solutions: the submitted one, and a baseline for a set without one. given: traces beside the set's. Raises UserError
    """
    if into.resolve() == paths.ROOT or (into.is_dir() and any(into.iterdir()) and not (into / "definitions").is_dir()):
        raise UserError(f"--into: got {into}, want a new folder, or a checkout of a FlashInfer-Trace data set")
    (own, *others), name = solutions, solutions[0].definition
    mine, workloads, other = of_ours(name, into)
    generated = [of.uuid for of in workloads if all(path in mine or is_ours(path, into) for path in stored(of))]
    content, lines = {into / path.relative_to(paths.ROOT): path.read_bytes() for path in mine}, []
    there = {path.stem for path in (into / "solutions" / BASELINE).rglob("*.json") if path.parent.name == name}
    beside = [of.model_copy(update={"author": BASELINE}) for of in others if there <= {of.name}]
    for solution in [own, *beside]:
        traces = into / "traces" / f"{paths.of_author(solution.author, name)}.jsonl"
        beside_those = [traces] if traces.exists() and traces.stat().st_size else []
        rows = measured(solution, [*given, *beside_those], workloads, generated)
        content |= files_of(solution, traces, rows, into)
        lines += runs(solution, rows, len(workloads))
    for path, text in content.items():
        write_atomically(path, text)
    report = validate(into, name, f"layout,solution,trace,baseline{',definition,workload' if mine else ''}")
    told = [f"baseline: {', '.join(sorted(there | {of.name for of in beside})) or 'none'}"]
    told += [f"the definition of the measurement has another text: {', '.join(other)}"] if other else []
    written = dict.fromkeys(path.parent if path.suffix == ".safetensors" else path for path in content)
    notes = ["\n".join(f"- {line}" for line in [*told, *(f"`{path.relative_to(into)}`" for path in written)])]
    notes += [f"FlashInfer-Bench's `validate`:\n\n```\n{report}\n```\n"]
    text = Table(HEAD, [lines], title=name, words=len(HEAD) - 3, notes=notes).markdown(titled=True)
    write_atomically(into / f"{own.name}.pull_request.md", text)
    print(text, f"This text is in {into / own.name}.pull_request.md", sep="\n")
    return "[ERROR]" not in report and not (report.startswith("not run") and os.environ.get("FIB_MAIN"))
