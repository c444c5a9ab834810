"""Build what compiles for minutes, before anything is evaluated or timed.

Called once before the tasks of a run (evaluate.py, on_ray.py), and by selection.py for the commands
`profile` and `served`.
"""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from flashinfer_bench import Solution

from moebench.core.errors import first_line
from moebench.packing import manifest
from moebench.packing.build_ahead import build_timed

Solutions = dict[str, Solution]  # name -> packed solution
Say = Callable[[str], None]  # takes a line for the user


def build_slow(solutions: Solutions, say: Say) -> None:
    """Build those solutions whose manifest says that their first use takes long (`first_use`).

    A build that fails is only reported here: the run evaluates it as COMPILE_ERROR.
    """
    for name, packed in solutions.items():
        first_use = manifest.read_manifest(name).first_use
        if not first_use:
            continue

        say(f"{name}: building; on first use it {first_use}")
        seconds, error = build_apart(packed)
        outcome = f"not built: {error.splitlines()[0]}" if error else "built"
        say(f"{name}: {outcome} in {seconds:.1f} s, apart from the runs below")


def build_apart(packed: Solution) -> tuple[float, str]:
    """Return what `build_timed` does, called in a process of its own: in this one outputs are
    compared, and no code of a solution runs.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(build_timed, packed).result()
        except Exception as broken:  # whatever the build does to its process
            return 0.0, first_line(broken)
