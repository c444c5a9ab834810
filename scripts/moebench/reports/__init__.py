"""Everything a reader sees: tables, generated blocks of docs/, figures, the HTML page."""

from moebench.core import interpreter  # noqa: F401
