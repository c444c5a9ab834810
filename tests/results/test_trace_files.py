"""Reading trace files of any origin, and keeping the traces of this project's runs."""

import json

import pytest
from flashinfer_bench import TraceSet
from moebench.core.errors import UserError
from moebench.results import trace_files
from recorded import DEFAULT, NAME, times_in, trace, trace_set, write


def test_broken_lines_are_named_and_the_rest_is_read(tmp_path):
    file = write(tmp_path / "t.jsonl", [trace("fast", 1)])
    with file.open("a") as out:
        out.write('{"definition": 3}\nhalf a li')

    (recorded,), (second, third) = trace_files.read([file])
    assert recorded.place == f"{file}:1"
    assert second.startswith(f"{file}:2: ")
    assert third.startswith(f"{file}:3: ")


def test_a_file_that_is_named_twice_counts_once(tmp_path):
    root = trace_set(tmp_path, [trace("fast", 1)])
    (recorded,), _ = trace_files.read([root, root / "traces"])
    assert recorded.root == root


@pytest.mark.parametrize("content", ["", '{"a": 1}\n', None])
def test_nothing_to_read_is_an_error_that_names_the_path(tmp_path, content):
    file = tmp_path / "t.jsonl"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError, match="t.jsonl"):
        trace_files.read([file])
    assert file.exists() == (content is not None)


def test_merging_keeps_every_run_of_every_protocol_once(tmp_path):
    file = tmp_path / "t.jsonl"
    short = trace("fast", 1, 2.0, protocol="short")
    other = trace("slow", 1, 4.0)
    first_run = trace("fast", 1, 1.0, day="2026-01-01")
    later_run = trace("fast", 1, 3.0, day="2026-01-02")
    earlier_run = trace("fast", 1, 9.0, day="2025-12-31")

    trace_files.merge(file, [first_run, short])
    trace_files.merge(file, [later_run, other])
    trace_files.merge(file, [earlier_run, short])
    assert times_in(file) == [1.0, 2.0, 3.0, 4.0, 9.0]


def test_fib_reads_several_runs_of_a_cell(tmp_path):
    first = trace("fast", 1, 1.0)
    root = trace_set(tmp_path, [first])
    second = trace("fast", 1, 2.0, day="2026-01-02")
    trace_files.merge(root / "traces" / "moe" / f"{NAME}.jsonl", [second])
    traces = TraceSet.from_path(str(root)).traces
    assert len(traces[NAME]) == 2


def test_an_edited_source_replaces_all_runs_of_all_protocols(tmp_path):
    file = tmp_path / "t.jsonl"
    before = [trace("fast", 1, 1.0), trace("fast", 1, 2.0, protocol="short")]
    after = trace("fast", 1, 5.0, day="2026-01-03", sha1="edited")
    trace_files.merge(file, before)
    trace_files.merge(file, [after])
    assert times_in(file) == [5.0]


def test_tolerances_and_workloads_are_experiments_of_their_own(tmp_path):
    file = tmp_path / "t.jsonl"
    at_default = trace("fast", 1, 6.0, tolerance=DEFAULT)
    of_more_tokens = trace("fast", 7, 7.0)
    trace_files.merge(file, [trace("fast", 1, 1.0)])
    trace_files.merge(file, [at_default, of_more_tokens])
    assert times_in(file) == [1.0, 6.0, 7.0]


def test_merging_keeps_fields_that_are_not_known(tmp_path):
    file = tmp_path / "t.jsonl"
    newer = trace("fast", 1).model_dump(mode="json")
    newer["evaluation"]["performance"]["stdev_ms"] = 0.5
    file.write_text(json.dumps(newer))

    trace_files.merge(file, [trace("fast", 57)])
    first, second = (json.loads(line) for line in file.read_text().splitlines())
    assert first["evaluation"]["performance"]["stdev_ms"] == 0.5
    assert second["workload"]["axes"]["seq_len"] == 57
