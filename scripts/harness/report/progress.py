"""The bar that a long command draws below its lines."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def progress(console: Console, total: int, ticking: bool = True) -> Iterator[Callable[[int, str], None]]:
    """A function that shows how many are done and what is at work; the bar goes when the context ends.

    ticking: a thread redraws it; without, it is drawn between calls alone, for a process that takes times.
    """
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")
    clocks = TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(*columns, *clocks, console=console, transient=True, auto_refresh=ticking) as bar:
        task = bar.add_task("", total=total)
        yield lambda done, label: bar.update(task, completed=done, description=label, refresh=not ticking)
