"""Names that a user types: the message for one that does not exist, and, for `new` and `pack`,
whether installed packages already have a name.
"""

import difflib
import importlib.metadata
import re
import sys
from collections.abc import Iterable

# Modules of Python that sys.stdlib_module_names lacks: tests, what it imports when it starts, and
# what installs packages
PYTHONS_OWN = (
    "test",
    "sitecustomize",
    "usercustomize",
    "pip",
    "setuptools",
    "pkg_resources",
    "distutils",
    "wheel",
)


def unknown(
    what: str, name: str, existing: Iterable[str], listed: str | None = None
) -> str:
    """Return "unknown layer 'smal'; did you mean small?", or if no existing name is like it,
    "unknown layer 'x'; there are: ..." with all of them.

    what: the kind of thing, "layer". listed: a text in place of all the existing names.
    """
    names = list(existing)
    close = difflib.get_close_matches(name.lower(), names, n=1)
    if close:
        return f"unknown {what} {name!r}; did you mean {close[0]}?"

    if listed is None:
        listed = ", ".join(names) or "none"
    return f"unknown {what} {name!r}; there are: {listed}"


def normalised(name: str) -> str:
    """Return the name of a distribution as pip compares it: tvm-ffi for TVM_FFI."""
    return re.sub("[-_.]+", "-", name).lower()


def is_pythons_own(name: str) -> bool:
    """Whether a module of this name is the standard library's or a part of installing packages."""
    lower = name.lower()  # file systems that ignore case have one folder for both
    return lower in PYTHONS_OWN or lower in map(str.lower, sys.stdlib_module_names)


def installed_as(name: str) -> list[str]:
    """Return the installed distributions that have this name, or that have a module of it."""
    wanted = normalised(name)
    owners_of_modules = importlib.metadata.packages_distributions()
    distributions = set()
    for module, owners in owners_of_modules.items():
        if normalised(module) == wanted:
            distributions.update(owners)

    for distribution in importlib.metadata.distributions():
        installed = distribution.metadata["Name"] or ""
        if normalised(installed) == wanted:
            distributions.add(installed)
    return sorted(distributions)
