"""The tables of layers with MXFP4 experts."""

import json

import pytest
from moebench.core import schema
from moebench.core.errors import UserError
from moebench.reports import layer_times

LINE = {
    "gpu": "NVIDIA H200",
    "card": 1,
    "driver": "580",
    "torch": "2.11.0",
    "triton": "3.6.0",
    "date": "2026-11-27",
    "definition": "small-mxfp4",
    "tokens": 8,
    "peer": "ours",
    "us": 200.0,
    "prepared_ms": 0.0,
    "matched": {"relaxed": 1.0},
}


@pytest.fixture
def read_lines(tmp_path):
    """A function: lines of a record -> its points."""

    def read(*lines):
        file = tmp_path / "record.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return schema.read_lines(file, layer_times.PeerPoint)

    return read


def test_a_row_has_the_median_of_each_peer_and_marks_the_fastest(read_lines):
    theirs = LINE | {"peer": "theirs", "us": 250.0}
    again = LINE | {"card": 2, "us": 210.0}
    one_token = LINE | {"tokens": 1, "us": 40.0}
    (table,) = layer_times.peer_tables(read_lines(theirs, LINE, again, one_token))
    assert table.head == ["T", "theirs", "ours"]

    (rows,) = table.sections
    shown = {}
    for tokens, *cells in rows:
        shown[tokens] = [(cell.text, cell.mark) for cell in cells]
    assert shown == {1: [("-", ""), ("0.040", "best")], 8: [("0.250", ""), ("0.205", "best")]}


def test_a_wrong_output_is_marked(read_lines):
    wrong = LINE | {"peer": "theirs", "us": 250.0, "matched": {"relaxed": 0.84}}
    (table,) = layer_times.peer_tables(read_lines(LINE, wrong))
    assert [cell.text for cell in table.rows[0][1:]] == ["0.200", "0.250, wrong"]


def test_definitions_have_tables_of_their_own(read_lines):
    other = LINE | {"definition": "another-mxfp4"}
    assert len(layer_times.peer_tables(read_lines(LINE, other))) == 2


def test_a_line_that_is_no_point_is_named(read_lines):
    with pytest.raises(UserError, match="record.jsonl:2"):
        read_lines(LINE, LINE | {"us": "fast"})
