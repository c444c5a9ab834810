"""Solutions that others have packed: FIB's JSON files, one by one or in folders of any layout."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from flashinfer_bench import Solution
from pydantic import ValidationError

from moebench.core import paths
from moebench.core.errors import UserError
from moebench.core.schema import first_fault
from moebench.packing.manifest import folder_name, solution_names


def read(files: Iterable[Path]) -> tuple[dict[Path, Solution], list[str]]:
    """File -> Solution, and a line for each file that holds none."""
    found, faults = {}, []
    for file in files:
        try:
            found[file] = Solution.model_validate_json(file.read_bytes())
        except ValidationError as error:
            faults.append(f"{file}: not a FIB Solution: {first_fault(error, 'file')}")
        except OSError as error:
            faults.append(f"{file}: cannot be read: {error.strerror}")
    return found, faults


def named(given: list[Path]) -> tuple[dict[str, Solution], list[str]]:
    """Name -> Solution of files and folders, and a line for each file that is not one, or is under
    another name.

    Where one here or another file has the name, 8 digits of the hash follow it, as in FIB's
    `with_unique_name`. The hash stays that of the file. Raises UserError for a path without any
    file.
    """
    found, apart, files = {}, {}, []
    for path in given:
        files += (below := paths.files_below(path, "solutions", "*.json"))
        if not below:
            raise UserError(
                f"FILE: got {path}, want a FIB Solution in JSON, or a folder of such files"
            )
    solutions, said = read(files)
    for file, solution in solutions.items():
        first, _ = apart.setdefault(
            (solution.name, solution.definition, solution.hash()), (file, solution)
        )
        said += [f"{file}: the same as {first}"] if first != file else []
    shared = Counter(name for name, *_ in apart)
    for (name, definition, sha1), (file, solution) in apart.items():
        new = name
        if shared[name] > 1 or folder_name(name, definition) in solution_names():
            new = f"{name}_{sha1[:8]}"
            said.append(f"{file}: its name is taken, so {new} stands for it")
        found[new] = solution.model_copy(update={"name": new})
    return found, said
