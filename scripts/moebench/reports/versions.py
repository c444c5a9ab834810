"""What the tables of a page were measured with: in one line below a table, and in full on the page
whose section PAGE links to.
"""

import re

import pandas as pd

from moebench.reports import comparison
from moebench.results.summary import SHOWN, base_of

PAGE = "/docs/compare.md#versions"  # GitHub's link from the root of the repository
TIMED = {"events": "by CUDA events", "gpu": "by the GPU's clock"}
IN_CAPTION = ("torch", "triton")


def caption(rows: pd.DataFrame) -> str:
    """Return the line below a table: the versions that matter most, protocol, dates and a link.

    rows: those of the table.
    """
    compared = rows[rows.comparable & (rows.tolerance == SHOWN)]
    if not len(compared):
        compared = rows

    protocols = " or ".join(sorted(set(compared.protocol)))
    days = compared.timestamp.str[:10]
    dates = days.min() if days.min() == days.max() else f"{days.min()} to {days.max()}"
    parts = [*main_versions(compared), protocols, dates]
    if compared.ms.notna().any():
        parts.append(comparison.ranges_text(compared))

    earlier = compared[compared.counts & compared.earlier_code.notna()]
    if len(earlier):
        names = ", ".join(sorted(earlier.solution.map(base_of).unique()))
        parts.append(f"of earlier code: {names}")
    return f"<sub>{'; '.join(parts)}; [in full]({PAGE}).</sub>"


def conditions(tolerance: str, protocol: str, clock: str) -> str:
    """Return what a terminal's table says of its times: tolerance, warm-up calls, iterations,
    trials and clock.

    tolerance: with its numbers. protocol: as traces say it, and so the clock if it is not CUDA
    events.
    """
    is_timed = "iterations=" in protocol
    if is_timed and "clock=" not in protocol:
        protocol = f"{protocol} clock={clock}"
    return f"{tolerance}; {protocol}"


def conditions_of(rows: pd.DataFrame) -> str:
    """Return the conditions of rows at one tolerance, as `conditions` does; "or" joins several."""
    shown = rows[rows.comparable] if rows.comparable.any() else rows
    columns = shown[["tolerance_text", "protocol", "clock"]].drop_duplicates()
    texts = [conditions(*values) for values in columns.values.tolist()]
    return " or ".join(sorted(set(texts)))


def main_versions(rows: pd.DataFrame) -> list[str]:
    """Return "torch 2.11.0+cu130" and the like, each version that any of these rows has."""
    texts = []
    for name in IN_CAPTION:
        versions = set()
        for text in rows.versions.unique():
            versions.update(re.findall(rf"(?:^|; ){name} ([^;]+)", text))
        if versions:
            texts.append(f"{name} {' or '.join(sorted(versions))}")
    return texts


def block(tables: dict[str, pd.DataFrame]) -> str:
    """Return a line for each table: everything that its rows say. tables: name -> its rows."""
    lines = [f"- **{name}**: {comparison.provenance(rows)}." for name, rows in tables.items()]
    return "\n".join(lines)
