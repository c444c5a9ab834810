"""Where files lie: in a clone of the repository, or in what a wheel has installed.

A wheel carries definitions, workloads, solutions and the adapters for engines in moebench/data/.
What commands write goes to the clone, or without one to ./moebench-files.
"""

import os
from pathlib import Path

from moebench.core.errors import CannotRun

CLONE = Path(__file__).resolve().parents[3]
IN_CLONE = (CLONE / "pyproject.toml").is_file() and (
    CLONE / "scripts" / "moebench"
).is_dir()
# without a clone, another folder than ./moebench-files
FILES_VARIABLE = "MOEBENCH_FILES"

if IN_CLONE:
    ROOT = CLONE
    SHIPPED = CLONE
else:
    ROOT = Path(os.environ.get(FILES_VARIABLE, "moebench-files")).absolute()
    SHIPPED = Path(__file__).resolve().parents[1] / "data"

# Outside a clone `moebench new` copies the solutions, so that all of them lie side by side.
COPIED_SOLUTIONS = ROOT / "solutions"
HAS_COPY = (COPIED_SOLUTIONS / "common").is_dir()
SOLUTIONS = COPIED_SOLUTIONS if HAS_COPY else SHIPPED / "solutions"
INTEGRATIONS = SHIPPED / "integrations"  # adapters for inference engines, for_*.py
RECORDS = ROOT / "records"  # of which pages and figures are made, beside traces
PROFILES = RECORDS / "profile"
SERVED = RECORDS / "served"
MULTI_GPU = RECORDS / "multi_gpu.jsonl"
MXFP4_PEERS = RECORDS / "mxfp4_peers.jsonl"
REPEATS = RECORDS / "repeats.csv"
# Traces by the GPU's clock are apart from traces/, as FIB's `apply` chooses among those.
GPU_CLOCK = RECORDS / "gpu_clock"


def require_clone(command: str) -> None:
    """Raise CannotRun outside a clone, for a command that reads or changes the repository."""
    if not IN_CLONE:
        raise CannotRun(
            f"{command} needs a clone of the repository; this moebench is installed"
        )


def shipped(root: Path) -> Path:
    """Return the folder with the definitions and workloads of the data set at root."""
    return SHIPPED if root == ROOT else root


def new_solutions() -> Path:
    """Return the folder that new and packed solutions are written to."""
    return SOLUTIONS if IN_CLONE else COPIED_SOLUTIONS


def operator_folder(definition: str) -> str:
    """Return the folder of a definition's files in definitions/, workloads/ and traces/: its
    op_type, as FIB has it.
    """
    return "linear" if definition.startswith("mxfp8_linear_") else "moe"


def definition_file(name: str) -> Path:
    """Return the JSON file of one of this repository's definitions."""
    return SHIPPED / "definitions" / operator_folder(name) / f"{name}.json"


def workload_file(definition: str, root: Path = ROOT, suffix: str = "jsonl") -> Path:
    """Return the file with a definition's workloads in the data set at root.

    suffix: csv for the file with their counts, sha256 for that with checksums of their tensors.
    """
    folder = shipped(root) / "workloads" / operator_folder(definition)
    return folder / f"{definition}.{suffix}"


def blob_file(definition: str, uuid: str) -> str:
    """Return the file with a workload's tensors, relative to the root, as FIB wants it."""
    folder = operator_folder(definition)
    return f"blob/workloads/{folder}/{definition}/{definition}_{uuid}.safetensors"


def author_folder(author: str, definition: str) -> str:
    """Return an author's folder for a definition, below a FIB data set's solutions/ and traces/."""
    return f"{author}/{operator_folder(definition)}/{definition}"


def trace_file(definition: str, clock: str = "events") -> Path:
    """Return the file with a definition's traces by a clock, one of provenance.CLOCKS."""
    if clock == "events":
        return ROOT / "traces" / operator_folder(definition) / f"{definition}.jsonl"
    return GPU_CLOCK / f"{definition}.jsonl"


def files_below(path: Path, part: str, pattern: str) -> list[Path]:
    """Return the files that a user means by a path, sorted: that file, or the files below a folder
    that fit the pattern, in a data set those below its folder `part`.
    """
    if path.is_file():
        return [path]
    is_data_set = (path / "definitions").is_dir()
    folder = path / part if is_data_set else path
    return sorted(folder.rglob(pattern))
