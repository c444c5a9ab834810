"""The one table: nothing is cut in a terminal of any width, and nothing of others is obeyed."""

import pytest
from moebench.reports.table import Cell, Table, one_line
from rich.cells import cell_len
from terminal import row_of, rows_of, shown

NAMES = ["hopper_fused", "hopper_fused_exact", "hopper_fused_invariant"]
ESCAPE = "a\x1b[31mb\x07\nc\x9b2J\u202ed"


def table_of(names, columns, **fields):
    head = ["solution", *(f"column {at}" for at in range(columns))]
    figures = [f"{at}.0000" for at in range(columns)]
    rows = [[name, *figures] for name in names]
    return Table(head=head, sections=[rows], **fields)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160, 1000])
def test_no_name_is_cut_and_no_line_is_longer_than_the_terminal(width):
    lines = shown(table_of(NAMES, 10), width)
    assert [row[0] for row in rows_of(lines)] == NAMES
    assert max(map(cell_len, lines)) <= width


def test_columns_are_left_out_from_the_right_and_named():
    lines = shown(table_of(NAMES, 10), 80)
    (row, *_) = rows_of(lines)
    assert row == ["hopper_fused", *(f"{at}.0000" for at in range(6))]

    below = " ".join(lines[-2:])
    for at in range(10):
        assert (f"column {at}" in below) == (at >= 6)


def test_nothing_is_left_out_where_there_is_room():
    lines = shown(table_of(NAMES, 3), 80)
    assert rows_of(lines)[0] == ["hopper_fused", "0.0000", "1.0000", "2.0000"]
    assert lines[-1].startswith("└")


def test_an_important_column_stays_before_the_others():
    lines = shown(table_of(NAMES, 10, important=("column 9",)), 50)
    assert rows_of(lines)[0] == ["hopper_fused", "0.0000", "9.0000"]


def test_all_columns_that_tell_rows_apart_stay():
    rows = [
        ["mine", "NVIDIA H200, relaxed", "14107", "1.5"],
        ["mine", "another GPU", "1", "2.5"],
    ]
    table = Table(
        ["solution", "where", "T", "ms"], [rows], word_columns=2, key_columns=3
    )
    lines = shown(table, 43)
    assert rows_of(lines)[0] == ["mine", "NVIDIA H200, relaxed", "14107"]


def test_a_name_wider_than_the_terminal_is_broken_and_complete():
    name = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
    lines = shown(table_of([name], 2), 40)
    assert "".join(row[0] for row in rows_of(lines)) == name
    assert max(map(cell_len, lines)) <= 40


def test_a_long_name_leaves_room_for_a_figure():
    lines = shown(table_of(["mine", "a_long_name_" * 10], 2), 80)
    assert row_of(lines, "mine") == ["mine", "0.0000", "1.0000"]


def test_a_sentence_is_broken_into_lines():
    sentence = "router: has sigmoid-bias, takes listed definitions alone"
    table = Table(["solution", "why not"], [[["mine", sentence]]], word_columns=2)
    lines = shown(table, 50)
    assert " ".join(row[1] for row in rows_of(lines)) == sentence


def test_a_wide_title_caption_and_note_are_complete():
    words = [f"word{at}" for at in range(40)]
    text = " ".join(words)
    lines = shown(table_of(["mine"], 1, title=text, caption=text, notes=[text]), 60)
    assert " ".join(lines).count("word39") == 3
    assert max(map(cell_len, lines)) <= 60


def test_control_characters_are_shown_in_every_part():
    table = Table(
        head=[ESCAPE, "ms"],
        sections=[[[ESCAPE, Cell(ESCAPE, "best")]]],
        title=ESCAPE,
        caption=ESCAPE,
        notes=[ESCAPE],
    )
    lines = shown(table, 200)
    for text in ("\n".join(lines), table.markdown(titled=True)):
        assert set(text).isdisjoint("\x1b\x07\x9b\u202e")
        assert text.count(r"\x1b[31mb\x07") == 6
    assert row_of(lines, r"a\x1b[31mb\x07\nc\x9b2J\u202ed")


def test_a_line_end_in_a_name_is_no_line_end_in_a_cell():
    assert one_line("a\nb\tc\r\nd") == r"a\nb\tc\nd"
    lines = Table(["solution"], [[["a\nb"]]]).markdown().splitlines()
    assert lines == ["| solution |", "| --- |", r"| a\nb |"]


def test_markdown():
    rows = [["a*b|c", Cell("1.5", "best"), None], ["d", Cell("", "best"), 7]]
    table = Table(["name", "ms", "T"], [rows], title="t", caption="c*", notes=["n"])
    assert table.markdown(titled=True).splitlines() == [
        "**t**",
        "",
        "| name | ms | T |",
        "| --- | ---: | ---: |",
        r"| a\*b\|c | **1.5** | - |",
        "| d |  | 7 |",
        "",
        r"c\*",
        "",
        "n",
    ]
