"""`moebench compare`: one screen, what a change did, and files of the whole table."""

import json
from types import SimpleNamespace

import pandas as pd
import pytest
from moebench import cli
from moebench.core import paths
from moebench.reports import comparison, docs
from moebench.reports.table import as_cell
from moebench.results import against, measurements
from recorded import DEFAULT, NAME, trace, trace_set, write

KIMI = next(
    (paths.ROOT / "traces").glob("moe/*_ng1_kg1_e48_h7168_*")
)  # one file, as all take seconds


@pytest.fixture
def compare(capsys):
    """`moebench compare`: exit status, stdout, stderr."""
    return lambda *given: (cli.main(["compare", *map(str, given)]), *capsys.readouterr())


def row_of(out, first):
    """The cells of the row that begins with this cell, in a terminal's table."""
    line = next(
        line
        for line in out.splitlines()
        if line.startswith("│ ") and line.split("│")[1].strip() == first
    )
    return [cell.strip() for cell in line.split("│")[1:-1]]


def traces():
    of_fast = [trace("fast", t, ms) for t, ms in ((1, 0.5), (57, 2.0), (14107, 9.0))]
    return [*of_fast, trace("slow", 57, 1.0), trace("slow", 57, 1.0, tolerance=DEFAULT)]


def test_one_row_a_solution_with_three_times_and_the_passes(compare, tmp_path):
    status, out, _ = compare("--traces", trace_set(tmp_path, traces()))
    assert status == 0
    assert all(name in out for name in ("ratio", "T=1 ", "T=57", "T=14107", "score", "contest"))
    assert row_of(out, "fast") == [
        "fast",
        "-",
        "0.500",
        "2.000",
        "9.000",
        "-",
        "not run",
        "3/19",
        "not run",
        "-",
    ]
    assert row_of(out, "slow") == [
        "slow",
        "-",
        "-",
        "1.000",
        "-",
        "-",
        "1/19",
        "1/19",
        "not run",
        "-",
    ]


@pytest.mark.parametrize(
    ("fact", "shown"),
    [
        ("every T", "yes"),
        ("no: by the others' experts", "no"),
        ("257-, from sm_90 on", "from 257"),
        ("1-3072; above, with few rows", "1 to 3072"),
        ("1-4, 5-1536, 1537-", "within 3 ranges"),
        (None, "-"),
    ],
)
def test_in_which_batches_a_token_keeps_its_bits(monkeypatch, fact, shown):
    facts = SimpleNamespace(facts={"batch_invariant": fact} if fact else {})
    monkeypatch.setattr(comparison, "read_manifest", lambda name: facts)
    monkeypatch.setattr(comparison, "solution_names", lambda: ["mine"])
    assert as_cell(comparison.batch_invariant("mine")).text == shown


def test_this_repository_fits_on_one_screen_and_names_the_other_definitions(compare):
    status, out, _ = compare()
    assert status == 0 and len(out.splitlines()) <= 40
    assert "kimi-k2-ep8" in out.splitlines()[-1] and "qwen3-next" in out.splitlines()[-1]


def test_every_workload_of_a_definition_by_its_key(compare):
    status, out, _ = compare("--traces", KIMI, "--definition", "kimi-k2-ep8", "--workloads")
    assert status == 0 and [row_of(out, t)[0] for t in ("1", "64", "8192")] == ["1", "64", "8192"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("--definition", "small"), "small"),  # known, though nothing is recorded of it
        (("--definition", "nonsense"), "nonsense"),
        (("--solutions", "hoper_fused"), "hopper_fused"),
        (("--clock", "gpu", "--definition", "kimi-k2-ep8"), "kimi-k2-ep8"),
    ],
)
def test_what_is_not_there_is_named_in_one_line(compare, given, named):
    status, out, err = compare(*given, *(() if "--clock" in given else ("--traces", KIMI)))
    assert (status, out, len(err.splitlines())) == (2, "", 1) and named in err


def test_csv_and_json_hold_every_row(compare, tmp_path):
    root = trace_set(tmp_path / "set", traces())
    status, *_ = compare(
        "--traces", root, "--csv", tmp_path / "t.csv", "--json", tmp_path / "t.json"
    )
    assert status == 0
    rows = pd.read_csv(tmp_path / "t.csv")
    assert len(rows) == 5 and sorted(rows.ms) == [0.5, 1.0, 1.0, 2.0, 9.0]
    assert [row["solution"] for row in json.loads((tmp_path / "t.json").read_text())].count(
        "slow"
    ) == 2
    assert compare("--traces", root, "--tolerance", "default", "--csv", tmp_path / "t.csv")[0] == 0
    assert list(pd.read_csv(tmp_path / "t.csv").solution) == ["slow"]


def sides(tmp_path, before, after):
    return write(tmp_path / "before.jsonl", before), write(tmp_path / "after.jsonl", after)


def marks(tmp_path, before, after):
    found, _ = against.compare(*([file] for file in sides(tmp_path, before, after)))
    return list(found[found.side == "both"].mark)


@pytest.mark.parametrize(
    ("ms", "mark"), [(0.5, ""), (1.049, ""), (1.051, "slower"), (3.0, "slower")]
)
def test_more_than_five_percent_slower_is_marked(tmp_path, ms, mark):
    assert marks(tmp_path, [trace("a", 1, 1.0)], [trace("a", 1, ms)]) == [mark]


def test_a_failure_is_marked_when_it_is_new(tmp_path):
    good, bad = trace("a", 1), trace("a", 1, status="RUNTIME_ERROR")
    assert marks(tmp_path, [good], [bad]) == ["failing"]
    assert marks(tmp_path, [bad], [bad]) == marks(tmp_path, [bad], [good]) == [""]


def test_the_fastest_of_several_is_the_time_and_one_failure_is_one(tmp_path):
    several = [trace("a", 1, 1.2), trace("a", 1, 1.0)]
    assert marks(tmp_path, several, [trace("a", 1, 1.04)]) == [""]
    assert marks(tmp_path, several, [*several, trace("a", 1, status="TIMEOUT")]) == ["failing"]


def test_only_the_newest_source_of_a_side_counts(tmp_path):
    before = [
        trace("a", 1, 0.1, sha1="old", day="2026-01-01"),
        trace("a", 1, 1.0, sha1="new", day="2026-01-02"),
    ]
    assert marks(tmp_path, before, [trace("a", 1, 1.01)]) == [""]


def test_a_change_names_its_definition_where_there_are_several(tmp_path):
    for others, shown in (([], False), ([trace("a", 1, 2.0, definition=KIMI.stem)], True)):
        found, _ = against.compare(
            *([file] for file in sides(tmp_path, *[[trace("a", 1), *others]] * 2))
        )
        assert [NAME in row[1] for row in comparison.changes(found).sections[0]].count(
            True
        ) == shown


def test_the_exit_status_is_that_of_a_gate(compare, tmp_path):
    before, after = sides(tmp_path, [trace("a", 1, 1.0)], [trace("a", 1, 2.0)])
    status, out, _ = compare("--traces", after, "--against", before)
    assert status == 1 and "| a |" in out and "+100.0%" in out
    assert compare("--traces", before, "--against", before)[0] == 0
    other = write(tmp_path / "other.jsonl", [trace("a", 1, 1.0, hardware="another")])
    assert compare("--traces", after, "--against", other)[0] == 1  # nothing could be compared


def test_several_gpus_have_a_table_each(tmp_path):
    found, _ = measurements.load(
        [trace_set(tmp_path, [*traces(), trace("fast", 1, hardware="NVIDIA H100")])]
    )
    assert comparison.gpus(found) == ["NVIDIA H200", "NVIDIA H100"]


PAGE = "# A\n\n<!-- generated: t -->\n{}\n<!-- end of t -->\n\nend\n"


def written(root, content):
    (root / "docs").mkdir(exist_ok=True)
    (root / "README.md").write_text("# R\n")
    (root / "docs/a.md").write_text(PAGE.format(content))
    return {("docs/a.md", "t"): lambda: "| x |\n| --- |\n| 1 |"}


def test_a_table_is_written_between_its_markers_and_found_out_of_date(tmp_path):
    tables = written(tmp_path, "old")
    assert len(docs.update(True, tables, {}, tmp_path)) == 1
    assert docs.update(False, tables, {}, tmp_path) == []
    text = (tmp_path / "docs/a.md").read_text()
    assert (
        text == PAGE.format("\n| x |\n| --- |\n| 1 |\n")
        and docs.update(True, tables, {}, tmp_path) == []
    )


@pytest.mark.parametrize(
    "text", ["<!-- generated: u -->\n<!-- end of u -->\n", "<!-- generated: t -->\n", ""]
)
def test_a_marker_that_nothing_fills_and_a_table_without_place_are_problems(tmp_path, text):
    tables = written(tmp_path, "old")
    (tmp_path / "docs/a.md").write_text(text)
    assert docs.update(True, tables, {}, tmp_path)


def test_a_figure_changes_with_what_it_shows_and_strays_are_named(tmp_path):
    from matplotlib.figure import Figure

    def drawn(y):
        def make():
            figure = Figure()
            figure.subplots().plot([0, 1], [0, y])
            return figure

        return {"f.svg": make}

    tables = written(tmp_path, "old")
    assert docs.update(False, tables, drawn(1), tmp_path) == []
    assert docs.update(True, tables, drawn(1), tmp_path) == []
    assert len(docs.update(True, tables, drawn(2), tmp_path)) == 1
    (tmp_path / "docs/stray.svg").write_text("<svg/>")
    assert "stray.svg" in docs.update(True, tables, drawn(1), tmp_path)[0]
