"""From a solution's folder to FIB Solutions: manifest, packing, stages, what can run here."""

from moebench.core import interpreter  # noqa: F401
