"""Whether a packed solution can run on this machine, decided before it is built.

judging/selection.py leaves out of a run what cannot, and prints why.
"""

import importlib.util

import torch
from flashinfer_bench import Solution


def target_here() -> str:
    """Return what target_hardware calls this machine: "cpu", or a GPU's "sm_90"."""
    if not torch.cuda.is_available():
        return "cpu"
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def why_skipped(solution: Solution, hardware: str) -> str | None:
    """Return why a solution cannot run, or None if it can. hardware: as `target_here` calls it."""
    targets = solution.spec.target_hardware
    if hardware not in targets:
        gpus = ", ".join(target for target in targets if target != "cpu")
        needed = f"needs {gpus}" if gpus else "runs on the CPU only"
        machine = (
            "machine has no CUDA device" if hardware == "cpu" else f"GPU is {hardware}"
        )
        return f"{needed}; this {machine}"

    missing = missing_dependencies(solution)
    if missing:
        return f"needs {', '.join(missing)}, not installed here"
    return None


def missing_dependencies(solution: Solution) -> list[str]:
    """Return the modules that a solution needs and that are not installed."""
    return [module for module in solution.spec.dependencies if not is_installed(module)]


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except Exception:  # a parent package fails to import
        return False
