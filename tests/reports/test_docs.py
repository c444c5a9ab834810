"""The generated blocks and figures of pages: written, and found out of date."""

import pandas as pd
import pytest
from matplotlib.figure import Figure
from moebench.operators.workloads import recorded_counts
from moebench.reports.docs import generated, pages

PAGE = "# A\n\n<!-- generated: t -->\n{}\n<!-- end of t -->\n\nend\n"
TABLE = "| x |\n| --- |\n| 1 |"


def table():
    return TABLE


TABLES = {("docs/a.md", "t"): table}


@pytest.fixture
def root(tmp_path):
    """A repository with a README and one page, whose table is old."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# R\n")
    (tmp_path / "docs/a.md").write_text(PAGE.format("old"))
    return tmp_path


def figure_of(y, colour="red"):
    def make():
        figure = Figure()
        figure.subplots().plot([0, 1], [0, y], color=colour)
        return figure

    return {"f.svg": make}


def test_a_table_is_written_between_its_markers(root):
    assert generated.update(False, TABLES, {}, root) == []
    assert (root / "docs/a.md").read_text() == PAGE.format(f"\n{TABLE}\n")
    assert generated.update(True, TABLES, {}, root) == []


def test_a_check_finds_an_old_table_and_writes_nothing(root):
    assert len(generated.update(True, TABLES, {}, root)) == 1
    assert (root / "docs/a.md").read_text() == PAGE.format("old")


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("<!-- generated: u -->\n<!-- end of u -->\n", 2),
        ("<!-- generated: t -->\n", 1),
        ("", 1),
    ],
)
def test_a_marker_that_nothing_fills_and_a_table_without_place_are_problems(
    root, text, problems
):
    (root / "docs/a.md").write_text(text)
    assert len(generated.update(True, TABLES, {}, root)) == problems


@pytest.mark.parametrize("changed", [figure_of(2), figure_of(1, "blue")])
def test_a_figure_is_out_of_date_when_it_shows_something_else(root, changed):
    assert generated.update(False, TABLES, figure_of(1), root) == []
    assert generated.update(True, TABLES, figure_of(1), root) == []
    assert len(generated.update(True, TABLES, changed, root)) == 1


def test_a_figure_that_nothing_makes_is_named(root):
    generated.update(False, TABLES, {}, root)
    (root / "docs/stray.svg").write_text("<svg/>")
    (problem,) = generated.update(True, TABLES, {}, root)
    assert problem.startswith("docs/stray.svg: ")


def test_no_page_shows_a_bound_that_only_a_file_of_this_clone_gives():
    """`moebench run --tokens` leaves the routing of its workloads in blob/, which git ignores."""
    recorded_uuid, *_ = recorded_counts("full")
    columns = ("bound_ms", "bytes", "flops", "over_bound")
    rows = pd.DataFrame({"geometry": "full", "uuid": [recorded_uuid, "made up"]})
    rows = pages.without_local_bounds(rows.assign(**dict.fromkeys(columns, 1.0)))
    for column in columns:
        assert rows[column].notna().tolist() == [True, False]
