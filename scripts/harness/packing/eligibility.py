"""Whether a packed solution can run on this machine, decided before it is built."""

import importlib.util
import re
from collections.abc import Container

import torch
from flashinfer_bench import Solution

GPUS = {  # what target_hardware calls a GPU -> words of its devices' names
    "sm_80": ("A100", "A800", "A30"),
    "sm_86": ("A10", "RTX 3090", "A10G", "A40", "RTX A5000", "RTX A6000"),
    "sm_89": ("L40S", "RTX 4090", "L4", "L20", "L40", "RTX 6000 Ada"),
    "sm_90": ("H100", "H200", "H20", "H800", "GH200"),
    "sm_100": ("B200", "GB200"),
    "sm_103": ("B300", "GB300"),
    "sm_120": ("RTX PRO 6000", "RTX 5090", "RTX PRO 5000", "RTX PRO 4500", "RTX 5080"),
    "sm_121": ("GB10",),
}


def here() -> str:
    """What this machine is called in target_hardware: cpu, or sm_ and the compute capability."""
    if not torch.cuda.is_available():
        return "cpu"
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def architecture(gpu: str) -> str | None:
    """What a GPU's name (H200, NVIDIA GeForce RTX 4090, sm_90) means in target_hardware; None for an unknown one."""
    said = set(re.split(r"[\s-]+", gpu.lower()))
    fits = (target for target, names in GPUS.items() for name in (target, *names) if {*name.lower().split()} <= said)
    return next(fits, None)


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def why_skipped(solution: Solution, hardware: str, installed: Container[str] | None = None) -> str | None:
    """One line saying why the solution cannot run on `hardware`, or None when it can.

    installed: modules that are there where the solution would run; None: looked up here.
    """
    targets = solution.spec.target_hardware
    if hardware not in targets:
        gpus = ", ".join(target for target in targets if target != "cpu")
        here = "this machine has no CUDA device" if hardware == "cpu" else f"this GPU is {hardware}"
        return f"{f'needs {gpus}' if gpus else 'runs on the CPU only'}; {here}"
    there = installed if installed is not None else set(filter(is_installed, solution.spec.dependencies))
    if missing := [name for name in solution.spec.dependencies if name not in there]:
        return f"needs {', '.join(missing)}, not installed here"
    return None
