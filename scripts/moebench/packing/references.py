"""Find and replace what sources refer to each other by: relative imports and quoted includes.

gather.py and flat.py call this: find imports by `outline`, includes by `included`, and put others
in their place by `with_imports` and `with_includes`.
"""

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

STATEMENT = re.compile(rb"from\s*\.[\s.\w]*?\s+import\b")
CPP_SUFFIXES = (".cu", ".cuh", ".cpp", ".cc", ".h", ".hpp")
INCLUDE = re.compile(
    r'^(?P<before>[^\S\n]*#[^\S\n]*include[^\S\n]*")(?P<path>[^"\n]+)(?=")',
    re.MULTILINE,
)


@dataclass(frozen=True, order=True)
class RelativeImport:
    """A statement `from ..a.b import c, d` in a file; several are sorted by line and column."""

    line: int
    column: int  # in bytes, as ast counts
    level: int  # how many dots
    module: tuple[str, ...]  # ("a", "b")
    names: tuple[str, ...]  # ("c", "d")

    def target(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """Return the path of the imported module, as parts. path: that of the importing file."""
        return path[: -self.level] + self.module


@dataclass(frozen=True)
class Outline:
    """The names and imports of a Python file."""

    names: frozenset[str]  # that the module defines or imports from another
    relative_imports: tuple[RelativeImport, ...]
    absolute_imports: tuple[tuple[int, str], ...]  # line, module


# By content: a process packs the same files for many definitions and solutions.
@cache
def outline(text: str) -> Outline:
    """Return the outline of a file with this text. Raises what ast.parse raises."""
    tree = ast.parse(text)
    names = [name for node in tree.body for name in bound_names(node)]
    relative = []
    absolute = []

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                absolute.append((node.lineno, alias.name))
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                relative.append(read_import(node))
            else:
                absolute.append((node.lineno, node.module))

    return Outline(frozenset(names), tuple(relative), tuple(absolute))


def bound_names(node: ast.stmt) -> list[str]:
    """Return the names that a statement of a module defines or imports."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign(targets=[ast.Name(id=name)]):
            return [name]
        case ast.ImportFrom():
            return [alias.asname or alias.name for alias in node.names]
    return []


def read_import(node: ast.ImportFrom) -> RelativeImport:
    return RelativeImport(
        line=node.lineno,
        column=node.col_offset,
        level=node.level,
        module=tuple(node.module.split(".")) if node.module else (),
        names=tuple(alias.name for alias in node.names),
    )


def with_imports(text: str, modules: Mapping[RelativeImport, str]) -> str:
    """Return a file's text with other modules in its imports.

    modules: import -> the module that it shall name, ".a.b".
    """
    lines = text.encode().splitlines(keepends=True)

    # From the end, so that the columns of those before stay right.
    for node in sorted(modules, reverse=True):
        statement = f"from {modules[node]} import"
        line = lines[node.line - 1]
        renamed = STATEMENT.sub(statement.encode(), line[node.column :], count=1)
        lines[node.line - 1] = line[: node.column] + renamed

    return b"".join(lines).decode()


# By content: a process packs the same files for many definitions and solutions.
@cache
def included(text: str) -> tuple[tuple[int, str], ...]:
    """Return the line and the path of each quoted #include in a file's text."""
    lines = []
    for match in INCLUDE.finditer(text):
        number = text.count("\n", 0, match.start()) + 1
        lines.append((number, match["path"]))
    return tuple(lines)


def with_includes(text: str, new_path: Callable[[str], str]) -> str:
    """Return a file's text in which each quoted #include of a path is of new_path(path)."""
    return INCLUDE.sub(lambda match: match["before"] + new_path(match["path"]), text)
