"""Write a file so that a reader sees the old content or the new, never half of it; devices and pipes at once."""

import errno
import os
import sys
from pathlib import Path

from harness.core.errors import CannotRun, UserError

STANDARD = {Path("/dev/stdout"): 1, Path("/dev/stderr"): 2}  # may be files, which this process is in the midst of


def is_special(path: Path) -> bool:
    """Whether a path is a device or a pipe, to be written to and not to be replaced."""
    return path in STANDARD or path.exists() and not path.is_file()


def open_special(path: Path) -> int:
    """A descriptor to write to a device or a pipe. Raises UserError for a pipe that nobody reads: it would wait."""
    if path in STANDARD:
        sys.stdout.flush()
        return os.dup(STANDARD[path])
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise UserError(f"got {str(path)!r}, want a file that can be written: nobody reads this pipe") from error
        raise
    os.set_blocking(descriptor, True)
    return descriptor


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace path by content, creating its folder; a file that already has it is left alone.

    A device or a pipe is written to. Raises CannotRun where not all of it can be written, on a full disk for instance.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if is_special(path):
            with open(open_special(path), "wb") as device:
                device.write(data)
        elif not path.exists() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(data)
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise CannotRun(f"{path} is not written: {error.strerror}") from error


def append(path: Path, text: str) -> None:
    """Add a text to the end of a file, a device or a pipe. Raises CannotRun as `write_atomically`."""
    try:
        with open(open_special(path) if is_special(path) else path, "ab") as file:
            file.write(text.encode())
    except OSError as error:
        raise CannotRun(f"{path} is not written: {error.strerror}") from error
