"""Which layer and which of this repository's solutions run on a device, and why others do not.

A layer is named by its key in the catalogue, as "glm-5-ep8" or "small"; "full" layers are those
that need a GPU.
"""

from flashinfer_bench import Solution

from moebench.core.arguments import check_cache
from moebench.core.errors import CannotRun
from moebench.judging.building import Say, build_slow
from moebench.judging.device import Device, survey
from moebench.operators import catalogue
from moebench.operators.catalogue import form, operator, small_like
from moebench.packing import eligibility, manifest, pack
from moebench.packing.serves import why_not


def choose_layer(layer_key: str | None, on_gpu: bool, solutions: list[str]) -> str:
    """Return the layer key that is given, else the first that is for this device: of those that the
    first of the solutions serves, then of all.

    Raises UserError for an unknown solution, CannotRun as `check_device`.
    """
    if layer_key is not None:
        check_device(layer_key, on_gpu)
        return layer_key

    keys = list(catalogue.layer_sizes())
    if solutions:
        first, *_ = manifest.choose(solutions)
        keys = manifest.read_manifest(first).definitions + keys
    return next(key for key in keys if is_for(key, on_gpu))


def is_for(layer_key: str, on_gpu: bool) -> bool:
    """Whether a layer's size is for a GPU (on_gpu), or else for a machine without one."""
    return (layer_key in catalogue.full()) == on_gpu


def check_device(layer_key: str, on_gpu: bool) -> None:
    """Raise CannotRun for a layer that is too large for a machine without a GPU."""
    if not on_gpu and not is_for(layer_key, on_gpu):
        raise CannotRun(
            f"{layer_key} needs a CUDA device; without one: --definition {small_like(layer_key)}"
        )


def select(names: list[str], layer_key: str, say: Say) -> dict[str, Solution]:
    """Return `eligible` solutions on this machine; those whose build takes minutes are built.

    Tells the user which are skipped, and why. Raises as `eligible`, and CannotRun if all are.
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
    """Return name -> packed solution for a layer, and a line for each solution that is skipped.

    names: of the solutions; [] for all that serve a layer of this operator. Raises UserError for a
    named one that is unknown or cannot be packed, CannotRun for a layer that none serves.
    """
    check_cache()
    all_packed, left_out = pack.pack_all(names)
    if not names:
        if not any(layer_key in packed for packed in all_packed.values()):
            raise CannotRun(
                f"no solution serves {layer_key} yet; "
                f"`moebench new NAME --definition {layer_key}` starts one"
            )

    solutions = {}
    skipped = [line.replace(": ", ": SKIPPED: ", 1) for line in left_out]
    operator_keys = operator(layer_key).layer_sizes().keys()
    for name, packed in all_packed.items():
        if not names and packed.keys().isdisjoint(operator_keys):
            continue

        reason = why_not_run(name, packed, layer_key, device)
        if reason:
            skipped.append(f"{name}: SKIPPED: {reason}")
        else:
            solutions[name] = packed[layer_key]
    return solutions, skipped


def why_not_run(
    name: str, packed: dict[str, Solution], layer_key: str, device: Device
) -> str | None:
    """Return why a solution cannot be run on a layer here, or None where it can.

    packed: layer key -> the solution, for each layer that it serves.
    """
    any_packed, *_ = packed.values()  # hardware and dependencies are the manifest's
    reason = eligibility.why_skipped(any_packed, device.target)
    if reason or layer_key in packed:
        return reason

    sizes = catalogue.layer_sizes()[layer_key]
    why = why_not(manifest.read_manifest(name).serves, form(layer_key), sizes)
    needs_gpu = layer_key in catalogue.full()
    like_it = [key for key in packed if is_for(key, needs_gpu)]
    served, *_ = like_it or packed
    return f"does not serve {layer_key} ({why}), as it does --definition {served}"
