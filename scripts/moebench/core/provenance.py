"""Where a figure comes from: the Provenance that traces and all files under records/ have.

FIB's schema of a trace has no place for most of it, so there it is in `environment.libs`, beside
the versions of libraries (`into_evaluation`, `of_trace`).
"""

import importlib.metadata
import platform
import socket
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton

# isort: split
import flashinfer_bench
import torch
from flashinfer_bench import Evaluation, Trace
from flashinfer_bench.utils import env_snapshot
from pydantic import AliasChoices, Field

from moebench.core.schema import Strict

# CUDA events, as FIB 0.1.2 times; the GPU's activity, as FIB's main branch does
CLOCKS = ("events", "gpu")

# Field -> its name in the environment.libs of a FIB trace
IN_LIBS = {
    "source_sha1": "solution_sha1",
    "source_fingerprint": "source_fingerprint",
    "revalidated": "revalidated",
    "earlier_code": "earlier_code",
    "tolerance": "tolerance",
    "protocol": "protocol",
    "command": "command",
    "packages": "packages",
    "host": "host",
    "trials_ms": "trials_ms",
}


class Provenance(Strict):
    """Machine, versions, source, tolerance, protocol and command of a figure. None: not recorded.

    hardware: the device's name. versions: library -> version. timestamp: ISO 8601. source_sha1:
    FIB's hash of the packed solution. source_fingerprint: packing/fingerprint.py's.

    The fingerprint may be that of a later source. Then `revalidated` says why its figures are the
    same, or `earlier_code` how the code that was measured differs and why it is shown all the same.

    tolerance: "relaxed: rtol=0.2 atol=0.1 ratio=0.85". protocol: "warmup=10 iterations=50
    trials=3", with the clock if that is not CUDA events. command: the text that repeats the
    measurement. packages: installed packages that the solution itself imports, "flashinfer-python
    0.6.13". host: machine and GPU, of a run on several. trials_ms: times of a run of several
    trials, "0.312 0.314".
    """

    hardware: str
    versions: dict[str, str]
    timestamp: str
    source_sha1: str | None = None
    source_fingerprint: str | None = None
    revalidated: str | None = Field(
        None, validation_alias=AliasChoices("revalidated", "carried")
    )
    earlier_code: str | None = None
    tolerance: str | None = None
    protocol: str | None = None
    command: str | None = None
    packages: str | None = None
    host: str | None = None
    trials_ms: str | None = None

    def with_trials(self, milliseconds: list[float]) -> "Provenance":
        """Return a provenance with the times of trials; of a single one that is the figure
        itself.
        """
        if len(milliseconds) < 2:
            return self
        text = " ".join(f"{ms:.6g}" for ms in milliseconds)
        return self.model_copy(update={"trials_ms": text})

    @property
    def tolerance_name(self) -> str:
        return (self.tolerance or "unknown tolerance").partition(":")[0]

    @property
    def clock(self) -> str:
        """One of CLOCKS. Traces that others have recorded are by events."""
        return "gpu" if "clock=gpu" in (self.protocol or "").split() else "events"

    @property
    def versions_text(self) -> str:
        """All versions, sorted: 'torch 2.11.0+cu130; triton 3.6.0'."""
        versions = sorted(self.versions.items())
        texts = [f"{name} {version}" for name, version in versions]
        return "; ".join(texts).replace("_", " ")


def measured_here(device: str, **fields: str | None) -> Provenance:
    """Return the provenance of a figure that is measured on this machine, now.

    fields: those of Provenance that the machine does not tell, as `tolerance`.
    """
    snapshot = env_snapshot(device)
    versions = dict(snapshot.libs)
    versions["flashinfer_bench"] = fib_version()
    versions["python"] = platform.python_version()
    driver = cuda_driver()
    if driver:
        versions["cuda_driver"] = driver

    return Provenance(
        hardware=snapshot.hardware,
        versions=versions,
        timestamp=datetime.now(UTC).isoformat(timespec="seconds"),
        **fields,
    )


def cuda_driver() -> str | None:
    """Return the version of the CUDA driver, or None without one."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml.nvmlSystemGetDriverVersion()
    except Exception:  # no module, no library or no device: there is nothing to record
        return None


def fib_version() -> str:
    """Return FIB's version: that of a checkout which is imported in place of the installed one, or
    the installed one's.
    """
    installed = importlib.metadata.distribution("flashinfer-bench")
    imported_from = Path(flashinfer_bench.__file__).resolve().parents[1]
    is_beside = imported_from != installed.locate_file("").resolve()
    is_editable = bool(installed.read_text("direct_url.json"))
    if is_beside and not is_editable:
        return flashinfer_bench.__version__
    return installed.version


def of_trace(trace: Trace) -> Provenance:
    """Return the provenance of an evaluated trace, whoever has recorded it."""
    environment = trace.evaluation.environment
    libs = dict(environment.libs)
    if "carried" in libs:
        libs["revalidated"] = libs.pop("carried")  # what it was called before
    fields = {field: libs.pop(name, None) for field, name in IN_LIBS.items()}
    return Provenance(
        hardware=environment.hardware,
        versions=libs,
        timestamp=trace.evaluation.timestamp,
        **fields,
    )


def into_evaluation(evaluation: Evaluation, provenance: Provenance) -> Evaluation:
    """Return an evaluation with a provenance in its environment.libs. Hardware and timestamp stay
    as FIB has them.
    """
    libs = evaluation.environment.libs | provenance.versions
    for field, name in IN_LIBS.items():
        value = getattr(provenance, field)
        if value:
            libs[name] = value

    environment = evaluation.environment.model_copy(update={"libs": libs})
    return evaluation.model_copy(update={"environment": environment})


def host() -> str:
    """Return this machine's name, and the UUID of its current CUDA device if it has one."""
    name = socket.gethostname()
    if not torch.cuda.is_available():
        return name
    return f"{name} GPU-{torch.cuda.get_device_properties().uuid}"


@lru_cache
def packages(modules: tuple[str, ...]) -> str | None:
    """Return the installed packages that modules belong to, 'flashinfer-python 0.6.13', sorted;
    None without any. Torch and Triton are left out, as `versions` has them.
    """
    owners = importlib.metadata.packages_distributions()
    names = set()
    for module in modules:
        package, *_ = module.split(".")
        names.update(owners.get(package, []))

    texts = []
    for name in sorted(names - {"torch", "triton"}):
        texts.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join(texts) or None
