"""Build solutions before they are needed, on a machine that may have no GPU: `moebench pack
--build`. judging/building.py times the builds of a run by `build_timed`.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from flashinfer_bench import Solution
from flashinfer_bench.compile import BuilderRegistry, BuildError
from flashinfer_bench.compile.utils import create_package_name
from flashinfer_bench.env import get_fib_cache_path

from moebench.core.arguments import check_cache
from moebench.core.errors import UserError
from moebench.core.nursery import end_descendants
from moebench.operators import catalogue
from moebench.operators.catalogue import definition
from moebench.packing import pack
from moebench.packing.eligibility import missing_dependencies


def build(names: list[str], layer_keys: Collection[str] = ()) -> int:
    """Have FIB build solutions one after the other, and print a line for each; return the exit
    status, 1 if one does not build.

    layer_keys: of the layers to build for; without any, all that a solution serves. Raises what
    `pack_all` raises, and UserError where none of the solutions serves one of these layers.
    """
    check_cache()

    status = 0
    for solution in chosen_solutions(names, layer_keys):
        missing = missing_dependencies(solution)
        if missing:
            print(
                f"{solution.name}: SKIPPED: needs {', '.join(missing)}, not installed here"
            )
            continue

        with undone_if_interrupted(solution):
            seconds, error = build_timed(solution)
        if error:
            status = 1
        result = f"not built: {error}" if error else f"built in {seconds:.1f} s"
        print(f"{solution.name}: {result}", flush=True)
    return status


def chosen_solutions(names: list[str], layer_keys: Collection[str]) -> list[Solution]:
    """Return the packed solutions that `build` builds. Raises what `build` raises."""
    packed, _ = pack.pack_all(names)
    chosen = []
    for solutions in packed.values():
        for layer_key, solution in solutions.items():
            if not layer_keys or layer_key in layer_keys:
                chosen.append(solution)

    if layer_keys and not chosen:
        raise UserError(
            f"--definition: got {', '.join(layer_keys)}, which none of these serves"
        )
    return chosen


def build_timed(solution: Solution) -> tuple[float, str]:
    """Have FIB build a solution; return the seconds, and why it does not build, or "".

    What is compiled stays in FIB's cache for later builds.
    """
    start = time.monotonic()
    error = ""
    try:
        layer = definition(catalogue.by_name()[solution.definition])
        BuilderRegistry.get_instance().build(layer, solution)
    except BuildError as raised:
        error = str(raised) or type(raised).__name__
    return time.monotonic() - start, error


@contextmanager
def undone_if_interrupted(solution: Solution) -> Iterator[None]:
    """Return a context for the build of a solution: on Ctrl-C its compilers are ended, and their
    temporary files and what FIB has written of the solution are removed.
    """
    with temporary_files_apart():
        try:
            yield
        except KeyboardInterrupt:
            end_descendants(spared=set())
            # the folder and the lock that FIB's builders make for a solution
            cache = get_fib_cache_path()
            for folder in cache.glob(f"*/*{create_package_name(solution)}"):
                shutil.rmtree(folder, ignore_errors=True)
            for lock in cache.glob(f"*/{solution.hash()}.lock"):
                lock.unlink(missing_ok=True)
            raise


@contextmanager
def temporary_files_apart() -> Iterator[None]:
    """Return a context in which this process and those it starts write their temporary files to a
    folder that is removed in the end.
    """
    before = dict(os.environ)
    default = tempfile.tempdir
    with tempfile.TemporaryDirectory(
        prefix="moebench-", ignore_cleanup_errors=True
    ) as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = default
            del os.environ["TMPDIR"]
            os.environ.update(before)
