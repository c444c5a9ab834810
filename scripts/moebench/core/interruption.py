"""What Ctrl-C does: every process that this one has started ends, and the command says what it has
finished.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil


def end_descendants(signum, frame) -> None:
    """End all descendants: the handler while a command runs. Raises KeyboardInterrupt.

    By SIGTERM, as compilers and ncu remove their temporary files then. Processes of solutions end
    by themselves, as soon as this one closes its sockets.
    """
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended by itself
            process.terminate()
    raise KeyboardInterrupt


@contextmanager
def on_interrupt(handler: Callable[..., None]) -> Iterator[None]:
    """Have a handler take SIGINT inside; for the main thread alone."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
