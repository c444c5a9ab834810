"""Find the stage of the layer that a kernel belongs to, by the table [stages] of a manifest:

    [stages]
    "route_*" = "route"

torch_profiler.py and ncu.py call `plain_name` for the name that a profiler gives to a kernel, and
match that with the patterns by `stage_of`.
"""

import fnmatch
import re

UNASSIGNED = "unassigned"
ANONYMOUS_NAMESPACES = ("(anonymous namespace)::", "<unnamed>::")
DRIVERS_OWN = ("Memset ", "Memcpy ")  # as in "Memset (Device)"


def stage_of(kernel: str, table: dict[str, str]) -> str | None:
    """Return the stage of a kernel, or None where no pattern fits.

    kernel: a plain name. table: [stages]. A key that equals the name goes before patterns with * or
    ?, of which the first that fits counts.
    """
    if kernel in table:
        return table[kernel]
    for pattern, stage in table.items():
        if fnmatch.fnmatchcase(kernel, pattern):
            return stage
    return None


def plain_name(kernel: str) -> str:
    """Return a kernel's name without return type, namespaces, template and call arguments: "route"
    for "void moe::(anonymous namespace)::route<8>(int*)".

    Copies and fills by the driver keep their names, "Memset (Device)".
    """
    for namespace in ANONYMOUS_NAMESPACES:
        kernel = kernel.replace(namespace, "")
    if kernel.startswith(DRIVERS_OWN):
        return kernel

    before_arguments = re.split("(?<=.)[<(]", kernel, maxsplit=1)[0]
    qualified_name = before_arguments.split()[-1]  # behind the return type
    return qualified_name.rsplit("::", 1)[-1]
