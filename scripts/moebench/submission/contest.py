"""A submission to the contest: config.toml, solution/<language>/ and solution.json in a folder, as
the public starter kit has them.

The kit packs the sources that lie directly in solution/<language>/, without folders and data. So
all files move up beside main.py, and imports and includes follow. A table t.csv becomes t.csv.h,
also where a source opens it. `moebench submit --to contest` calls `prepare`.
"""

import json
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path, PurePosixPath

from flashinfer_bench import BuildSpec, Solution
from flashinfer_bench.agents import pack_solution_from_files

from moebench.core.atomic_file import write_atomically
from moebench.core.errors import CannotRun, UserError
from moebench.operators import catalogue
from moebench.operators.workloads import recorded
from moebench.packing.flat import flatten
from moebench.packing.manifest import folder_name
from moebench.results.measurements import merge_runs
from moebench.submission import clean_build
from moebench.submission.runs import load_solution

MARK = "# Written by moebench submit"
# The evaluation machine, in the public starter kit: EVALUATION.md names the GPU, FAQ.md the file.
HARDWARE = "sm_100"  # NVIDIA B200
PACKED = "packed_solution.json"  # the evaluation takes this before anything else
WRITTEN = ("config.toml", "solution", "solution.json", PACKED)
NOT_PROVEN = (
    "{missing} of {total} workloads have no PASSED trace of its source at contest tolerance: "
    "T={tokens}; record on a CUDA GPU with: moebench run --solutions {name} "
    "--definition {key} --tolerance contest"
)


def prepare(solution: Solution, into: Path, traces: list[Path], hardware: str) -> bool:
    """Write the submission of a packed solution to `into` if nothing speaks against it; return
    whether it was written.

    traces: files of the recorded traces. Raises UserError and PackingError.
    """
    with tempfile.TemporaryDirectory() as temporary:
        staged = Path(temporary) / "submission"
        submitted = write(solution, staged)
        check_folder(into, submitted)
        reasons = objections(solution, staged, traces, hardware)

    if reasons:
        print(f"{solution.name} is not fit to be submitted:", *reasons, sep="\n- ")
        return False
    write(solution, into)
    print(
        f"{into}: config.toml, solution/, solution.json and {PACKED} (hash {submitted.hash()})"
    )
    return True


def write(solution: Solution, folder: Path) -> Solution:
    """Write the submission of a packed solution in place of an earlier one; return the Solution in
    it.

    solution.json is what FIB packs from the folder, as the kit's script does: without dependencies
    and description, and with target_hardware "cuda". Raises PackingError, and CannotRun where not
    all of it can be written.
    """
    spec = solution.spec
    entry_file, function = spec.entry_point.split("::")
    names = {
        "name": solution.name,
        "definition": solution.definition,
        "author": solution.author,
    }
    build = {
        "language": spec.language.value,
        "entry_point": f"{PurePosixPath(entry_file).name}::{function}",
        "destination_passing_style": spec.destination_passing_style,
    }
    sources = flat_sources(solution)

    # The configuration comes first: by its mark the next submission knows the folder.
    write_atomically(folder / "config.toml", configuration(solution, names, build))
    shutil.rmtree(folder / "solution", ignore_errors=True)
    source_folder = folder / "solution" / spec.language.value
    for path, text in sources.items():
        write_atomically(source_folder / path, text)

    flat_spec = BuildSpec(target_hardware=["cuda"], **build)
    packed = pack_solution_from_files(path=str(source_folder), spec=flat_spec, **names)
    text = packed.model_dump_json(indent=2)
    for name in ("solution.json", PACKED):
        write_atomically(folder / name, text)
    return packed


def flat_sources(solution: Solution) -> dict[str, str]:
    """Return the sources without folders, and tables under a name that the kit packs."""
    sources = {source.path: source.content for source in solution.sources}
    flat = flatten(solution.name, sources)
    for table_name in [path for path in flat if path.endswith(".csv")]:
        new_name = f"{table_name}.h"
        for path, text in flat.items():
            flat[path] = text.replace(f'"{table_name}"', f'"{new_name}"')
        flat[new_name] = flat.pop(table_name)
    return flat


def configuration(solution: Solution, names: dict, build: dict) -> str:
    """Return the text of config.toml."""
    lines = [f"{MARK}; the repository's own source hash is {solution.hash()}."]
    for section, values in {"solution": names, "build": build}.items():
        lines.append(f"[{section}]")
        for key, value in values.items():
            text = json.dumps(value, ensure_ascii=False)
            lines.append(f"{key} = {text}")
        lines.append("")
    return "\n".join([*lines, ""])


def check_folder(folder: Path, submitted: Solution) -> None:
    """Raise UserError where a file that this command did not write would be overwritten.

    A folder with definitions/ is refused as well, as that is a data set, such as this repository.
    """
    config = folder / "config.toml"
    if config.is_file():
        text = config.read_text(encoding="utf-8", errors="replace")
        if text.startswith(MARK):
            check_sources(folder, submitted)
            return

    names = (*WRITTEN, "definitions")
    present = [name for name in names if (folder / name).exists()]
    if present:
        raise UserError(
            f"--into: {folder} is not of this command: it has {', '.join(present)}"
        )


def check_sources(folder: Path, submitted: Solution) -> None:
    """Raise UserError where an earlier submission has a file that this command did not write."""
    written = [submitted]  # an attempt that was cut off may have written a part of it
    with suppress(OSError, ValueError):
        # if the first attempt was cut off there is no such file
        written.append(Solution.model_validate_json((folder / PACKED).read_bytes()))

    written_files = set()
    for solution in written:
        source_folder = folder / "solution" / solution.spec.language.value
        for source in solution.sources:
            written_files.add((source_folder / source.path, source.content))

    for path in sorted((folder / "solution").rglob("*")):
        if not path.is_file() or path.suffix == ".pyc":
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if (path, text) not in written_files:
            raise UserError(
                f"--into: {path} is new or edited by hand: move it or name another folder"
            )


def objections(
    solution: Solution, folder: Path, traces: list[Path], hardware: str
) -> list[str]:
    """Return why the submission in a folder is not fit to hand in, a line for each reason.

    Checks that found nothing are printed.
    """
    reasons = []
    targets = solution.spec.target_hardware
    if hardware not in targets:
        able = ", ".join(targets)
        reasons.append(
            f"it runs on {able}, the evaluation on {hardware} (see --hardware)"
        )

    unproven = unproven_workloads(solution, traces, hardware)
    if unproven:
        reasons.append(unproven)

    try:
        for line in clean_build.build(folder, solution.definition, hardware):
            print(line)
    except CannotRun as error:
        reasons.append(str(error))
    return reasons


def unproven_workloads(
    solution: Solution, traces: list[Path], hardware: str
) -> str | None:
    """Return a sentence on the workloads that were not passed on the machine with the most passes.

    If all were passed, that is printed, and None returned.
    """
    # workloads on which every run of the current source passed, by machine
    rows = load_solution(solution, traces)
    rows = rows[(rows.source == "current") & (rows.tolerance == "contest")]
    rows = merge_runs(rows, ["hardware", "uuid"])
    passed = rows[rows.passed]

    machine = passed.hardware.mode()[0] if len(passed) else None
    proven = set(passed.uuid[passed.hardware == machine])

    key = catalogue.by_name()[solution.definition]
    workloads = recorded(key)
    total = len(workloads)
    missing = [workload for workload in workloads if workload.uuid not in proven]
    if not missing:
        done = f"PASSED {total} of {total} at contest tolerance on {machine}"
        print(f"{done}; evaluation on {hardware}")
        return None

    name = folder_name(solution.name, solution.definition)
    tokens = ", ".join(str(workload.axes["seq_len"]) for workload in missing)
    return NOT_PROVEN.format(
        missing=len(missing), total=total, tokens=tokens, name=name, key=key
    )
