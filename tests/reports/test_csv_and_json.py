"""CSV and JSON of all measurements, which hold what others have named."""

import csv
import io
import json

import pandas as pd
import pytest
from moebench.reports import csv_and_json


def rows_with(solution):
    return pd.DataFrame(
        {"solution": [solution], "ms": [-1.5], "passed": [True], "log": ["printed"]}
    )


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("hopper_fused", "hopper_fused"),
        ('=HYPERLINK("http://x","y")', '\'=HYPERLINK("http://x","y")'),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("a\nb,c", r"a\nb,c"),
        ("\t=1", r"\t=1"),
    ],
)
def test_csv_holds_no_formula_and_no_control_character(name, written):
    text = csv_and_json.csv_text(rows_with(name))
    (row,) = csv.DictReader(io.StringIO(text))
    assert row == {"solution": written, "ms": "-1.5", "passed": "True"}


def test_json_holds_every_name_as_it_is_without_control_characters():
    name = "=a\x1b[2J\nb"
    text = csv_and_json.json_text(rows_with(name))
    assert "\x1b" not in text
    assert json.loads(text) == [
        {"solution": name, "ms": -1.5, "passed": True, "log": "printed"}
    ]
