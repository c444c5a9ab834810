"""A submission to the contest: config.toml, solution/<language>/ and solution.json, as the public
starter kit has them.

The kit packs the sources directly in solution/<language>/, no folders and no data. So all files
move up beside main.py, and imports and includes follow; t.csv becomes t.csv.h, and so does what is
opened by that name.
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
from moebench.operators.catalogue import BY_NAME
from moebench.operators.workloads import recorded
from moebench.packing.flat import flatten
from moebench.packing.manifest import folder_name
from moebench.results import measurements
from moebench.submission import clean_build

MARK = "# Written by moebench submit"
# The evaluation machine, in the public starter kit: EVALUATION.md names the GPU, FAQ.md the file.
HARDWARE = "sm_100"  # NVIDIA B200
PACKED = "packed_solution.json"  # the evaluation takes this before anything else


def write(solution: Solution, folder: Path) -> Solution:
    """Write the submission of a packed solution into folder, in place of an earlier one; return
    what is packed.

    solution.json is what FIB packs from the folder, as the kit's own script does: no dependencies,
    no description and target_hardware "cuda". Raises PackingError, and CannotRun where not all of
    it can be written.
    """
    language = solution.spec.language.value
    entry_file, function = solution.spec.entry_point.split("::")
    sources = folder / "solution" / language
    flat = flatten(solution.name, {s.path: s.content for s in solution.sources})
    for path in [path for path in flat if path.endswith(".csv")]:
        flat = {other: text.replace(f'"{path}"', f'"{path}.h"') for other, text in flat.items()}
        flat[f"{path}.h"] = flat.pop(path)
    named = {"name": solution.name, "definition": solution.definition, "author": solution.author}
    style = {"destination_passing_style": solution.spec.destination_passing_style}
    built = {
        "language": language,
        "entry_point": f"{PurePosixPath(entry_file).name}::{function}",
        **style,
    }
    config = f"{MARK}; the repository's own source hash is {solution.hash()}.\n"
    for section, values in (("solution", named), ("build", built)):
        lines = (
            f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items()
        )
        config += f"[{section}]\n{''.join(lines)}\n"
    write_atomically(
        folder / "config.toml", config
    )  # first: by it the next submission knows the folder
    if sources.parent.exists():
        shutil.rmtree(sources.parent)
    for path, text in flat.items():
        write_atomically(sources / path, text)
    packed = pack_solution_from_files(
        path=str(sources), spec=BuildSpec(target_hardware=["cuda"], **built), **named
    )
    for name in ("solution.json", PACKED):
        write_atomically(folder / name, packed.model_dump_json(indent=2))
    return packed


def check_folder(folder: Path, submitted: Solution) -> None:
    """Raise UserError where a file of somebody else would be overwritten, and for a data set, as
    this repository.
    """
    config, names = (
        folder / "config.toml",
        ("config.toml", "solution", "solution.json", PACKED, "definitions"),
    )
    if config.is_file() and config.read_text(encoding="utf-8", errors="replace").startswith(MARK):
        sources, known = (
            folder / "solution",
            [submitted],
        )  # which an attempt that was cut off wrote in part
        with suppress(OSError, ValueError):  # there is none where the first attempt was cut off
            known.append(Solution.model_validate_json((folder / PACKED).read_bytes()))
        ours = {
            (sources / each.spec.language.value / s.path, s.content)
            for each in known
            for s in each.sources
        }
        for path in sorted(
            path for path in sources.rglob("*") if path.is_file() and path.suffix != ".pyc"
        ):
            if (path, path.read_text(encoding="utf-8", errors="replace")) not in ours:
                raise UserError(
                    f"--into: {path} is new or edited by hand: move it or name another folder"
                )
        return
    if theirs := [name for name in names if (folder / name).exists()]:
        raise UserError(f"--into: {folder} is not of this command: it has {', '.join(theirs)}")


def objections(solution: Solution, folder: Path, given: list[Path], hardware: str) -> list[str]:
    """Why the submission in folder is not fit to hand in, one line each; prints what was found to
    be in order.
    """
    geometry, targets, reasons = BY_NAME[solution.definition], solution.spec.target_hardware, []
    name, wanted = folder_name(solution.name, solution.definition), recorded(geometry)
    if hardware not in targets:
        reasons.append(
            f"it runs on {', '.join(targets)}, the evaluation on {hardware} (see --hardware)"
        )
    rows = measurements.load_solution(solution, given)
    rows = rows[(rows.source == "current") & (rows.tolerance == "contest")].drop_duplicates(
        ["hardware", "uuid"]
    )
    passed = rows[rows.passed.astype(bool)]
    machine = next(iter(passed.hardware.mode()), None)  # the one with the most passes
    there = set(passed.uuid[passed.hardware == machine])
    if unproven := [
        str(workload.axes["seq_len"]) for workload in wanted if workload.uuid not in there
    ]:
        what = f"{len(unproven)} of {len(wanted)} workloads have no PASSED trace of its source at contest tolerance"
        how = f"moebench run --solutions {name} --definition {geometry} --tolerance contest"
        reasons.append(f"{what}: T={', '.join(unproven)}; record on a CUDA GPU with: {how}")
    else:
        print(
            f"PASSED {len(wanted)} of {len(wanted)} at contest tolerance on {machine}; evaluation on {hardware}"
        )
    try:
        print(*clean_build.build(folder, solution.definition, hardware), sep="\n")
    except CannotRun as error:
        reasons.append(str(error))
    return reasons


def prepare(solution: Solution, into: Path, given: list[Path], hardware: str) -> bool:
    """Write the submission of a packed solution if nothing speaks against it; return whether it was
    written.

    given: of traces. Raises UserError, PackingError.
    """
    with tempfile.TemporaryDirectory() as temporary:
        staged = Path(temporary) / "submission"
        submitted = write(solution, staged)
        check_folder(into, submitted)
        if reasons := objections(solution, staged, given, hardware):
            print(f"{solution.name} is not fit to be submitted:", *reasons, sep="\n- ")
            return False
    write(solution, into)
    print(f"{into}: config.toml, solution/, solution.json and {PACKED} (hash {submitted.hash()})")
    return True
