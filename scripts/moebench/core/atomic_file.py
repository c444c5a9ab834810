"""Write a file so that a reader sees the old content or the new, never half of it."""

import os
from pathlib import Path

from moebench.core.errors import CannotRun


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file, and its folder if that is not there. A file with this content is left alone.

    Raises CannotRun where not all of it can be written, on a full disk for instance.
    """
    data = content.encode() if isinstance(content, str) else content
    # in the same folder, to be renamed
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.exists() and path.read_bytes() == data:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(data)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise CannotRun(f"{path} is not written: {error.strerror}") from error
