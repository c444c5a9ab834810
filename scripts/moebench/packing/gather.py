"""Which files a solution is packed from, and what becomes of their imports and includes.

Packed are all sources in the solution's folder, and in that of the solution it is based on, and
what they need of solutions/common/: modules that are imported, headers that are included, the
manifest's `units`, and what lies beside one of these under the same name, as tiles.csv beside
tiles.py and quantise_tokens.cu beside quantise_tokens.cuh.

In solutions/ an import or include can be followed by an editor: `from ..common.triton.route import`,
`#include "common/cuda/route.cuh"`. The packed solution has its own files at the top and common/
below it, so that the import becomes `from .common.triton.route import`; headers are included by
their name alone, since the folders of all of them are searched.
"""

from collections import Counter
from pathlib import Path, PurePosixPath

from moebench.core import paths
from moebench.packing.imports import Outline, RelativeImport, outline, with_imports
from moebench.packing.includes import CPP_SUFFIXES, included, with_includes
from moebench.packing.manifest import Manifest, PackingError, read_source, refusal

COMMON = "common"
SUFFIXES = (".py", ".cu", ".cuh", ".csv")
# of what goes along with a file of common/ that is needed, if it has its name
COMPANIONS = {".py": (".csv", ".cpp"), ".cuh": (".cu",)}
HEADERS = (".cuh", ".h", ".hpp")


class Gathering:
    """The files of one solution, while imports and includes are followed.

    files: path in the packed solution -> file.
    """

    def __init__(self, manifest: Manifest):
        self.name = manifest.name
        self.folders = [name for name in (manifest.based_on, manifest.name) if name]
        self.files = self.files_in_folders()

        pending = list(self.files.values())
        for unit in manifest.units:
            pending.extend(self.add(self.unit_file(unit)))
        while pending:
            for file in self.needed_by(pending.pop()):
                pending.extend(self.add(file))

        self.check_headers()

    def files_in_folders(self) -> dict[str, Path]:
        """Return the solution's own files; they replace those of its base with the same path."""
        files = {}
        for folder in self.folders:
            root = paths.SOLUTIONS / folder
            for file in root.rglob("*"):
                is_marker = file.name == "__init__.py" and not file.stat().st_size
                if file.suffix in SUFFIXES and not is_marker:
                    files[file.relative_to(root).as_posix()] = file
        return files

    def add(self, file: Path) -> list[Path]:
        """Pack a file of common/ and its companions. Return those that are new."""
        names = [file.with_suffix(suffix) for suffix in COMPANIONS.get(file.suffix, ())]
        new = []
        for each in [file, *names]:
            path = each.relative_to(paths.SOLUTIONS).as_posix()
            if path not in self.files and each.is_file():
                self.files[path] = each
                new.append(each)
        return new

    def unit_file(self, unit: str) -> Path:
        """Return the file of an entry of the manifest's `units`. Raises PackingError."""
        file = paths.SOLUTIONS / unit
        units = sorted(
            path.relative_to(paths.SOLUTIONS).as_posix()
            for path in (paths.SOLUTIONS / COMMON).rglob("*.cu")
        )
        if unit not in units:
            raise refusal(
                self.name, "units", unit, f"one of: {', '.join(units) or 'there is none'}"
            )
        return file

    def needed_by(self, file: Path) -> list[Path]:
        """Return the files of common/ that a file imports or includes."""
        if file.suffix == ".py":
            return self.imported_by(file)
        if file.suffix in CPP_SUFFIXES:
            return self.included_by(file)
        return []

    # Python

    def imported_by(self, file: Path) -> list[Path]:
        """Return the modules of common/ that a file imports. Raises PackingError for one that is
        not there, or not packed.
        """
        needed = []
        source = self.outline(file)

        for line, module in source.absolute_imports:
            if module.partition(".")[0] == paths.SOLUTIONS.name:
                raise PackingError(
                    f"{self.place(file, line)}: imports {module}, want a relative import, "
                    "since a packed solution runs where solutions/ is not"
                )

        for node in source.relative_imports:
            for module in self.modules(node, file):
                module_file = self.module_file(module)
                if module_file is None:
                    raise PackingError(
                        f"{self.place(file, node.line)}: "
                        f"imports {'/'.join(module)}.py, which is not there"
                    )
                if module[0] == COMMON:
                    needed.append(module_file)

        return needed

    def outline(self, file: Path) -> Outline:
        """Return a Python file's outline. Raises PackingError where it cannot be parsed."""
        try:
            return outline(self.text(file))
        except SyntaxError as error:
            raise PackingError(f"{self.place(file, error.lineno)}: {error.msg}") from error

    def modules(self, node: RelativeImport, file: Path) -> list[tuple[str, ...]]:
        """Return the modules that an import names, as parts of their paths below solutions/.

        `from ..common.triton import gemm1` names common/triton/gemm1. Raises PackingError where it
        leads to what is not packed.
        """
        path = tree_path(file)
        target = node.target(path.parts)
        packed_folders = {COMMON} if path.parts[0] == COMMON else {COMMON, *self.folders}

        if node.level > len(path.parts) or not target or target[0] not in packed_folders:
            raise PackingError(
                f"{self.place(file, node.line)}: imports what is not packed: relative imports "
                f"lead to {' or '.join(sorted(packed_folders))} in solutions/"
            )

        if self.module_file(target) is None and self.is_folder(target):
            return [(*target, name) for name in node.names]
        return [target]

    def module_file(self, module: tuple[str, ...]) -> Path | None:
        """Return the file of a module, given by the parts of its path below solutions/."""
        for candidate in (f"{'/'.join(module)}.py", f"{'/'.join(module)}/__init__.py"):
            if module[0] != COMMON:
                candidate = candidate.partition("/")[2]
                file = self.files.get(candidate)
            else:
                file = paths.SOLUTIONS / candidate
            if file is not None and file.is_file():
                return file
        return None

    def is_folder(self, target: tuple[str, ...]) -> bool:
        owners = [COMMON] if target[0] == COMMON else self.folders
        return any(paths.SOLUTIONS.joinpath(owner, *target[1:]).is_dir() for owner in owners)

    # C++

    def included_by(self, file: Path) -> list[Path]:
        """Return the headers of common/ that a file includes. Raises PackingError for one that is
        not there. What is neither below solutions/ nor beside the file is a library's.
        """
        needed = []
        for line, path in included(self.text(file)):
            header = self.header_file(path)
            beside = file.parent / path
            if header is None and beside.is_file():
                header = beside

            if header is None and path.partition("/")[0] in (COMMON, *self.folders):
                raise PackingError(f"{self.place(file, line)}: includes {path}, which is not there")
            if header is not None and tree_path(header).parts[0] == COMMON:
                needed.append(header)
        return needed

    def header_file(self, path: str) -> Path | None:
        """Return the file of a header that is included by its path below solutions/."""
        folder, _, below = path.partition("/")
        if folder == COMMON and (paths.SOLUTIONS / path).is_file():
            return paths.SOLUTIONS / path
        if folder in self.folders:
            return self.files.get(below)
        return None

    def check_headers(self) -> None:
        """Raise PackingError for two headers of one name, which is how packed sources include."""
        names = Counter(PurePosixPath(path).name for path in self.files if path.endswith(HEADERS))
        for name, count in names.items():
            if count > 1:
                raise PackingError(f"{self.name}: two headers are called {name}")

    # What is packed

    def packed_text(self, file: Path) -> str:
        """Return a file's text with imports and includes as they are right in the packed solution.

        Raises PackingError for an empty file, and for text that is not ASCII.
        """
        text = self.text(file)
        if not text:
            raise PackingError(f"{self.place(file)}: got an empty file, want source text")
        check_ascii(self.place(file), text)

        if file.suffix == ".py":
            return self.with_packed_imports(file, text)
        if file.suffix in CPP_SUFFIXES:
            return with_includes(text, self.packed_include)
        return text

    def with_packed_imports(self, file: Path, text: str) -> str:
        path = tree_path(file)
        modules = {}
        for node in outline(text).relative_imports:
            leaves_folder = path.parts[0] != COMMON and node.level == len(path.parts)
            if leaves_folder:
                module = node.module if node.module[0] == COMMON else node.module[1:]
                modules[node] = "." * (node.level - 1) + ".".join(module)
        return with_imports(text, modules)

    def packed_include(self, path: str) -> str:
        return path if self.header_file(path) is None else PurePosixPath(path).name

    def text(self, file: Path) -> str:
        return read_source(self.name, file)

    def place(self, file: Path, line: int | None = None) -> str:
        """Return 'mine: few/main.py:12', which messages about a file begin with."""
        path = tree_path(file)
        parts = path.parts if path.parts[0] == COMMON else path.parts[1:]
        where = f"{self.name}: {'/'.join(parts)}"
        return where if line is None else f"{where}:{line}"


def tree_path(file: Path) -> PurePosixPath:
    """Return a file's path below solutions/."""
    return PurePosixPath(file.relative_to(paths.SOLUTIONS))


def check_ascii(place: str, text: str) -> None:
    """Raise PackingError for a character that is not ASCII: FlashInfer-Bench writes sources in the
    encoding of whoever runs it, and Python and nvcc read UTF-8.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if not line.isascii():
            character = next(each for each in line if not each.isascii())
            raise PackingError(
                f"{place}:{number}: got {character!r}, want ASCII; "
                f"in a string {ascii(character)[1:-1]} stands for it"
            )
