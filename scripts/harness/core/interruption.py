"""What Ctrl-C does: every process that this one has started ends, and the command says what it has finished."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LINE = "interrupted"
STATUS = 130


def descendants(pid: int) -> list[int]:
    """Processes that `pid` has started, and those that they have."""
    listed = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    children = [int(child) for found in listed for child in found]
    return [*children, *(further for child in children for further in descendants(child))]


def end_descendants(signum, frame) -> None:
    """The handler while a command runs. SIGTERM: compilers and ncu remove their temporary files then."""
    for pid in descendants(os.getpid()):
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:  # it has ended by itself
            continue
    raise KeyboardInterrupt


@contextmanager
def on_interrupt(handler: Callable[..., None]) -> Iterator[None]:
    """`handler` takes SIGINT inside; of the main thread alone."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
