"""What is run on this machine: which geometry, which solutions and why not the others."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from flashinfer_bench import Solution
from flashinfer_bench.utils import env_snapshot

from moebench.core.arguments import check_cache
from moebench.core.errors import CannotRun
from moebench.judging.calling import device_here
from moebench.operators.catalogue import FULL, GEOMETRIES, form, operator, small_like
from moebench.packing import eligibility, manifest, pack
from moebench.packing.build_ahead import build_timed
from moebench.packing.serves import why_not

Say = Callable[[str], None]  # takes a line for the user


def choose_geometry(wanted: str | None, on_gpu: bool, solutions: list[str]) -> str:
    """`wanted`, or else what the first solution serves, or the first of all; a key of GEOMETRIES.

    Raises UserError for an unknown solution, CannotRun as `check_device`.
    """
    if wanted is None:
        served = (
            manifest.read_manifest(manifest.choose(solutions)[0]).definitions if solutions else []
        )
        return next(key for key in [*served, *GEOMETRIES] if (key in FULL) == on_gpu)
    check_device(wanted, on_gpu)
    return wanted


def check_device(geometry: str, on_gpu: bool) -> None:
    """Raises CannotRun for a geometry that is too large for a machine without a GPU."""
    if geometry in FULL and not on_gpu:
        raise CannotRun(
            f"{geometry} needs a CUDA device; without one: --definition {small_like(geometry)}"
        )


@dataclass(frozen=True)
class Device:
    """What solutions run on. hardware: its name; target: as in target_hardware; free: bytes of a
    GPU, else 0.
    """

    hardware: str
    target: str
    free: int

    @property
    def on_gpu(self) -> bool:
        return self.target != "cpu"


def survey() -> Device:
    """The current device of this machine."""
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0
    return Device(env_snapshot(device_here()).hardware, eligibility.here(), free)


def select(names: list[str], geometry: str, say: Say) -> dict[str, Solution]:
    """What is run on this machine, by folder's name, built if that takes minutes; says which are
    skipped, and why.

    Raises as `eligible`, and CannotRun if all are skipped.
    """
    solutions, skipped = eligible(names, geometry, survey())
    if not solutions:
        raise CannotRun(f"no solution can be run here: {'; '.join(skipped)}")
    for line in skipped:
        say(line)
    build_slow(solutions, say)
    return solutions


def eligible(
    names: list[str], geometry: str, device: Device
) -> tuple[dict[str, Solution], list[str]]:
    """Folder's name -> packed solution, of these or all of the operator's, and a line for each one
    that is skipped.

    Raises UserError for a named one that is unknown or cannot be packed, CannotRun for a geometry
    that none serves.
    """
    check_cache()
    all_packed, left_out = pack.pack_all(names)
    solutions, skipped = {}, [line.replace(": ", ": SKIPPED: ", 1) for line in left_out]
    for name, packed in all_packed.items():
        if not names and not packed.keys() & operator(geometry).geometries().keys():
            continue
        reason = eligibility.why_skipped(next(iter(packed.values())), device.target)
        if geometry not in packed:
            served = next(
                (key for key in packed if (key in FULL) == (geometry in FULL)), next(iter(packed))
            )
            why = why_not(manifest.read_manifest(name).serves, form(geometry), GEOMETRIES[geometry])
            reason = (
                reason or f"does not serve {geometry} ({why}), as it does --definition {served}"
            )
        if reason:
            skipped.append(f"{name}: SKIPPED: {reason}")
        else:
            solutions[name] = packed[geometry]
    if not names and not any(geometry in packed for packed in all_packed.values()):
        raise CannotRun(
            f"no solution serves {geometry} yet; `moebench new NAME --definition {geometry}` starts one"
        )
    return solutions, skipped


def build_slow(solutions: dict[str, Solution], say: Say) -> None:
    """Build those that compile for minutes on first use, before any is judged.

    A build that fails is only reported here: the run judges it COMPILE_ERROR.
    """
    for name, packed in solutions.items():
        if note := manifest.read_manifest(name).first_use:
            say(f"{name}: building; on first use it {note}")
            seconds, error = build_timed(packed)
            outcome = f"not built: {error.splitlines()[0]}" if error else "built"
            say(f"{name}: {outcome} in {seconds:.1f} s, apart from the runs below")
