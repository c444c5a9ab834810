"""Prepare a submission: write it only when nothing speaks against it, and list every reason otherwise."""

import shutil
import tempfile
from pathlib import Path

import pandas as pd
from flashinfer_bench import Solution
from rich.console import Console

from harness.core import paths
from harness.core.errors import UserError
from harness.operators.catalogue import BY_NAME
from harness.operators.workloads import recorded
from harness.packing import manifest, pack
from harness.results import table
from harness.results.summary import proven_on
from harness.submission import bundle, clean_build

# The evaluation machine, in the public starter kit: EVALUATION.md names the GPU, FAQ.md the languages and the file.
HARDWARE = "sm_100"  # NVIDIA B200
LANGUAGES = ("triton", "cuda", "python")  # those with a folder of their own
PACKED = "packed_solution.json"  # the evaluation takes this before anything else


def check_folder(folder: Path) -> None:
    """Raise UserError unless folder is new, empty, an earlier submission of ours, or a clone without a submission."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    config = folder / "config.toml"
    if config.is_file() and config.read_text(encoding="utf-8", errors="replace").startswith(bundle.MARK):
        return
    if not (folder / ".git").exists() or (folder / "definitions").exists():  # a data set, as this repository
        raise UserError(f"--into: {folder} is neither empty, nor a clone of your fork, nor written by this command")
    if theirs := [name for name in ("config.toml", "solution", PACKED) if (folder / name).exists()]:
        raise UserError(f"--into: {folder} holds a submission of its own: remove its {', '.join(theirs)}")


def objections(
    solution: Solution, folder: Path, rows: pd.DataFrame | None, how: str, hardware: str, console: Console
) -> list[str]:
    """Why the submission in folder is not fit to hand in, one line each; prints what was found to be in order.

    rows: as proven_on takes them. how: the command that records missing traces.
    """
    reasons, spec, wanted = [], solution.spec, recorded(BY_NAME[solution.definition])
    if spec.language.value not in LANGUAGES:
        reasons.append(f"its language is {spec.language.value}; the evaluation packs {', '.join(LANGUAGES)}")
    if hardware not in spec.target_hardware:
        targets = ", ".join(spec.target_hardware)
        reasons.append(f"it runs on {targets}, and the evaluation on {hardware} (--hardware names another machine)")
    machine, unproven = proven_on(solution, rows, wanted, "contest")
    if unproven:
        what = f"{len(unproven)} of {len(wanted)} workloads have no PASSED trace of its source at contest tolerance"
        reasons.append(f"{what}: T={', '.join(map(str, unproven))}; record on a CUDA GPU with: {how}")
    else:
        passed = f"PASSED {len(wanted)} of {len(wanted)} at contest tolerance on {machine}"
        console.print(f"{passed}; the evaluation is on {hardware}", highlight=False, markup=False, soft_wrap=True)
    with console.status("building from the submission alone"):
        try:
            for line in clean_build.build(folder, solution.definition, hardware):
                console.print(line, highlight=False, markup=False)
        except clean_build.NotFit as error:
            reasons.append(str(error))
    return reasons


def prepare(name: str, geometry: str, into: Path, hardware: str, given: list[Path], console: Console) -> bool:
    """Write the submission of a solution if nothing speaks against it; return whether it was written.

    geometry: of the definition; a submission has one. given: traces; [] for this repository's. Raises UserError.
    """
    check_folder(into)
    manifest.choose([name])
    packed = pack.pack(name)
    if geometry not in packed:
        raise UserError(f"--definition: got {geometry}, want what {name} serves: {', '.join(packed)}")
    solution = packed[geometry]
    given = given or [path for path in [paths.trace_file(solution.definition)] if path.exists()]
    rows, warnings = table.load(given) if given else (None, [])
    for warning in warnings:
        console.print(warning, style="yellow", markup=False, soft_wrap=True)
    with tempfile.TemporaryDirectory() as temporary:
        staged = Path(temporary) / "submission"
        submitted = bundle.write(solution, staged)
        how = f"moebench run --solutions {name} --definition {geometry} --tolerance contest"
        if reasons := objections(solution, staged, rows, how, hardware, console):
            console.print(f"{name} is not fit to be submitted:", style="bold red")
            for reason in reasons:
                console.print(f"- {reason}", markup=False, highlight=False, soft_wrap=True)
            return False
        shutil.rmtree(into / "solution", ignore_errors=True)
        shutil.copytree(staged, into, dirs_exist_ok=True)
        if (into / PACKED).exists():
            shutil.copy(into / "solution.json", into / PACKED)
    console.print(f"{into}: config.toml, solution/ and solution.json (hash {submitted.hash()})", soft_wrap=True)
    return True
