"""What a table was measured with, in words: `caption` in one line below a table of a page, as

    torch 2.11.0+cu130; triton 3.6.0; warmup=10 trials=3; 2026-11-26; medians of 3 runs

`in_full` with every version and each solution's packages, in the section that PAGE links to, and
`conditions` above a table in a terminal or on the page of html.py.
"""

from collections.abc import Iterable

import pandas as pd

from moebench.results.spread import (
    ASSUMED,
    NOT_KNOWN,
    OTHER_CELLS,
    SEVERAL_RUNS,
    TRIALS,
)
from moebench.results.summary import SHOWN_TOLERANCE, base_of

PAGE = "/docs/compare.md#versions"  # GitHub's link from the root of the repository
TIMED = {"events": "by CUDA events", "gpu": "by the GPU's clock"}
IN_CAPTION = ("torch", "triton")

# range_from of a cell that was run once (results/spread.py) -> what is said of it
SINGLE_RUNS = {
    OTHER_CELLS: "a single run: the widest range of the solution at the nearest T with more",
    TRIALS: "one run: the range of its trials",
    NOT_KNOWN: f"one run, whose range is taken to be {ASSUMED - 1:.0%}",
}


def caption(rows: pd.DataFrame) -> str:
    """Return the line below a table: the versions that matter most, protocol, dates and a link.

    rows: those of the table.
    """
    compared = compared_rows(rows)
    parts = []
    for name in IN_CAPTION:
        pattern = rf"(?:^|; ){name} ([^;]+)"
        versions = compared.versions.str.extract(pattern, expand=False).dropna()
        if len(versions):
            parts.append(f"{name} {joined(versions)}")
    parts += circumstances(compared)

    earlier = compared[compared.counts & compared.earlier_code.notna()]
    if len(earlier):
        names = earlier.solution.map(base_of)
        parts.append(f"of earlier code: {joined(names, ', ')}")
    return f"<sub>{'; '.join(parts)}; [in full]({PAGE}).</sub>"


def in_full(rows: pd.DataFrame) -> str:
    """Return versions, protocol, dates, runs and solutions' packages of a table's rows."""
    compared = compared_rows(rows)
    parts = [joined(compared.versions), *circumstances(compared)]

    for packages, names in solutions_by_value(compared, "packages").items():
        parts.append(f"{names} with {packages}")
    counted = compared[compared.counts]
    for reason, names in solutions_by_value(counted, "earlier_code").items():
        parts.append(f"{names}: of earlier code: {reason}")
    return "; ".join(parts)


def block(tables: dict[str, pd.DataFrame]) -> str:
    """Return a line of Markdown for each table, by `in_full`. tables: name -> the table's rows."""
    lines = []
    for name, rows in tables.items():
        lines.append(f"- **{name}**: {in_full(rows)}.")
    return "\n".join(lines)


def compared_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that are compared with each other, all where none is."""
    is_at_tolerance = rows.tolerance == SHOWN_TOLERANCE
    compared = rows[rows.comparable & is_at_tolerance]
    return compared if len(compared) else rows


def circumstances(rows: pd.DataFrame) -> list[str]:
    """Return protocols, dates, and how many runs the rows' times are of."""
    days = rows.timestamp.str[:10]
    dates = span(days.min(), days.max())
    parts = [joined(rows.protocol), dates]
    if rows.ms.notna().any():
        parts.append(ranges_text(rows))
    return parts


def ranges_text(rows: pd.DataFrame) -> str:
    """Return how many runs the times are medians of, and what their ranges were taken from:
    "medians of 3 to 5 runs, ±: half of their range, one run: the range of its trials".
    """
    timed = rows[rows.ms.notna()]
    runs = timed.runs[timed.range_from == SEVERAL_RUNS]
    parts = []
    if len(runs):
        counts = span(runs.min(), runs.max())
        parts.append(f"medians of {counts} runs, ±: half of their range")

    origins = set(timed.range_from)
    for origin, text in SINGLE_RUNS.items():
        if origin in origins:
            parts.append(text)
    return ", ".join(parts)


def span(first: object, last: object) -> str:
    """Return "3 to 5", or "3" where both are the same."""
    return f"{first}" if first == last else f"{first} to {last}"


def joined(texts: Iterable[str], separator: str = " or ") -> str:
    """Return the texts, each once, sorted and joined."""
    return separator.join(sorted(set(texts)))


def solutions_by_value(rows: pd.DataFrame, column: str) -> dict[str, str]:
    """Return value of a column -> the solutions in whose rows it stands, "a, b"."""
    names = {}
    for value, of_value in rows.groupby(column):
        names[value] = ", ".join(sorted(of_value.solution.unique()))
    return names


def conditions(tolerance: str, protocol: str, clock: str) -> str:
    """Return what stands above a table of times: tolerance, warm-up calls, iterations, trials and
    clock.

    tolerance: with its numbers. protocol: as in traces, which name a clock other than events there.
    """
    is_timed = "iterations=" in protocol
    if is_timed and "clock=" not in protocol:
        protocol = f"{protocol} clock={clock}"
    return f"{tolerance}; {protocol}"


def conditions_of(rows: pd.DataFrame) -> str:
    """Return `conditions` of rows at one tolerance; where they differ, joined by "or"."""
    shown = rows[rows.comparable] if rows.comparable.any() else rows
    columns = shown[["tolerance_text", "protocol", "clock"]].drop_duplicates()
    texts = [conditions(*values) for values in columns.values.tolist()]
    return joined(texts)
