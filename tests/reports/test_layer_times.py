"""The tables of layers that are timed apart: over several GPUs, and with MXFP4 experts."""

import json

import pytest
from moebench.core import schema
from moebench.core.errors import UserError
from moebench.reports.layer_times import (
    AllReducePoint,
    PeerPoint,
    all_reduce_tables,
    over_fp8_table,
    peer_tables,
    rows_of,
)
from moebench.reports.table import as_cell

ALL_REDUCE = {
    "gpu": "NVIDIA H200",
    "torch": "2.11.0",
    "ranks": 4,
    "definition": "small",
    "split": "width",
    "shares": 4,
    "solution": "hopper_fused",
    "source": "1f",
    "layers": 20,
    "layers_of_weights": 20,
    "rounds": 15,
    "tokens": 8,
    "us": {
        "the layer alone": 10.0,
        "group's all-reduce": 22.04,
        "run_allreduce": 13.26,
    },
}
PEER = {
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
    """A function of a model and the lines of a record that returns the points in it."""

    def read(model, *lines):
        file = tmp_path / "record.jsonl"
        file.write_text("\n".join(map(json.dumps, lines)))
        return schema.read_lines(file, model)

    return read


@pytest.fixture
def peer_rows(read_lines):
    """A function of the lines of a record that returns the rows of the peers' points in it."""
    return lambda *lines: rows_of(read_lines(PeerPoint, *lines))


def times(entries):
    """Return the text and the mark of each entry of a row."""
    return [(cell.text, cell.mark) for cell in map(as_cell, entries)]


@pytest.mark.parametrize(
    ("model", "line", "changes"),
    [
        (AllReducePoint, ALL_REDUCE, {"tokens": "many"}),
        (AllReducePoint, ALL_REDUCE, {"unknown": 1}),
        (PeerPoint, PEER, {"us": "fast"}),
    ],
)
def test_a_line_that_is_no_point_is_named(read_lines, model, line, changes):
    with pytest.raises(UserError, match="record.jsonl:2"):
        read_lines(model, line, line | changes)


# Over several GPUs


def test_a_table_has_a_row_for_each_token_count_and_marks_the_fastest_sum(read_lines):
    points = read_lines(AllReducePoint, ALL_REDUCE, ALL_REDUCE | {"tokens": 1})
    (table,) = all_reduce_tables(points)
    assert table.head == ["T", "the layer alone", "group's all-reduce", "run_allreduce"]

    first, second = table.rows
    assert first[0] == 1
    assert second[0] == 8
    assert times(first[1:]) == [("10.0", ""), ("22.0", ""), ("13.3", "best")]


# With MXFP4 experts


def test_a_row_has_the_median_of_each_peer_and_marks_the_fastest(peer_rows):
    theirs = PEER | {"peer": "theirs", "us": 250.0}
    again = PEER | {"card": 2, "us": 210.0}
    one_token = PEER | {"tokens": 1, "us": 40.0}
    (table,) = peer_tables(peer_rows(theirs, PEER, again, one_token))
    assert table.head == ["T", "theirs", "ours"]

    assert {row[0]: times(row[1:]) for row in table.rows} == {
        1: [("-", ""), ("0.040", "best")],
        8: [("0.250", ""), ("0.205", "best")],
    }


def test_a_wrong_output_of_a_peer_is_marked_and_never_the_fastest(peer_rows):
    wrong = PEER | {"peer": "theirs", "us": 150.0, "matched": {"relaxed": 0.84}}
    (table,) = peer_tables(peer_rows(PEER, wrong))
    assert times(table.rows[0][1:]) == [("0.200", "best"), ("0.150, wrong", "")]


def test_a_peer_is_compared_with_its_fp8_layer_on_the_gpus_that_timed_both(peer_rows):
    in_fp8 = {"peer": "ours, in FP8", "us": 100.0}
    another = PEER | {"tokens": 32, "definition": "another-mxfp4", "us": 60.0}
    points = [
        PEER,
        PEER | in_fp8,
        PEER | {"card": 2, "us": 300.0},
        PEER | {"card": 2} | in_fp8,
        PEER | {"card": 3, "us": 900.0},
        PEER | {"peer": "never in FP8"},
        PEER | {"definition": "never-in-fp8-mxfp4"},
        another,
        another | in_fp8,
    ]
    table = over_fp8_table(peer_rows(*points))
    assert table.head == ["definition", "peer", "T=8", "T=32"]
    assert table.rows == [
        ["another-mxfp4", "ours", "-", "0.60"],
        ["small-mxfp4", "ours", "2.50", "-"],
    ]
