"""Quoted #include lines of C++ and CUDA sources: read, and written anew."""

import re
from collections.abc import Callable
from functools import cache

CPP_SUFFIXES = (".cu", ".cuh", ".cpp", ".cc", ".h", ".hpp")
INCLUDE = re.compile(
    r'^(?P<before>[^\S\n]*#[^\S\n]*include[^\S\n]*")(?P<path>[^"\n]+)(?=")', re.MULTILINE
)


# By content: a process packs the same files for many definitions and solutions.
@cache
def included(text: str) -> tuple[tuple[int, str], ...]:
    """Return the line and the path of each #include."""
    return tuple(
        (text.count("\n", 0, match.start()) + 1, match["path"]) for match in INCLUDE.finditer(text)
    )


def with_includes(text: str, new_path: Callable[[str], str]) -> str:
    """Return the source with `new_path` of each included path in its place."""
    return INCLUDE.sub(lambda match: match["before"] + new_path(match["path"]), text)
