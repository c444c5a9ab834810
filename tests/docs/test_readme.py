"""The results in README.md are those in traces/."""

from harness.report.blocks import results
from harness.results import comparison
from recorded import RECORDS, trace, trace_set


def block(root, traces):
    return results.block(comparison.build([trace_set(root, traces)]))


def measured(**changes):
    """Every workload, in the order of the workload file, at 1 ms, 2 ms, ..., and 40 times as fast as the reference."""
    return [
        trace("fast", record.axes["seq_len"], ms, 40.0 * ms, **changes) for ms, record in enumerate(RECORDS, start=1)
    ]


def test_block_holds_what_was_measured(tmp_path):
    text = block(tmp_path, measured(hardware="A GPU"))
    line = next(line for line in text.splitlines() if line.startswith("| fast"))
    assert line.startswith("| fast | 19/19 | 40.0x | 10.000 | 1.000 | 2.000 | 12.000 |")
    for said in ("A GPU", "relaxed", "torch 2.11", "protocol once", "2026-01-01"):
        assert said in text
    assert "stale" not in text


def test_a_changed_source_marks_its_results_stale(tmp_path):
    text = block(tmp_path, measured(sha1="before"))
    assert "| fast | 0/19, 19 stale | - | - |" in text and "has changed" in text


def test_a_few_stale_workloads_are_counted(tmp_path):
    """A reader must see that the rest is of the source as it is."""
    text = block(tmp_path, measured()[:18] + measured(sha1="before")[18:])
    assert "| fast | 18/19, 1 stale |" in text and "has changed" in text


def test_missing_workloads_are_not_hidden(tmp_path):
    assert "| fast | 7/19 |" in block(tmp_path, measured()[:7])


def test_versions_get_tables_of_their_own(tmp_path):
    """A mean over two versions of torch would be nobody's figure."""
    text = block(tmp_path, measured()[:9] + measured(torch="2.13")[9:])
    assert "| fast | 9/19 |" in text and "| fast | 10/19 |" in text


def test_what_a_solution_calls_is_named_once(tmp_path):
    """Whose kernels were measured, in which release, without a table of their own for each release."""
    both = measured(packages="theirs 1.2")[:9] + measured(packages="theirs 1.3")[9:]
    text = block(tmp_path, both)
    assert text.count("| fast | 19/19 |") == 1
    assert text.count("theirs") == 2 and "fast with theirs 1.2 or theirs 1.3." in text
    assert " with " not in block(tmp_path, measured())
