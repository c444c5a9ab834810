"""Which stage a kernel belongs to: the [stages] table of solution.toml, kernel name pattern -> stage."""

import fnmatch
from pathlib import Path

from harness.core import paths
from harness.packing.manifest import MANIFEST, PackingError, read_manifest

UNASSIGNED = "unassigned"


def stage_table(name: str, folder: Path = paths.SOLUTIONS) -> dict[str, str]:
    """Pattern -> stage of a solution, its base's where it has a base and no table of its own; in the file's order.

    {} for a solution without a table. Raises PackingError for a malformed one.
    """
    table = read_manifest(name, folder).get("stages", {})
    if not isinstance(table, dict):
        raise PackingError(f"{name}: {MANIFEST}: [stages]: got {table!r}, want 'kernel name' = 'stage'")
    for pattern, stage in table.items():
        if not isinstance(stage, str) or not stage.strip() or stage == UNASSIGNED:
            raise PackingError(f"{name}: {MANIFEST}: [stages] {pattern}: got {stage!r}, want a stage's name in quotes")
    return table


def stage_of(kernel: str, table: dict[str, str]) -> str | None:
    """The stage of a kernel's plain name: an equal key, else the first pattern (*, ?) that fits; None without one."""
    if kernel in table:
        return table[kernel]
    return next((stage for pattern, stage in table.items() if fnmatch.fnmatchcase(kernel, pattern)), None)


def plain_name(kernel: str) -> str:
    """A kernel's name without return type, namespaces, template and call arguments; copies and fills keep theirs."""
    for anonymous in ("(anonymous namespace)::", "<unnamed>::"):
        kernel = kernel.replace(anonymous, "")
    if kernel.startswith(("Memset ", "Memcpy ")):  # the driver's: "Memset (Device)"
        return kernel
    end = min((at for at in (kernel.find("<"), kernel.find("(")) if at > 0), default=len(kernel))
    return kernel[:end].split()[-1].rsplit("::", 1)[-1]
