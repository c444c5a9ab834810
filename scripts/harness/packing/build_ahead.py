"""Build solutions for every definition they serve, before they are needed, on a machine that may have no GPU."""

import time
from collections.abc import Collection
from pathlib import Path

from flashinfer_bench.compile import BuilderRegistry, BuildError

from harness.core import paths
from harness.operators.catalogue import definition
from harness.packing import pack
from harness.packing.eligibility import is_installed
from harness.packing.manifest import choose


def build(names: list[str], folder: Path = paths.SOLUTIONS, geometries: Collection[str] = ()) -> int:
    """Let FIB build them one after the other; print a line for each. Returns 1 if one does not build, else 0.

    geometries: the definitions that they are built for; without any, all that they serve. What is compiled stays in its
    own cache, where later builds find it. Raises PackingError.
    """
    status = 0
    for name in choose(names, folder):
        for geometry, solution in pack.pack(name, folder).items():
            if geometries and geometry not in geometries:
                continue
            if missing := [module for module in solution.spec.dependencies if not is_installed(module)]:
                print(f"{solution.name}: SKIPPED: needs {', '.join(missing)}, not installed here")
                continue
            start = time.monotonic()
            try:
                BuilderRegistry.get_instance().build(definition(geometry), solution)
                print(f"{solution.name}: built in {time.monotonic() - start:.1f} s", flush=True)
            except BuildError as error:
                print(f"{solution.name}: not built: {error}", flush=True)
                status = 1
    return status
