"""What is run on this machine: which layer, which solutions and why not the others."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import torch
from flashinfer_bench import Solution
from flashinfer_bench.utils import env_snapshot

from moebench.core.arguments import check_cache
from moebench.core.errors import CannotRun
from moebench.judging.calling import device_here, first_line
from moebench.operators import catalogue
from moebench.operators.catalogue import form, operator, small_like
from moebench.packing import eligibility, manifest, pack
from moebench.packing.build_ahead import build_timed
from moebench.packing.serves import why_not

Say = Callable[[str], None]  # takes a line for the user


@dataclass(frozen=True)
class Device:
    """What solutions run on.

    hardware: its name. target: as in target_hardware. free: bytes of a GPU, else 0.
    """

    hardware: str
    target: str
    free: int

    @property
    def on_gpu(self) -> bool:
        return self.target != "cpu"


def survey() -> Device:
    """Return the current device of this machine."""
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0
    return Device(env_snapshot(device_here()).hardware, eligibility.here(), free)


def choose_layer(wanted: str | None, on_gpu: bool, solutions: list[str]) -> str:
    """Return the layer key that is wanted, or what the first solution serves, or the first of all.

    Raises UserError for an unknown solution, CannotRun as `check_device`.
    """
    if wanted is not None:
        check_device(wanted, on_gpu)
        return wanted

    served = []
    if solutions:
        first = manifest.choose(solutions)[0]
        served = manifest.read_manifest(first).definitions
    needs_gpu = catalogue.full()
    return next(key for key in [*served, *catalogue.layer_sizes()] if (key in needs_gpu) == on_gpu)


def check_device(layer_key: str | None, on_gpu: bool) -> None:
    """Raise CannotRun for a layer that is too large for a machine without a GPU."""
    if layer_key in catalogue.full() and not on_gpu:
        raise CannotRun(
            f"{layer_key} needs a CUDA device; without one: --definition {small_like(layer_key)}"
        )


def select(names: list[str], layer_key: str, say: Say) -> dict[str, Solution]:
    """Return what is run on this machine, by folder's name, built if that takes minutes.

    Says which are skipped, and why. Raises as `eligible`, and CannotRun if all are skipped.
    """
    solutions, skipped = eligible(names, layer_key, survey())
    if not solutions:
        raise CannotRun(f"no solution can be run here: {'; '.join(skipped)}")

    for line in skipped:
        say(line)
    build_slow(solutions, say)
    return solutions


def eligible(
    names: list[str], layer_key: str, device: Device
) -> tuple[dict[str, Solution], list[str]]:
    """Return folder's name -> packed solution, of these or all of the operator's, and a line for
    each one that is skipped.

    Raises UserError for a named one that is unknown or cannot be packed, CannotRun for a layer that
    none serves.
    """
    check_cache()
    all_packed, left_out = pack.pack_all(names)
    of_operator = operator(layer_key).layer_sizes().keys()
    solutions = {}
    skipped = [line.replace(": ", ": SKIPPED: ", 1) for line in left_out]
    for name, packed in all_packed.items():
        if not names and packed.keys().isdisjoint(of_operator):
            continue

        reason = why_not_run(name, packed, layer_key, device)
        if reason:
            skipped.append(f"{name}: SKIPPED: {reason}")
        else:
            solutions[name] = packed[layer_key]

    if not names and not any(layer_key in packed for packed in all_packed.values()):
        raise CannotRun(
            f"no solution serves {layer_key} yet; "
            f"`moebench new NAME --definition {layer_key}` starts one"
        )
    return solutions, skipped


def why_not_run(
    name: str, packed: dict[str, Solution], layer_key: str, device: Device
) -> str | None:
    """Return why a solution cannot be run on a layer here, or None. packed: by layer key."""
    any_packed = next(iter(packed.values()))  # hardware and dependencies are the manifest's
    reason = eligibility.why_skipped(any_packed, device.target)
    if reason or layer_key in packed:
        return reason

    needs_gpu = catalogue.full()
    of_this_size = [key for key in packed if (key in needs_gpu) == (layer_key in needs_gpu)]
    served = (of_this_size or list(packed))[0]
    sizes = catalogue.layer_sizes()[layer_key]
    why = why_not(manifest.read_manifest(name).serves, form(layer_key), sizes)
    return f"does not serve {layer_key} ({why}), as it does --definition {served}"


def build_slow(solutions: dict[str, Solution], say: Say) -> None:
    """Build those that compile for minutes on first use, before any is evaluated.

    In a process of their own, as outputs are compared in this one. A build that fails is only
    reported here: the run evaluates it as COMPILE_ERROR.
    """
    slow = {}
    for name, packed in solutions.items():
        note = manifest.read_manifest(name).first_use
        if note:
            slow[name] = (packed, note)
    if not slow:
        return

    for name, (packed, note) in slow.items():
        say(f"{name}: building; on first use it {note}")
        seconds, error = build_apart(packed)
        outcome = f"not built: {error.splitlines()[0]}" if error else "built"
        say(f"{name}: {outcome} in {seconds:.1f} s, apart from the runs below")


def build_apart(packed: Solution) -> tuple[float, str]:
    """Return the seconds that a build takes in another process, and why it fails or ''."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(build_timed, packed).result()
        except Exception as error:  # whatever it does to its process
            return 0.0, first_line(error)
