"""Put the files of a packed solution into one folder, with imports and includes that follow.

common/triton/layer.py becomes layer.py, and `from .common.triton.layer import x` becomes
`from .layer import x`. submission/contest.py calls `flatten`, as the public starter kit drops
folders, and fingerprint.py, as the folder of a file says nothing about what it does.
"""

from functools import cache
from pathlib import PurePosixPath

from moebench.packing.manifest import PackingError
from moebench.packing.references import outline, with_imports, with_includes


def flatten(name: str, sources: dict[str, str]) -> dict[str, str]:
    """Return base name -> text of a packed solution's files, sorted.

    name: of the solution. sources: path -> text. Raises PackingError for two files of one name.
    """
    packed = tuple(sources)
    flat = {}
    for path, text in sources.items():
        base_name = PurePosixPath(path).name
        if base_name in flat:
            raise PackingError(
                f"{name}: another file has the name of {path}, and a submission has a single folder"
            )
        flat[base_name] = flat_text(path, text, packed)
    return dict(sorted(flat.items()))


@cache  # a solution's definitions share nearly all of their files
def flat_text(path: str, text: str, packed: tuple[str, ...]) -> str:
    """Return a file's text as it is where all files are in one folder.

    packed: the paths of all packed files.
    """
    if path.endswith(".py"):
        return with_flat_imports(path, text, packed)
    return with_includes(text, lambda included: flat_include(included, packed))


def with_flat_imports(path: str, text: str, packed: tuple[str, ...]) -> str:
    """Return a Python file's text with `from .b import c` in place of `from .a.b import c`, and
    with `from . import c` where a/b is a folder.

    Text that cannot be parsed stays as it is.
    """
    try:
        imports = outline(text).relative_imports
    except (SyntaxError, ValueError, RecursionError):
        return text

    modules = set()
    for file in packed:
        if file.endswith(".py"):
            modules.add(PurePosixPath(file).with_suffix("").parts)
    folders = {module[:-1] for module in modules}

    new_modules = {}
    for node in imports:
        target = node.target(PurePosixPath(path).parts)
        if target in modules:
            new_modules[node] = f".{target[-1]}"
        elif target in folders:
            new_modules[node] = "."
    return with_imports(text, new_modules)


def flat_include(included: str, packed: tuple[str, ...]) -> str:
    """Return the base name of an included path that is a packed file's, any other path as it is."""
    parts = [part for part in PurePosixPath(included).parts if part != ".."]
    ending = "/" + "/".join(parts)
    if any(f"/{path}".endswith(ending) for path in packed):
        return PurePosixPath(included).name
    return included
