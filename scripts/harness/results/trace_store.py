"""Traces of our own runs: what they record besides FIB's, and how they are kept."""

import importlib.metadata
import platform
import re
from functools import lru_cache
from pathlib import Path

from filelock import FileLock
from flashinfer_bench import Evaluation, EvaluationStatus, Trace
from flashinfer_bench.data import load_jsonl_file
from flashinfer_bench.env import get_fib_cache_path

from harness.core.atomic_file import write_atomically

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


def experiment(trace: Trace) -> tuple:
    """What was to be found out: a solution on a workload, on one kind of machine, at one tolerance."""
    environment = trace.evaluation.environment
    return trace.solution, trace.workload.uuid, environment.hardware, environment.libs.get("tolerance", "")


def key(trace: Trace) -> tuple:
    """Traces with one key are runs of one experiment by one protocol; the newest counts."""
    return *experiment(trace), trace.evaluation.environment.libs.get("protocol", "")


def load(path: Path) -> list[Trace]:
    """Traces in path, in its order; [] without a file. Raises ValueError for a broken line."""
    return load_jsonl_file(Trace, path) if path.exists() else []


def merge(path: Path, traces: list[Trace]) -> None:
    """Add traces to path; one replaces older ones of its key, and of its experiment with another source.

    So a short run leaves the long run of the same source alone. Safe among processes.
    """
    locks = get_fib_cache_path() / "trace_locks"
    locks.mkdir(parents=True, exist_ok=True)
    with FileLock(locks / f"{path.name}.lock"):
        kept = {key(trace): trace for trace in load(path)}
        for trace in traces:
            old = kept.get(key(trace))
            if old is None or old.evaluation.timestamp <= trace.evaluation.timestamp:
                kept[key(trace)] = trace
        by_age = sorted(kept.values(), key=lambda t: t.evaluation.timestamp)
        newest = {experiment(t): t.evaluation.environment.libs.get("solution_sha1") for t in by_age}
        current = [t for t in by_age if t.evaluation.environment.libs.get("solution_sha1") == newest[experiment(t)]]
        ordered = sorted(current, key=lambda t: (t.solution, t.workload.axes["seq_len"], key(t)))
        write_atomically(path, "".join(f"{trace.model_dump_json()}\n" for trace in ordered))
