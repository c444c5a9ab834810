"""Build solutions for every definition they serve, before they are needed, on a machine that may
have no GPU.
"""

import time
from collections.abc import Collection

from flashinfer_bench import Solution
from flashinfer_bench.compile import BuilderRegistry, BuildError

from moebench.core.arguments import check_cache
from moebench.core.errors import UserError
from moebench.operators.catalogue import BY_NAME, definition
from moebench.packing import pack
from moebench.packing.eligibility import is_installed


def build_timed(solution: Solution) -> tuple[float, str]:
    """Let FIB build it: the seconds, and why it does not build, or ''. What is compiled is kept for
    later builds.
    """
    start, error = time.monotonic(), ""
    try:
        BuilderRegistry.get_instance().build(definition(BY_NAME[solution.definition]), solution)
    except BuildError as raised:
        error = str(raised) or type(raised).__name__
    return time.monotonic() - start, error


def build(names: list[str], geometries: Collection[str] = ()) -> int:
    """Let FIB build them one after the other; print a line for each. Returns 1 if one does not
    build, else 0.

    geometries: the definitions to build them for; without any, all that they serve. Raises as
    `pack_all`.
    """
    check_cache()
    status, packed = 0, pack.pack_all(names)[0].values()
    wanted = [of[key] for of in packed for key in of if not geometries or key in geometries]
    if geometries and not wanted:
        raise UserError(f"--definition: got {', '.join(geometries)}, which none of these serves")
    for solution in wanted:
        if missing := [module for module in solution.spec.dependencies if not is_installed(module)]:
            print(f"{solution.name}: SKIPPED: needs {', '.join(missing)}, not installed here")
            continue
        seconds, error = build_timed(solution)
        print(
            f"{solution.name}: {f'not built: {error}' if error else f'built in {seconds:.1f} s'}",
            flush=True,
        )
        status = 1 if error else status
    return status
