"""Which stage a kernel belongs to, by a manifest's [stages] table: pattern of the kernel's plain
name -> stage.
"""

import fnmatch

UNASSIGNED = "unassigned"
ANONYMOUS_NAMESPACES = ("(anonymous namespace)::", "<unnamed>::")
DRIVERS_OWN = ("Memset ", "Memcpy ")  # as in "Memset (Device)"


def stage_of(kernel: str, table: dict[str, str]) -> str | None:
    """Return the stage of a kernel's plain name: that of an equal key, else of the first pattern
    (*, ?) that fits; None without one.
    """
    if kernel in table:
        return table[kernel]
    for pattern, stage in table.items():
        if fnmatch.fnmatchcase(kernel, pattern):
            return stage
    return None


def plain_name(kernel: str) -> str:
    """Return a kernel's name without return type, namespaces, template and call arguments. Copies
    and fills keep theirs.
    """
    for namespace in ANONYMOUS_NAMESPACES:
        kernel = kernel.replace(namespace, "")
    if kernel.startswith(DRIVERS_OWN):
        return kernel

    ends = [kernel.find(bracket) for bracket in "<("]
    end = min((position for position in ends if position > 0), default=len(kernel))
    return kernel[:end].split()[-1].rsplit("::", 1)[-1]
