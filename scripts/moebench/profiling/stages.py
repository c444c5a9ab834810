"""Find the stage of the layer that a kernel belongs to, by the table [stages] of a manifest:

    [stages]
    "route_*" = "route"

The pattern is matched with a kernel's plain name, which `plain_name` makes of a profiler's name.
"""

import fnmatch

UNASSIGNED = "unassigned"
ANONYMOUS_NAMESPACES = ("(anonymous namespace)::", "<unnamed>::")
DRIVERS_OWN = ("Memset ", "Memcpy ")  # as in "Memset (Device)"


def stage_of(kernel: str, table: dict[str, str]) -> str | None:
    """Return the stage of a kernel, or None where no pattern fits.

    kernel: its plain name. table: [stages]; a key that equals the name counts before the first
    pattern (*, ?) that fits.
    """
    if kernel in table:
        return table[kernel]
    for pattern, stage in table.items():
        if fnmatch.fnmatchcase(kernel, pattern):
            return stage
    return None


def plain_name(kernel: str) -> str:
    """Return a kernel's name without return type, namespaces, template and call arguments: "route"
    of "void moe::(anonymous namespace)::route<8>(int*)".

    The driver's own copies and fills keep their names, "Memset (Device)".
    """
    for namespace in ANONYMOUS_NAMESPACES:
        kernel = kernel.replace(namespace, "")
    if kernel.startswith(DRIVERS_OWN):
        return kernel

    brackets = [kernel.find(bracket) for bracket in "<("]
    end = min((position for position in brackets if position > 0), default=len(kernel))
    qualified_name = kernel[:end].split()[-1]  # behind the return type
    return qualified_name.rsplit("::", 1)[-1]
