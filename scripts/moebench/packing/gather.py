"""Gather the files that a solution is packed from, and change their imports and includes. pack.py
makes a Gathering for each solution.

Packed are all sources in the solution's folder and in that of the solution it is based on, and the
files of solutions/common/ that these need: modules that are imported, headers that are included,
the manifest's `units`, and files called as one of these, as tiles.csv beside tiles.py and
quantise_tokens.cu beside quantise_tokens.cuh.

In a packed solution the files of its folder are at the top, and common/ is a folder beside them:

    in solutions/mine/main.py                       in the packed main.py
    from ..common.triton.layer import launch_layer  from .common.triton.layer import launch_layer
    #include "common/cuda/tokens/route.cuh"         #include "route.cuh"

In solutions/ an editor can follow imports and includes. The build searches the folders of all
headers, so a packed source includes a header by its name alone.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from moebench.core import paths
from moebench.packing.manifest import Manifest, PackingError, read_source, refusal
from moebench.packing.references import (
    CPP_SUFFIXES,
    Outline,
    RelativeImport,
    included,
    outline,
    with_imports,
    with_includes,
)

COMMON = "common"
SUFFIXES = (".py", ".cu", ".cuh", ".csv")
HEADERS = (".cuh", ".h", ".hpp")
NOT_ASCII = re.compile(r"[^\x00-\x7f]")

# Suffix of a file of common/ -> suffixes of the files that are packed along if they have its name
COMPANIONS = {".py": (".csv", ".cpp"), ".cuh": (".cu",)}


class Gathering:
    """The files of one solution.

    folders: names of the folders below solutions/ that are packed: that of its base if it has one,
    then the solution's. files: path in the packed solution -> file. Raises PackingError for an
    import, an include or a unit that cannot be followed.
    """

    def __init__(self, manifest: Manifest):
        self.name = manifest.name
        self.folders = [name for name in (manifest.based_on, manifest.name) if name]
        # where both folders have a file, the solution's counts
        self.files = {}
        for folder in self.folders:
            root = paths.SOLUTIONS / folder
            for file in root.rglob("*"):
                if file.suffix in SUFFIXES and not is_marker(file):
                    self.files[file.relative_to(root).as_posix()] = file

        pending = list(self.files.values())
        for unit in manifest.units:
            pending += self.add(self.unit_file(unit))
        while pending:
            for file in self.needed_by(pending.pop()):
                pending += self.add(file)

        self.check_headers()

    def unit_file(self, unit: str) -> Path:
        """Return the file of one of the manifest's `units`."""
        common = paths.SOLUTIONS / COMMON
        files = {str(tree_path(file)): file for file in common.rglob("*.cu")}
        if unit not in files:
            present = ", ".join(sorted(files)) or "there is none"
            raise refusal(self.name, "units", unit, f"one of: {present}")
        return files[unit]

    def add(self, file: Path) -> list[Path]:
        """Add a file of common/ and its companions to `files`; return those that are new there."""
        files = [file]
        for suffix in COMPANIONS.get(file.suffix, ()):
            files.append(file.with_suffix(suffix))

        new = []
        for each in files:
            path = str(tree_path(each))
            if path not in self.files and each.is_file():
                self.files[path] = each
                new.append(each)
        return new

    def needed_by(self, file: Path) -> list[Path]:
        """Return the files of common/ that a file imports or includes."""
        needed = []
        if file.suffix == ".py":
            needed = self.imported_by(file)
        elif file.suffix in CPP_SUFFIXES:
            needed = self.included_by(file)
        return [each for each in needed if is_common(each)]

    def imported_by(self, file: Path) -> Iterator[Path]:
        """Yield the files of the modules that a Python file imports."""
        source = self.outline(file)

        for line, module in source.absolute_imports:
            if module.partition(".")[0] == paths.SOLUTIONS.name:
                raise PackingError(
                    f"{self.place(file, line)}: imports {module}, want a relative import, "
                    "as a packed solution runs where solutions/ is not"
                )

        for node in source.relative_imports:
            for module in self.imported_modules(node, file):
                module_file = self.file_at(f"{module}.py")
                if module_file is None or (
                    is_common(file) and not is_common(module_file)
                ):
                    raise PackingError(
                        f"{self.place(file, node.line)}: imports {module}.py, which is not packed"
                    )
                yield module_file

    def outline(self, file: Path) -> Outline:
        try:
            return outline(self.text(file))
        except SyntaxError as error:
            raise PackingError(
                f"{self.place(file, error.lineno)}: {error.msg}"
            ) from error

    def imported_modules(self, node: RelativeImport, file: Path) -> list[str]:
        """Return the modules that an import names, by their paths below solutions/.

        `from ..common.triton import gemm1, gemm2` names two.
        """
        path = tree_path(file)
        if node.level > len(path.parts):
            raise PackingError(
                f"{self.place(file, node.line)}: imports from above solutions/"
            )

        target = "/".join(node.target(path.parts))
        if (paths.SOLUTIONS / target).is_dir():
            return [f"{target}/{name}" for name in node.names]
        return [target]

    def included_by(self, file: Path) -> Iterator[Path]:
        """Yield the headers that a file includes. One that is neither below solutions/ nor beside
        the file is a library's.
        """
        for line, path in included(self.text(file)):
            header = self.file_at(path)
            beside = file.parent / path
            if header is not None:
                yield header
            elif beside.is_file():
                yield beside
            elif path.partition("/")[0] in (COMMON, *self.folders):
                raise PackingError(
                    f"{self.place(file, line)}: includes {path}, which is not there"
                )

    def file_at(self, path: str) -> Path | None:
        """Return the file that is packed for a path below solutions/, or None.

        path: as an import or include names it. For a path in the base's folder the file may be the
        solution's.
        """
        folder, _, below = path.partition("/")
        if folder in self.folders:
            return self.files.get(below)
        file = paths.SOLUTIONS / path
        return file if folder == COMMON and file.is_file() else None

    def check_headers(self) -> None:
        """Raise PackingError for two headers of one name, as sources include them by name."""
        headers = [PurePosixPath(path) for path in self.files if path.endswith(HEADERS)]
        for name, count in Counter(header.name for header in headers).items():
            if count > 1:
                raise PackingError(f"{self.name}: two headers are called {name}")

    def packed_text(self, file: Path) -> str:
        """Return a file's text as it is packed, with its imports and includes changed.

        Raises PackingError for an empty file, and for text that is not ASCII.
        """
        text = self.text(file)
        if not text:
            raise PackingError(
                f"{self.place(file)}: got an empty file, want source text"
            )

        # FIB writes sources in the encoding of whoever runs it, and Python and nvcc read UTF-8
        for number, line in enumerate(text.splitlines(), 1):
            character = NOT_ASCII.search(line)
            if character:
                raise PackingError(
                    f"{self.place(file, number)}: got {character[0]!r}, want ASCII; "
                    f"in a string {ascii(character[0])[1:-1]} stands for it"
                )

        if file.suffix == ".py":
            return with_packed_imports(file, text)
        if file.suffix in CPP_SUFFIXES:
            return with_includes(text, self.packed_include)
        return text

    def packed_include(self, path: str) -> str:
        """Return what a packed source includes in place of a path: a packed file's name alone, and
        a library's path as it is.
        """
        return PurePosixPath(path).name if self.file_at(path) else path

    def text(self, file: Path) -> str:
        return read_source(self.name, file)

    def place(self, file: Path, line: int | None = None) -> str:
        """Return the beginning of a message about a file: 'mine: few/main.py:12'."""
        path = tree_path(file)
        if not is_common(file):
            path = path.relative_to(path.parts[0])
        place = f"{self.name}: {path}"
        return place if line is None else f"{place}:{line}"


def tree_path(file: Path) -> PurePosixPath:
    """Return a file's path below solutions/."""
    return PurePosixPath(file.relative_to(paths.SOLUTIONS))


def is_common(file: Path) -> bool:
    return tree_path(file).parts[0] == COMMON


def is_marker(file: Path) -> bool:
    """Return whether a file only tells Python that its folder is a package. FIB takes no empty
    file.
    """
    return file.name == "__init__.py" and not file.stat().st_size


def with_packed_imports(file: Path, text: str) -> str:
    """Return a Python file's text with the imports that it has in a packed solution."""
    if is_common(file):  # common/ lies in the packed solution as it does in solutions/
        return text

    # as many dots lead from the file to solutions/
    to_solutions = len(tree_path(file).parts)
    modules = {}
    for node in outline(text).relative_imports:
        if node.level == to_solutions:
            dots = "." * (node.level - 1)
            folder, *below = node.module
            # common/ is a folder of the packed solution, its own files are at the top
            module = node.module if folder == COMMON else below
            modules[node] = dots + ".".join(module)
    return with_imports(text, modules)
