"""The commands in a terminal of 80 columns: no line is longer, and no name that one has to type is
cut.
"""

import pytest
from moebench import cli
from moebench.commands import profile as profile_command
from moebench.commands import served as served_command
from moebench.core import paths
from moebench.packing.manifest import solution_names
from moebench.profiling.record import read_records
from moebench.reports import profiles, served
from moebench.reports import terminal as reports_terminal
from recorded import NAME
from rich.cells import cell_len
from terminal import rows_of, shown

WIDTH = 80


@pytest.fixture
def narrow(monkeypatch, capsys):
    """A command's table lines, as a terminal shows them."""
    monkeypatch.setattr(reports_terminal, "UNLIMITED", WIDTH)

    def run(*args):
        assert cli.main(list(args)) == 0
        lines = capsys.readouterr().out.splitlines()
        return [line for line in lines if line[:1] in "┏┃┡│├└"]

    return run


def check(lines):
    assert lines
    assert max(map(cell_len, lines)) <= WIDTH
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize("options", [(), ("--workloads",)])
def test_compare_shows_whole_names(narrow, options):
    check(narrow("compare", "--traces", str(paths.trace_file(NAME)), *options))


def test_data_shows_the_bound_of_every_workload(narrow):
    lines = narrow("data", "full")
    check(lines)
    assert all(float(row[-1]) > 0 for row in rows_of(lines))


def test_a_served_record_and_a_profile_name_their_protocol():
    record = served.recorded()[0]
    title = served_command.titled_table(record).title
    for text in (record.head.provenance.protocol, record.head.provenance.tolerance):
        assert text in title

    records = read_records(paths.PROFILES)
    title = profile_command.titled_table(records).title
    for text in (records[0].provenance.protocol, records[0].definition):
        assert text in title


def test_every_solution_of_a_served_record():
    for record in served.recorded():
        lines = shown(served.table(record), WIDTH)
        check(lines)
        tokens = [str(count) for count in record.tokens]
        assert [row[0] for row in rows_of(lines)][: len(tokens)] == tokens


def test_every_stage_of_a_profile():
    records = read_records(paths.PROFILES)
    lines = shown(profiles.table(records), WIDTH)
    check(lines)
    names = {row[0] for row in rows_of(lines)}
    assert {record.solution for record in records} <= names
    assert names - {""} <= set(solution_names())
