"""Where things lie in the repository."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOLUTIONS = ROOT / "solutions"
# adapters for inference engines, for_*.py, which packages carry
INTEGRATIONS = ROOT / "integrations"
RECORDS = ROOT / "records"  # what pages and figures are made from, beside traces
PROFILES = RECORDS / "profile"
SERVED = RECORDS / "served"
GPU_CLOCK = (
    RECORDS / "gpu_clock"
)  # traces by the GPU's clock, apart from traces/, among which FIB's apply chooses


def folder_of(definition: str) -> str:
    """Folder that a definition's files lie in, below definitions/, workloads/, traces/: its
    op_type, as FIB has it.
    """
    return "linear" if definition.startswith("mxfp8_linear_") else "moe"


def definition_file(name: str) -> Path:
    return ROOT / "definitions" / folder_of(name) / f"{name}.json"


def workload_file(definition: str, root: Path = ROOT, suffix: str = "jsonl") -> Path:
    """suffix: csv for their counts; sha256 for the blobs' checksums, which `sha256sum -c` reads at
    the root.
    """
    return root / "workloads" / folder_of(definition) / f"{definition}.{suffix}"


def blob_file(definition: str, uuid: str) -> str:
    """Relative to the root, as FIB's workloads want it."""
    return f"blob/workloads/{folder_of(definition)}/{definition}/{definition}_{uuid}.safetensors"


def of_author(author: str, definition: str) -> str:
    """Where an author's solutions of a definition are below solutions/ of a FIB data set, and
    traces below traces/.
    """
    return f"{author}/{folder_of(definition)}/{definition}"


def trace_file(definition: str, clock: str = "events") -> Path:
    """clock: of the traces in it, one of provenance.CLOCKS."""
    folder = ROOT / "traces" / folder_of(definition) if clock == "events" else GPU_CLOCK
    return folder / f"{definition}.jsonl"


def files_below(path: Path, part: str, pattern: str) -> list[Path]:
    """The file itself; of a data set those below its folder `part`, of another folder all below it;
    sorted.
    """
    folder = path / part if (path / "definitions").is_dir() else path
    return [path] if path.is_file() else sorted(folder.rglob(pattern))
