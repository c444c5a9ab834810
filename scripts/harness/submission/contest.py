"""A submission to the contest: config.toml, solution/<language>/ and solution.json, as the public starter kit has them.

The kit packs the sources directly in solution/<language>/, no folders and no data. So all files move up beside main.py,
and imports and includes follow; t.csv becomes t.csv.h, and so does what is opened by that name.
"""

import json
import shutil
import tempfile
from pathlib import Path, PurePosixPath

from flashinfer_bench import BuildSpec, Solution
from flashinfer_bench.agents import pack_solution_from_files

from harness.core.errors import CannotRun, UserError
from harness.operators.catalogue import BY_NAME
from harness.operators.workloads import recorded
from harness.packing.flat import flatten
from harness.packing.manifest import folder_name
from harness.results import table
from harness.submission import clean_build

MARK = "# Written by moebench submit"
# The evaluation machine, in the public starter kit: EVALUATION.md names the GPU, FAQ.md the file.
HARDWARE = "sm_100"  # NVIDIA B200
PACKED = "packed_solution.json"  # the evaluation takes this before anything else


def write(solution: Solution, folder: Path) -> Solution:
    """Write the submission of a packed solution into folder, which is created; return what solution.json holds.

    solution.json is what FIB packs from the folder, as the kit's own script does: no dependencies, no description and
    target_hardware "cuda". Raises PackingError.
    """
    language = solution.spec.language.value
    entry_file, function = solution.spec.entry_point.split("::")
    sources = folder / "solution" / language
    sources.mkdir(parents=True)
    flat = flatten(solution.name, {s.path: s.content for s in solution.sources})
    for path in [path for path in flat if path.endswith(".csv")]:
        flat = {other: text.replace(f'"{path}"', f'"{path}.h"') for other, text in flat.items()}
        flat[f"{path}.h"] = flat.pop(path)
    for path, text in flat.items():
        (sources / path).write_text(text, encoding="utf-8")
    named = {"name": solution.name, "definition": solution.definition, "author": solution.author}
    style = {"destination_passing_style": solution.spec.destination_passing_style}
    built = {"language": language, "entry_point": f"{PurePosixPath(entry_file).name}::{function}", **style}
    config = f"{MARK}; the repository's own source hash is {solution.hash()}.\n"
    for section, values in (("solution", named), ("build", built)):
        lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())
        config += f"[{section}]\n{''.join(lines)}\n"
    (folder / "config.toml").write_text(config, encoding="utf-8")
    packed = pack_solution_from_files(path=str(sources), spec=BuildSpec(target_hardware=["cuda"], **built), **named)
    for name in ("solution.json", PACKED):
        (folder / name).write_text(packed.model_dump_json(indent=2), encoding="utf-8")
    return packed


def check_folder(folder: Path) -> None:
    """Raise UserError where a file of somebody else would be overwritten, and for a data set, as this repository."""
    config, names = folder / "config.toml", ("config.toml", "solution", "solution.json", PACKED, "definitions")
    if config.is_file() and config.read_text(encoding="utf-8", errors="replace").startswith(MARK):
        return
    if theirs := [name for name in names if (folder / name).exists()]:
        raise UserError(f"--into: {folder} is not of this command: it has {', '.join(theirs)}")


def objections(solution: Solution, folder: Path, given: list[Path], hardware: str) -> list[str]:
    """Why the submission in folder is not fit to hand in, one line each; prints what was found to be in order."""
    geometry, targets, reasons = BY_NAME[solution.definition], solution.spec.target_hardware, []
    name, wanted = folder_name(solution.name, solution.definition), recorded(geometry)
    if hardware not in targets:
        reasons.append(f"it runs on {', '.join(targets)}, the evaluation on {hardware} (see --hardware)")
    rows = table.of_solution(solution, given)
    rows = rows[(rows.source == "current") & (rows.tolerance == "contest")].drop_duplicates(["hardware", "uuid"])
    passed = rows[rows.passed.astype(bool)]
    machine = next(iter(passed.hardware.mode()), None)  # the one with the most passes
    there = set(passed.uuid[passed.hardware == machine])
    if unproven := [str(workload.axes["seq_len"]) for workload in wanted if workload.uuid not in there]:
        what = f"{len(unproven)} of {len(wanted)} workloads have no PASSED trace of its source at contest tolerance"
        how = f"moebench run --solutions {name} --definition {geometry} --tolerance contest"
        reasons.append(f"{what}: T={', '.join(unproven)}; record on a CUDA GPU with: {how}")
    else:
        print(f"PASSED {len(wanted)} of {len(wanted)} at contest tolerance on {machine}; evaluation on {hardware}")
    try:
        print(*clean_build.build(folder, solution.definition, hardware), sep="\n")
    except CannotRun as error:
        reasons.append(str(error))
    return reasons


def prepare(solution: Solution, into: Path, given: list[Path], hardware: str) -> bool:
    """Write the submission of a packed solution if nothing speaks against it; return whether it was written.

    given: of traces. Raises UserError, PackingError.
    """
    check_folder(into)
    with tempfile.TemporaryDirectory() as temporary:
        staged = Path(temporary) / "submission"
        submitted = write(solution, staged)
        if reasons := objections(solution, staged, given, hardware):
            print(f"{solution.name} is not fit to be submitted:", *reasons, sep="\n- ")
            return False
        shutil.rmtree(into / "solution", ignore_errors=True)
        shutil.copytree(staged, into, dirs_exist_ok=True)
    print(f"{into}: config.toml, solution/, solution.json and {PACKED} (hash {submitted.hash()})")
    return True
