"""From a solution's folder to FIB Solutions: manifest, packing, stages, what can run here."""

from harness.core import interpreter  # noqa: F401
