"""Prepare a leaderboard submission of one solution, in the layout of the public starter kit.

Refuses, with every reason at once, unless recorded traces show the solution as it is now PASSED on all workloads at
contest tolerance, it uses only what the evaluation machine offers, and it builds from the submission alone, which is
done in an empty folder. Exit status: 0 written, 1 refused, 2 bad arguments.
"""

import argparse
import re
import shutil
import sys
import tempfile
from pathlib import Path

from flashinfer_bench import Solution, Trace
from flashinfer_bench.data import load_jsonl_file
from rich.console import Console

from harness.core import paths
from harness.packing import manifest, pack
from harness.results import trace_files
from harness.submission import bundle, clean_build, contest_record, evaluation_environment

GEOMETRY = "full"


def hardware_name(text: str) -> str:
    if not re.fullmatch(r"sm_\d{2,3}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no machine, want sm_ and the compute capability, as sm_100")
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", help="the solution")
    add("--into", type=Path, metavar="FOLDER", required=True, help="new, empty, or written by this command before")
    where = evaluation_environment.HARDWARE
    add("--hardware", type=hardware_name, default=where, metavar="SM", help=f"the evaluation's; default: {where}")
    add("--traces", type=Path, nargs="+", metavar="PATH", help="the record of its runs; default: this repository's")


def check_folder(folder: Path) -> None:
    """Raise ValueError unless folder is new, empty or an earlier submission of ours."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    config = folder / "config.toml"
    if not config.is_file() or not config.read_text(errors="replace").startswith(bundle.MARK):
        raise ValueError(f"{folder} is neither empty nor written by this command: remove its config.toml and solution/")


def shortcomings(solution: Solution, folder: Path, traces: list[Trace], hardware: str, console: Console) -> list[str]:
    """Why the submission in folder is not fit to hand in, a line each; tells what was checked otherwise."""
    reasons = []
    language = solution.spec.language.value
    if language not in bundle.LANGUAGES:
        reasons.append(f"its language is {language}; the evaluation packs {', '.join(bundle.LANGUAGES)}")
    if hardware not in solution.spec.target_hardware:
        targets = ", ".join(solution.spec.target_hardware)
        reasons.append(f"it runs on {targets}, and the evaluation on {hardware} (--hardware names another machine)")

    workloads = [t.workload for t in load_jsonl_file(Trace, paths.workload_file(solution.definition))]
    machine, unproven = contest_record.proven_on(solution, traces, workloads)
    reasons += unproven
    if machine:
        console.print(f"PASSED {len(workloads)} of {len(workloads)} at contest tolerance on {machine}", highlight=False)

    sources = {p.name: p.read_text() for p in (folder / "solution" / language).iterdir()}
    foreign = evaluation_environment.foreign_imports(sources) + evaluation_environment.foreign_includes(sources)
    reasons += foreign
    if not foreign:
        console.print("imports and includes only what the evaluation machine offers")

    with console.status("building from the submission alone"):
        error, done, unchecked = clean_build.build(folder, solution.definition, hardware)
    for line in [*done, *(f"not checked: {line}" for line in unchecked)]:
        console.print(line, highlight=False, markup=False)
    return [*reasons, error] if error else reasons


def submit(args: argparse.Namespace, console: Console) -> bool:
    """Write the submission if nothing speaks against it; return whether it was.

    Raises PackingError, TraceSetError or ValueError for arguments that cannot be followed.
    """
    check_folder(args.into)
    manifest.choose([args.name])
    solution = pack.pack(args.name).get(GEOMETRY)
    if solution is None:
        raise ValueError(f"{args.name} does not serve the {GEOMETRY} geometry, which is the contest's")
    default = paths.trace_file(solution.definition)
    given = args.traces or ([default] if default.exists() else [])
    recorded, warnings = trace_files.read(given) if given else ([], [])
    for warning in warnings:
        console.print(warning, style="yellow", markup=False, soft_wrap=True)
    traces = [found.trace for found in recorded]
    with tempfile.TemporaryDirectory() as temporary:
        staged = Path(temporary) / "submission"
        packed = bundle.write(solution, staged)
        if reasons := shortcomings(solution, staged, traces, args.hardware, console):
            console.print(f"{args.name} is not fit to be submitted:", style="bold red")
            for reason in reasons:
                console.print(f"- {reason}", markup=False, highlight=False, soft_wrap=True)
            return False
        shutil.rmtree(args.into / "solution", ignore_errors=True)
        shutil.copytree(staged, args.into, dirs_exist_ok=True)
    console.print(f"{args.into}: config.toml, solution/ and solution.json (hash {packed.hash()})", soft_wrap=True)
    console.print("To hand it in, from that folder: git add --all --force . && git commit && git tag submission-v1")
    return True


def main(args: argparse.Namespace) -> int:
    try:
        return 0 if submit(args, Console(width=None if sys.stdout.isatty() else 160)) else 1
    except (manifest.PackingError, trace_files.TraceSetError, ValueError, OSError) as error:
        print(str(error).splitlines()[0], file=sys.stderr)
        return 2
