"""What is run on this machine: which geometry, which solutions and why not the others."""

from collections.abc import Callable

from flashinfer_bench import Definition, Solution

from harness.core.arguments import check_cache
from harness.core.errors import CannotRun
from harness.operators.catalogue import FULL, GEOMETRIES, definition, operator, small_like
from harness.packing import eligibility, manifest, pack
from harness.packing.build_ahead import build_timed

Say = Callable[[str], None]  # takes a line for the user


def choose_geometry(wanted: str | None, on_gpu: bool, solutions: list[str]) -> str:
    """`wanted`, or else what the first solution serves, or the first of all; a key of GEOMETRIES.

    Raises UserError for an unknown solution, CannotRun for a geometry that no solution serves and for a full one
    without a CUDA device.
    """
    if wanted is None:
        served = manifest.read_manifest(manifest.choose(solutions)[0]).definitions if solutions else []
        return next(key for key in [*served, *GEOMETRIES] if (key in FULL) == on_gpu)
    if not manifest.solutions_of([wanted]):
        raise CannotRun(f"no solution serves {wanted} yet; `moebench new NAME --definition {wanted}` starts one")
    if wanted in FULL and not on_gpu:
        raise CannotRun(f"{wanted} needs a CUDA device; without one: --definition {small_like(wanted)}")
    return wanted


def select(names: list[str], geometry: str, say: Say) -> tuple[dict[str, Solution], list[str]]:
    """Folder's name -> packed solution, of these or all of the operator's, and a line for each one that is skipped.

    Those that compile for minutes on first use are built. Raises UserError for an unknown solution and for one that
    cannot be packed, CannotRun if all are skipped or FIB cannot write in its cache.
    """
    check_cache()
    solutions, skipped = {}, []
    for name in manifest.choose(names or manifest.solutions_of(operator(geometry).GEOMETRIES)):
        packed = pack.pack(name)
        reason = eligibility.why_skipped(next(iter(packed.values())), eligibility.here())
        if geometry not in packed:
            served = next((key for key in packed if (key in FULL) == (geometry in FULL)), next(iter(packed)))
            reason = reason or f"serves {', '.join(packed)}, not {geometry}: --definition {served}"
        if reason:
            skipped.append(f"{name}: SKIPPED: {reason}")
        else:
            solutions[name] = packed[geometry]
    if not solutions:
        raise CannotRun(f"no solution can be run here: {'; '.join(skipped)}")
    for name, packed in solutions.items():
        if note := manifest.read_manifest(name).first_use:
            build_ahead(name, definition(geometry), packed, note, say)
    return solutions, skipped


def build_ahead(name: str, full: Definition, solution: Solution, note: str, say: Say) -> None:
    """Build a solution before any is judged; note: what the first use takes.

    A build that fails is only reported here: the run judges it COMPILE_ERROR.
    """
    say(f"{name}: building; on first use it {note}")
    seconds, error = build_timed(full, solution)
    outcome = f"not built: {error.splitlines()[0]}" if error else "built"
    say(f"{name}: {outcome} in {seconds:.1f} s, apart from the runs below")
