"""The tables of layers with MXFP4 experts."""

from moebench.reports import mxfp4

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


def points_of(*lines):
    return [mxfp4.Point.model_validate(line) for line in lines]


def test_a_row_has_the_median_of_each_peer_and_marks_the_fastest():
    theirs = LINE | {"peer": "theirs", "us": 250.0}
    again = LINE | {"card": 2, "us": 210.0}
    one_token = LINE | {"tokens": 1, "us": 40.0}
    (table,) = mxfp4.tables(points_of(theirs, LINE, again, one_token))
    assert table.head == ["T", "theirs", "ours"]

    (rows,) = table.sections
    shown = {}
    for tokens, *cells in rows:
        shown[tokens] = [(cell.text, cell.mark) for cell in cells]
    assert shown == {
        1: [("-", ""), ("0.040", "best")],
        8: [("0.250", ""), ("0.205", "best")],
    }


def test_definitions_have_tables_of_their_own():
    other = LINE | {"definition": "another-mxfp4"}
    assert len(mxfp4.tables(points_of(LINE, other))) == 2
