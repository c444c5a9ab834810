"""Stand-ins for an engine's modules, for programs of integrations/ that import it."""

import sys
from types import ModuleType


def stand_in(monkeypatch, dotted, **attributes):
    """Have a module with these attributes be imported by this name, with packages around it."""
    parts = dotted.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    vars(sys.modules[dotted]).update(attributes)
