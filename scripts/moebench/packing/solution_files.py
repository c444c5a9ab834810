"""Read third-party solutions: FIB's JSON files, one by one or in folders of any layout.

judging/planning.py calls `solutions_at` for `moebench run FILE.json`; staleness.py and
pull_request.py `read` the solutions of a data set.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from flashinfer_bench import Solution
from pydantic import ValidationError

from moebench.core import paths
from moebench.core.errors import UserError
from moebench.core.schema import first_fault
from moebench.packing.manifest import folder_name, solution_names

Files = dict[Path, Solution]


def solutions_at(locations: list[Path]) -> tuple[dict[str, Solution], list[str]]:
    """Return name -> Solution of files and folders, and a line for each file that holds none, and
    for each whose solution is renamed.

    A solution is renamed if one of this repository or of another file has the same name: 8 digits
    of its hash are appended, as by FIB's `with_unique_name`. Raises UserError for a path without
    any file.
    """
    solutions, notes = read(files_in(locations))
    different, notes_on_copies = without_copies(solutions)
    notes += notes_on_copies

    repository_names = solution_names()
    files_with_name = Counter(solution.name for solution in different.values())
    by_name = {}
    for file, solution in different.items():
        is_ours = folder_name(solution.name, solution.definition) in repository_names
        if is_ours or files_with_name[solution.name] > 1:
            new_name = f"{solution.name}_{solution.hash()[:8]}"
            notes.append(f"{file}: its name is taken, so {new_name} stands for it")
            solution = solution.model_copy(update={"name": new_name})
        by_name[solution.name] = solution
    return by_name, notes


def files_in(locations: list[Path]) -> list[Path]:
    """Return the files at these paths and below. Raises UserError for a path without any."""
    files = []
    for path in locations:
        below = paths.files_below(path, "solutions", "*.json")
        if not below:
            raise UserError(
                f"FILE: got {path}, want a FIB Solution in JSON, or a folder of such files"
            )
        files += below
    return files


def read(files: Iterable[Path]) -> tuple[Files, list[str]]:
    """Return file -> Solution, and a line for each file that is no FIB Solution."""
    solutions = {}
    faults = []
    for file in files:
        try:
            solutions[file] = Solution.model_validate_json(file.read_bytes())
        except ValidationError as error:
            faults.append(f"{file}: not a FIB Solution: {first_fault(error, 'file')}")
        except OSError as error:
            faults.append(f"{file}: cannot be read: {error.strerror}")
    return solutions, faults


def without_copies(solutions: Files) -> tuple[Files, list[str]]:
    """Return the solutions without those that are copies of another, and a line for each copy."""
    different = {}
    first_files = {}
    notes = []
    for file, solution in solutions.items():
        identity = (solution.name, solution.definition, solution.hash())
        if identity in first_files:
            notes.append(f"{file}: the same as {first_files[identity]}")
        else:
            first_files[identity] = file
            different[file] = solution
    return different, notes
