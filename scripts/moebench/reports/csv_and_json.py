"""All measurements as files for other programs: `moebench compare --csv` and --json.

Names and texts of other projects are made harmless in CSV: a spreadsheet would compute a text that
begins like a formula, and a terminal would obey control characters in a file that it shows.
"""

import pandas as pd

from moebench.reports.table import one_line

FORMULA = ("=", "+", "-", "@")


def csv_text(rows: pd.DataFrame) -> str:
    """Return the rows of `measurements.load` as CSV, without the solutions' logs."""
    shown = rows.drop(columns="log")
    for name in shown.select_dtypes(["object", "string"]):
        shown[name] = shown[name].map(harmless)
    return shown.to_csv(index=False)


def harmless(value: object) -> object:
    """Return a text as one line, with an apostrophe before it where it begins like a formula; any
    other value as it is.
    """
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text.startswith(FORMULA) else text


def json_text(rows: pd.DataFrame) -> str:
    """Return the rows of `measurements.load` as JSON: a list with an object for each row."""
    return rows.to_json(orient="records", indent=1)
