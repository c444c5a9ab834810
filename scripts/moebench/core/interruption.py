"""What Ctrl-C does while cli.py runs a command: processes that this one has started end, and
KeyboardInterrupt is raised, so that the command can say what it has finished.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil


def end_descendants(signum, frame) -> None:
    """End all descendants and raise KeyboardInterrupt: the handler of SIGINT while a command runs.

    SIGTERM lets compilers and ncu remove their temporary files. Processes of solutions are no
    descendants; they end as soon as this one closes its sockets.
    """
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended by itself
            process.terminate()
    raise KeyboardInterrupt


@contextmanager
def on_interrupt(handler: Callable[..., None]) -> Iterator[None]:
    """Have a handler take SIGINT inside. For the main thread alone."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
