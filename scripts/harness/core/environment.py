"""On what a figure was taken: the hardware, and the versions that it depends on."""

import importlib.metadata
import platform

from flashinfer_bench.utils import env_snapshot

from harness.core.provenance import cuda_driver


def environment(device: str) -> tuple[str, dict[str, str]]:
    """Name of the hardware, and versions of what the figures depend on."""
    snapshot = env_snapshot(device)
    libs = snapshot.libs | {
        "flashinfer_bench": importlib.metadata.version("flashinfer-bench"),
        "python": platform.python_version(),
    }
    if driver := cuda_driver():
        libs["cuda_driver"] = driver
    return snapshot.hardware, libs
