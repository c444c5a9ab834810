"""Relative imports of Python sources: read, and written anew."""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

STATEMENT = re.compile(rb"from\s*\.[\s.\w]*?\s+import\b")


@dataclass(frozen=True)
class RelativeImport:
    """`from ..a.b import c, d`."""

    line: int
    column: int  # in bytes, as ast counts
    level: int  # how many dots
    module: tuple[str, ...]  # ("a", "b")
    names: tuple[str, ...]  # ("c", "d")

    def target(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """Return the parts of the path that is named in a file whose path has these parts."""
        return path[: -self.level] + self.module


@dataclass(frozen=True)
class Outline:
    """What packing has to know of a Python source."""

    definitions: frozenset[str]  # functions and classes
    relative_imports: tuple[RelativeImport, ...]
    absolute_imports: tuple[tuple[int, str], ...]  # line, module


# By content: a process packs the same files for many definitions and solutions.
@cache
def outline(text: str) -> Outline:
    """Return a source's outline. Raises SyntaxError, ValueError or RecursionError as ast.parse."""
    tree = ast.parse(text)
    definitions = frozenset(node.name for node in tree.body if hasattr(node, "name"))
    relative = []
    absolute = []

    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            relative.append(read_import(node))
        elif isinstance(node, ast.ImportFrom):
            absolute.append((node.lineno, node.module))
        elif isinstance(node, ast.Import):
            absolute.extend((node.lineno, alias.name) for alias in node.names)

    return Outline(definitions, tuple(relative), tuple(absolute))


def read_import(node: ast.ImportFrom) -> RelativeImport:
    return RelativeImport(
        line=node.lineno,
        column=node.col_offset,
        level=node.level,
        module=tuple(node.module.split(".")) if node.module else (),
        names=tuple(alias.name for alias in node.names),
    )


def with_imports(text: str, modules: Mapping[RelativeImport, str]) -> str:
    """Return the source with `from MODULE import` in each of these imports; ".a.b" is a MODULE."""
    lines = text.encode().splitlines(keepends=True)

    # From the end, so that the places of those before stay right.
    for node in sorted(modules, key=lambda node: (node.line, node.column), reverse=True):
        line = lines[node.line - 1]
        statement = f"from {modules[node]} import".encode()
        rest = STATEMENT.sub(statement, line[node.column :], count=1)
        lines[node.line - 1] = line[: node.column] + rest

    return b"".join(lines).decode()
