"""A bundle's files in one folder: each by its base name, and imports and includes follow.

A submission needs it, as the public starter kit drops folders; and where a file lies says nothing
about what it does.
"""

import ast
import re
from functools import cache
from pathlib import PurePosixPath

from moebench.packing.manifest import PackingError


def flatten(name: str, sources: dict[str, str]) -> dict[str, str]:
    """Base name -> text of a packed solution, sorted. Raises PackingError where two files would get
    one name.
    """
    flat = {
        PurePosixPath(path).name: with_flat_imports(path, text, (*sources,))
        for path, text in sources.items()
    }
    if len(flat) < len(sources):
        twice = [path for path in sources if flat.pop(PurePosixPath(path).name, None) is None]
        raise PackingError(
            f"{name}: another file has the name of {twice[0]}, and a submission has a single folder"
        )
    return dict(sorted(flat.items()))


def target_of(node: ast.ImportFrom, path: str) -> tuple[str, ...]:
    """What a relative import in the file at `path` names: parts of a path in the bundle."""
    return *PurePosixPath(path).parts[: -node.level], *(
        node.module.split(".") if node.module else ()
    )


@cache  # a solution's definitions share nearly all of their files
def with_flat_imports(path: str, text: str, packed: tuple[str, ...]) -> str:
    """text of one of the packed files: `from .a.b import c` becomes `from .b import c`, or `from .
    import c` for a folder a/b; `#include "a/b.cuh"` becomes `#include "b.cuh"`. Python that cannot
    be parsed stays as it is."""

    def base(include: re.Match) -> str:
        inside = "/".join(part for part in PurePosixPath(include[0]).parts if part != "..")
        return (
            PurePosixPath(inside).name
            if any(f"/{path}".endswith(f"/{inside}") for path in packed)
            else include[0]
        )

    if not path.endswith(".py"):
        return re.sub(r'(?<=#include ")[^"\n]+(?=")', base, text)
    try:
        nodes = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ImportFrom) and node.level
        ]
    except (SyntaxError, ValueError):
        return text
    modules = {
        PurePosixPath(other).with_suffix("").parts for other in packed if other.endswith(".py")
    }
    lines = text.encode().splitlines(keepends=True)
    for node in sorted(
        nodes, key=lambda node: (node.lineno, node.col_offset), reverse=True
    ):  # keeps offsets valid
        target, start, line = target_of(node, path), node.col_offset, lines[node.lineno - 1]
        if target in modules | {module[:-1] for module in modules}:
            new = f"from .{target[-1] if target in modules else ''} import".encode()
            lines[node.lineno - 1] = line[:start] + re.sub(
                rb"from\s*\.[\s.\w]*?\s+import\b", new, line[start:], count=1
            )
    return b"".join(lines).decode()
