"""Traces of our own runs: what they record besides FIB's, and how they are kept."""

import importlib.metadata
import platform
import re
from functools import lru_cache

from flashinfer_bench import Evaluation, EvaluationStatus

from harness.results.trace_files import load, merge  # noqa: F401

MAX_LOG = 4000


def cuda_driver() -> str | None:
    """Version of the CUDA driver, or None without one."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no module, no library or no device: there is nothing to record
        return None
    try:
        return pynvml.nvmlSystemGetDriverVersion()
    finally:
        pynvml.nvmlShutdown()


@lru_cache
def packages(modules: tuple[str, ...]) -> str:
    """'flashinfer-python 0.6.13': each installed package that one of the modules belongs to, with its version, sorted.

    Torch and Triton are left out: FIB's snapshot of the environment has them.
    """
    owners = importlib.metadata.packages_distributions()
    names = {name for module in modules for name in owners.get(module.partition(".")[0], [])} - {"torch", "triton"}
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in sorted(names))


def annotate(
    evaluation: Evaluation, solution_sha1: str, tolerance: str, protocol: str, command: str, imported: str = ""
) -> Evaluation:
    """The evaluation with how it came about in environment.libs, and a log fit to be published.

    imported: `packages` of the solution's dependencies.
    """
    libs = evaluation.environment.libs | {
        "solution_sha1": solution_sha1,
        "flashinfer_bench": importlib.metadata.version("flashinfer-bench"),
        "tolerance": tolerance,
        "protocol": protocol,
        "python": platform.python_version(),
        "command": command,
    }
    if imported:
        libs["packages"] = imported
    if driver := cuda_driver():
        libs["cuda_driver"] = driver
    passed = evaluation.status == EvaluationStatus.PASSED
    # Absolute paths say nothing to a reader and too much about a machine.
    log = "" if passed else re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+", "", evaluation.log)[-MAX_LOG:]
    environment = evaluation.environment.model_copy(update={"libs": libs})
    return evaluation.model_copy(update={"environment": environment, "log": log})
