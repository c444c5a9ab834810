"""A bundle's files in one folder: each by its base name, and what they import or include follows.

The public starter kit drops folders, so a submission needs it; and where a file lies says nothing about what it does.
"""

import ast
import re
from functools import cache
from pathlib import PurePosixPath

from harness.packing.manifest import PackingError


def flatten(name: str, sources: dict[str, str]) -> dict[str, str]:
    """Path -> text of a packed solution, with every file in one folder, and imports and includes that fit.

    Raises PackingError where two files would get one name.
    """
    flat, packed = {}, frozenset(sources)
    for path, text in sources.items():
        target = PurePosixPath(path).name
        if target in flat:
            raise PackingError(f"{name}: two files called {target}, and a submission has a single folder")
        flat[target] = with_flat_imports(path, text, packed)
    return dict(sorted(flat.items()))


@cache  # a solution's definitions share nearly all of their files
def with_flat_imports(path: str, text: str, packed: frozenset[str]) -> str:
    """text of one of the packed files, where a file of the bundle is imported or included by its base name.

    `from .a.b import c` becomes `from .b import c`, or `from . import c` for a folder a/b; `#include "a/b.cuh"` becomes
    `#include "b.cuh"`. A .py file that Python cannot parse stays as it is.
    """
    if not path.endswith(".py"):
        return re.sub(r'(?<=#include ")[^"\n]+(?=")', lambda found: flat_include(found[0], packed), text)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return text
    modules = {PurePosixPath(other).with_suffix("").parts for other in packed if other.endswith(".py")}
    folders, lines = {module[:-1] for module in modules}, text.encode().splitlines(keepends=True)
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        parent = PurePosixPath(path).parts[: -node.level]
        target = (*parent, *(node.module.split(".") if node.module else ()))
        if target not in modules | folders:
            continue
        start, line = node.col_offset, lines[node.lineno - 1]
        wanted = f"from .{target[-1] if target in modules else ''} import".encode()
        lines[node.lineno - 1] = line[:start] + re.sub(rb"from\s*\.[\s.\w]*?\s+import\b", wanted, line[start:], count=1)
    return b"".join(lines).decode()


def flat_include(named: str, packed: frozenset[str]) -> str:
    inside = "/".join(part for part in PurePosixPath(named).parts if part != "..")
    return PurePosixPath(named).name if any(f"/{path}".endswith(f"/{inside}") for path in packed) else named
