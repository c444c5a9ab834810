"""Which layer and which of this repository's solutions run on a device, and why others do not.

planning.py calls `eligible` for `moebench run`; the commands `profile` and `served`, which take one
layer, call `choose_layer` and `select`.

A layer is named by its key in the catalogue, as "glm-5-ep8" or "small". Those of
`catalogue.keys_for_gpu` need a GPU; the others are small ones, for a machine without.
"""

from flashinfer_bench import Solution

from moebench.core.arguments import check_cache
from moebench.core.errors import CannotRun
from moebench.judging.building import Say, Solutions, build_slow
from moebench.judging.device import Device, survey
from moebench.operators import catalogue
from moebench.operators.catalogue import form, operator, small_like
from moebench.packing import eligibility, manifest, pack
from moebench.packing.serves import why_not


def choose_layer(layer_key: str | None, on_gpu: bool, solutions: list[str]) -> str:
    """Return layer_key, or where it is None the first layer that is for this device.

    solutions: names of those that will run, [] for any. Layers that the first of them serves come
    before all others. Raises UserError for an unknown solution, CannotRun as `check_device`.
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
    """Whether a layer is for a GPU (on_gpu), or else whether it is for a machine without one."""
    return (layer_key in catalogue.keys_for_gpu()) == on_gpu


def check_device(layer_key: str, on_gpu: bool) -> None:
    """Raise CannotRun for a layer that is too large for a machine without a GPU."""
    if not on_gpu and layer_key in catalogue.keys_for_gpu():
        raise CannotRun(
            f"{layer_key} needs a CUDA device; without one: --definition {small_like(layer_key)}"
        )


def select(names: list[str], layer_key: str, say: Say) -> Solutions:
    """Return the `eligible` solutions on this machine, and build those that take minutes to build.

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
) -> tuple[Solutions, list[str]]:
    """Return name -> packed solution for a layer, and a line for each solution that is skipped.

    names: of the solutions; [] for all that serve a layer of this operator. Raises UserError for a
    named one that is unknown or cannot be packed; without names CannotRun for a layer that no
    solution serves.
    """
    check_cache()
    all_packed, errors = pack.pack_all(names)
    is_served = any(layer_key in packed for packed in all_packed.values())
    if not names and not is_served:
        raise CannotRun(
            f"no solution serves {layer_key} yet; "
            f"`moebench new NAME --definition {layer_key}` starts one"
        )

    solutions = {}
    # "NAME: ERROR" becomes "NAME: SKIPPED: ERROR"
    skipped = [error.replace(": ", ": SKIPPED: ", 1) for error in errors]
    operator_keys = operator(layer_key).layer_sizes().keys()
    for name, packed in all_packed.items():
        if not names and packed.keys().isdisjoint(operator_keys):
            continue  # it is for another operator, and nobody asked for it

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
    # all have the manifest's hardware and dependencies
    any_packed, *_ = packed.values()
    reason = eligibility.why_skipped(any_packed, device.target)
    if reason:
        return reason
    if layer_key in packed:
        return None

    sizes = catalogue.layer_sizes()[layer_key]
    why = why_not(manifest.read_manifest(name).serves, form(layer_key), sizes)

    # a layer that it serves, for the same kind of machine where there is one
    on_gpu = layer_key in catalogue.keys_for_gpu()
    same_machine = [key for key in packed if is_for(key, on_gpu)]
    served, *_ = same_machine or packed
    return f"does not serve {layer_key} ({why}); it serves --definition {served}"
