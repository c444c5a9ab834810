"""`moebench compare`: one screen, what a change did, and files of the whole table.

Most tests give the command traces with figures of their own, and read what it prints.
"""

from types import SimpleNamespace

import pandas as pd
import pytest
from moebench import cli
from moebench.core import paths
from moebench.reports import comparison
from moebench.reports.changes import changes_table
from moebench.results import against, measurements
from recorded import DEFAULT, NAME, trace, trace_set, write
from terminal import row_of, rows_of, shown

# One file, as all take seconds.
KIMI = next((paths.ROOT / "traces").glob("moe/*_ng1_kg1_e48_h7168_*"))


@pytest.fixture
def compare(capsys):
    """`moebench compare`: returns exit status, stdout and stderr."""

    def run(*args):
        status = cli.main(["compare", *map(str, args)])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def data_set(tmp_path):
    """A data set with traces of fast at three T, and of slow at one."""
    traces = [
        trace("fast", 1, 0.5),
        trace("fast", 57, 2.0),
        trace("fast", 14107, 9.0),
        trace("slow", 57, 1.0),
        trace("slow", 57, 1.0, tolerance=DEFAULT),
    ]
    return trace_set(tmp_path / "set", traces)


def test_one_row_a_solution_with_three_times_and_the_passes(compare, data_set):
    status, out, _ = compare("--traces", data_set)
    assert status == 0
    for heading in ("ratio", "T=1 ", "T=57", "T=14107", "score", "contest"):
        assert heading in out

    lines = out.splitlines()
    times = ["-", "0.500", "2.000", "9.000", "-"]
    assert row_of(lines, "fast") == ["fast", *times, "not run", "3/19", "not run", "-"]
    times = ["-", "-", "1.000", "-", "-"]
    assert row_of(lines, "slow") == ["slow", *times, "1/19", "1/19", "not run", "-"]


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        ("every T", "yes"),
        ("no: by the others' experts", "no"),
        ("257-, from sm_90 on", "from 257"),
        ("1-3072; above, with few rows", "1 to 3072"),
        ("1-4, 5-1536, 1537-", "within 3 ranges"),
        (None, None),
    ],
)
def test_in_which_batches_a_token_keeps_its_bits(monkeypatch, fact, text):
    manifest = SimpleNamespace(facts={"batch_invariant": fact} if fact else {})
    monkeypatch.setattr(comparison, "read_manifest", lambda name: manifest)
    monkeypatch.setattr(comparison, "solution_names", lambda: ["mine"])
    assert comparison.batch_invariant("mine") == text


def test_this_repository_fits_on_one_screen_and_names_the_other_definitions(compare):
    status, out, _ = compare()
    lines = out.splitlines()
    assert status == 0
    assert len(lines) <= 40
    assert "kimi-k2-ep8" in lines[-1]
    assert "qwen3-next" in lines[-1]


def test_every_workload_of_a_definition_by_its_key(compare):
    status, out, _ = compare(
        "--traces", KIMI, "--definition", "kimi-k2-ep8", "--workloads"
    )
    assert status == 0
    tokens = [int(row[0]) for row in rows_of(out.splitlines())]
    assert tokens == sorted(tokens)
    assert {1, 64, 8192} <= set(tokens)


@pytest.fixture
def one_and_many(tmp_path):
    """A file with traces of fast at one token and at many."""
    traces = [trace("fast", 1, 0.5), trace("fast", 14107, 9.0)]
    return write(tmp_path / "t.jsonl", traces)


def test_rates_are_the_bounds_flops_and_bytes_over_the_time(compare, one_and_many):
    status, out, _ = compare("--traces", one_and_many, "--rates")
    assert status == 0

    rows, _ = measurements.load([one_and_many])
    shown_rows = rows_of(out.splitlines())
    for row, (tokens, rates) in zip(rows.itertuples(), shown_rows, strict=True):
        flops, _, num_bytes = rates.partition(" / ")
        picoseconds = row.ms * 1e9
        assert tokens == str(row.tokens)
        tera_flops = row.flops / picoseconds
        assert float(flops) == pytest.approx(tera_flops, rel=0.05, abs=0.06)
        assert float(num_bytes) == pytest.approx(row.bytes / picoseconds, abs=0.006)


@pytest.mark.parametrize("options", [(), ("--workloads",), ("--rates",)])
def test_a_terminal_table_names_its_tolerance_protocol_and_clock(
    compare, tmp_path, options
):
    traces = [trace("fast", 1, protocol="warmup=10 iterations=50 trials=3")]
    _, out, _ = compare("--traces", trace_set(tmp_path / "set", traces), *options)
    protocol = "warmup=10 iterations=50 trials=3 clock=events"
    assert f"relaxed: rtol=0.2 atol=0.1 ratio=0.85; {protocol}" in out.splitlines()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--definition", "small"), "small"),  # known, though nothing is recorded of it
        (("--definition", "nonsense"), "nonsense"),
        (("--solutions", "hoper_fused"), "hopper_fused"),
        (("--clock", "gpu"), "gpu"),
    ],
)
def test_what_is_not_there_is_named_in_one_line(compare, options, named):
    status, out, err = compare("--traces", KIMI, *options)
    assert status == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert named in err


def test_csv_and_json_hold_every_row(compare, data_set, tmp_path):
    csv = tmp_path / "t.csv"
    json_file = tmp_path / "t.json"
    status, _, _ = compare("--traces", data_set, "--csv", csv, "--json", json_file)
    assert status == 0

    times = pd.read_csv(csv).ms
    solutions = pd.read_json(json_file).solution
    assert sorted(times) == [0.5, 1.0, 1.0, 2.0, 9.0]
    assert sorted(solutions) == ["fast", "fast", "fast", "slow", "slow"]


def test_csv_holds_the_chosen_rows_alone(compare, data_set, tmp_path):
    csv = tmp_path / "t.csv"
    assert compare("--traces", data_set, "--tolerance", "default", "--csv", csv)[0] == 0
    assert list(pd.read_csv(csv).solution) == ["slow"]


@pytest.mark.parametrize(
    "pair", [("--csv", "--json"), ("--csv", "--html"), ("--json", "--html")]
)
def test_two_outputs_are_not_one_file(compare, data_set, tmp_path, pair):
    (tmp_path / "folder").mkdir()
    file = tmp_path / "x"
    same = tmp_path / "folder" / ".." / "x"
    first, second = pair
    status, out, err = compare("--traces", data_set, first, file, second, same)
    assert status == 2
    assert out == ""
    assert first in err
    assert second in err
    assert not file.exists()


def test_an_output_never_replaces_the_traces(compare, tmp_path):
    file = write(tmp_path / "t.jsonl", [trace("fast", 1)])
    link = tmp_path / "link"
    link.symlink_to(file)
    before = file.read_bytes()
    for output in (file, link):
        assert compare("--traces", tmp_path, "--json", output)[0] == 2
    assert file.read_bytes() == before


def test_control_characters_of_others_reach_no_terminal(compare, tmp_path):
    """Nor files: test_csv_and_json.py and test_html.py."""
    theirs = trace("fast", 1).model_copy(
        update={"solution": "a\x1b[2Jb", "definition": "c\x1b[3Jd"}
    )
    file = write(tmp_path / "t.jsonl", [trace("fast", 1), theirs])
    for options in ((), ("--definition", "c\x1b[3Jd"), ("--solutions", "nobody")):
        _, out, err = compare("--traces", file, *options)
        assert out + err
        assert "\x1b" not in out + err


def test_several_gpus_have_a_table_each(tmp_path):
    traces = [
        trace("fast", 1),
        trace("slow", 1),
        trace("fast", 1, hardware="NVIDIA H100"),
    ]
    rows, _ = measurements.load([trace_set(tmp_path, traces)])
    assert comparison.gpus(rows) == ["NVIDIA H200", "NVIDIA H100"]


@pytest.fixture
def sides(tmp_path):
    """Writes traces of before and after a change, and returns both files."""

    def make(before, after):
        old = write(tmp_path / "before.jsonl", before)
        return old, write(tmp_path / "after.jsonl", after)

    return make


@pytest.fixture
def changes(sides):
    """Compares traces of before and after a change, and returns the table."""

    def table(before, after):
        old, new = sides(before, after)
        rows, _ = against.compare([old], [new])
        return changes_table(rows)

    return table


@pytest.mark.parametrize(
    ("definitions", "where"), [([NAME], "relaxed"), ([NAME, KIMI.stem], "full")]
)
def test_a_change_names_its_definition_where_there_are_several(
    changes, definitions, where
):
    before = [trace("a", 1, 1.0, definition=name) for name in definitions]
    after = [trace("a", 1, 2.0, definition=name) for name in definitions]
    places = [row[1] for row in changes(before, after).rows]
    ending_so = [place for place in places if place.endswith(where)]
    assert len(ending_so) == 1


def test_what_has_not_changed_is_no_row(changes):
    before = [trace("a", 1, 1.0), trace("a", 7, 1.0)]
    after = [trace("a", 1, 1.01), trace("a", 7, 3.0)]
    (row,) = changes(before, after).rows
    assert row[2] == 7


def test_a_faster_solution_is_shown_and_no_failure(compare, sides):
    before, after = sides(
        [trace("a", 1, 2.0)], [trace("a", 1, 1.0), trace("a", 1, 1.2)]
    )
    status, out, _ = compare("--traces", after, "--against", before)
    assert status == 0
    assert (
        "| a | NVIDIA H200, relaxed | 1 | 2.0000 | 1.1000 (2 runs) | -45.0% | faster |"
        in out
    )


def test_a_cell_of_several_runs_shows_its_median_and_half_its_range(compare, tmp_path):
    traces = [
        trace("fast", 1, 1.0),
        trace("fast", 1, 1.5),
        trace("fast", 1, 1.1),
        trace("slow", 1, 2.0),
    ]
    rows, _ = measurements.load([trace_set(tmp_path, traces)])
    ((_, _, fast, slow),) = comparison.times_table(rows).rows
    assert fast.text == "1.100 \N{PLUS-MINUS SIGN}0.250"
    assert slow.text == "2.000"


def test_a_change_shows_in_a_narrow_terminal_what_it_is(changes):
    name = "a_long_name_of_a_solution"
    table = changes([trace(name, 1, 1.0)], [trace(name, 1, 2.0)])
    row = row_of(shown(table, 80), name)
    assert row[1:] == ["NVIDIA H200, relaxed", "1", "+100.0%", "slower"]


def test_the_exit_status_is_that_of_a_gate(compare, sides):
    before, after = sides([trace("a", 1, 1.0)], [trace("a", 1, 2.0)])
    status, out, _ = compare("--traces", after, "--against", before)
    assert status == 1
    assert (
        "| a | NVIDIA H200, relaxed | 1 | 1.0000 | 2.0000 | +100.0% | slower |" in out
    )

    assert compare("--traces", before, "--against", before)[0] == 0


def test_nothing_to_compare_is_a_failure(compare, tmp_path):
    here = write(tmp_path / "here.jsonl", [trace("a", 1)])
    other = write(tmp_path / "other.jsonl", [trace("a", 1, hardware="another")])
    status, _, _ = compare("--traces", here, "--against", other)
    assert status == 1
