"""Which stage a kernel belongs to, by a manifest's [stages] table: pattern of the kernel's plain
name -> stage.
"""

import fnmatch

UNASSIGNED = "unassigned"


def stage_of(kernel: str, table: dict[str, str]) -> str | None:
    """The stage of a kernel's plain name: an equal key, else the first pattern (*, ?) that fits;
    None without one.
    """
    if kernel in table:
        return table[kernel]
    return next(
        (stage for pattern, stage in table.items() if fnmatch.fnmatchcase(kernel, pattern)), None
    )


def plain_name(kernel: str) -> str:
    """A kernel's name without return type, namespaces, template and call arguments; copies and
    fills keep theirs.
    """
    for anonymous in ("(anonymous namespace)::", "<unnamed>::"):
        kernel = kernel.replace(anonymous, "")
    if kernel.startswith(("Memset ", "Memcpy ")):  # the driver's: "Memset (Device)"
        return kernel
    end = min((at for at in (kernel.find("<"), kernel.find("(")) if at > 0), default=len(kernel))
    return kernel[:end].split()[-1].rsplit("::", 1)[-1]
