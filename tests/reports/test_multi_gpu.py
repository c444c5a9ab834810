"""The tables of a layer over several GPUs."""

import json

import pytest
from moebench.core import schema
from moebench.core.errors import UserError
from moebench.reports import layer_times

LINE = {
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
    "us": {"the layer alone": 10.0, "group's all-reduce": 22.04, "run_allreduce": 13.26},
}


@pytest.fixture
def read_lines(tmp_path):
    """A function: lines of a record -> its points."""

    def read(*lines):
        file = tmp_path / "record.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return schema.read_lines(file, layer_times.AllReducePoint)

    return read


def test_a_table_has_a_row_for_each_token_count_and_marks_the_fastest_sum(read_lines):
    points = read_lines(LINE, LINE | {"tokens": 1})
    (table,) = layer_times.all_reduce_tables(points)
    assert table.head == ["T", "the layer alone", "group's all-reduce", "run_allreduce"]
    (rows,) = table.sections
    assert [row[0] for row in rows] == [1, 8]
    assert [(cell.text, cell.mark) for cell in rows[0][1:]] == [
        ("10.0", ""),
        ("22.0", ""),
        ("13.3", "best"),
    ]


def test_runs_have_tables_of_their_own_and_most_ranks_stand_first(read_lines):
    by_experts = LINE | {"split": "experts"}
    on_two = LINE | {"ranks": 2}
    tables = layer_times.all_reduce_tables(read_lines(on_two, by_experts, LINE))
    titles = [table.title for table in tables]
    assert titles == [point.title for point in read_lines(LINE, by_experts, on_two)]


@pytest.mark.parametrize("wrong", [{"tokens": "many"}, {"unknown": 1}])
def test_a_line_that_is_none_is_named(read_lines, wrong):
    with pytest.raises(UserError, match="record.jsonl:2"):
        read_lines(LINE, LINE | wrong)


def test_every_recorded_run_has_a_table():
    points = layer_times.all_reduce_points()
    rows = [row for table in layer_times.all_reduce_tables(points) for row in table.sections[0]]
    assert len(rows) == len(points)
    assert len({(point.table_key, point.tokens) for point in points}) == len(points)
