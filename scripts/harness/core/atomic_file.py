"""Write a file so that a reader sees the old content or the new, never half of it."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace path by content, creating its folder; a file that already has it is left alone.

    What is no regular file, as /dev/stdout, is written to.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    if path.exists() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
