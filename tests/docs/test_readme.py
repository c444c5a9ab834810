"""README.md: the answer and the one table, from traces/; short, and as wide as GitHub's column."""

import re

from harness.core import paths
from harness.operators.roofline import MEASURED_ON
from harness.report.blocks import results, solutions
from harness.results import comparison
from markdown_width import too_wide
from recorded import DEFAULT, RECORDS, trace, trace_set


def built(root, traces):
    return comparison.build([trace_set(root, traces)])


def block(root, traces):
    return results.block(built(root, traces))


def measured(name="fast", ms=1.0, **changes):
    """Every workload, in the order of the workload file, at ms, 2 ms, ..., and 40 ms, 80 ms, ... the reference."""
    return [trace(name, r.axes["seq_len"], ms * i, 40.0 * i, **changes) for i, r in enumerate(RECORDS, start=1)]


def line(text, name):
    (found,) = [line for line in text.splitlines() if line.startswith(f"| {name} ")]
    return found


def test_block_holds_what_was_measured(tmp_path):
    text = block(tmp_path, measured(hardware="A GPU"))
    at = {record.axes["seq_len"]: i for i, record in enumerate(RECORDS, start=1)}
    times = " | ".join(f"**{at[t]}.000**" for t in (1, 57, 14107))
    assert line(text, "fast") == f"| fast | **1.00** | {times} | 40.0x | not run | 19/19 | not run |"
    for said in ("A GPU", "relaxed", "torch 2.11", "protocol once", "2026-01-01"):
        assert said in text
    assert "stale" not in text


def test_each_solution_is_timed_once(tmp_path):
    """A reader would miss: three times of one solution, as protocols differ; who passes at which tolerance."""
    strict = measured(tolerance=DEFAULT, protocol="twice", ms=3.0)
    strict[4] = trace("fast", RECORDS[4].axes["seq_len"], tolerance=DEFAULT, protocol="twice", status="RUNTIME_ERROR")
    text = block(tmp_path, [*measured(), *measured("slow", 1.02), *strict])
    assert len(re.findall(r"^\| (?:fast|slow) ", text, re.M)) == 2 and "protocol twice" not in text
    assert line(text, "fast").endswith("| 40.0x | 18/19 | 19/19 | not run |")
    assert line(text, "slow").startswith("| slow | **1.02** |") and line(text, "slow").endswith("| 19/19 | not run |")


def test_no_mean_of_a_solution_that_failed_somewhere(tmp_path):
    """A mean over what it got right would put it first."""
    failed = trace("fast", RECORDS[0].axes["seq_len"], status="INCORRECT_NUMERICAL")
    text = block(tmp_path, [failed, *measured()[1:], *measured("slow", 2.0)])
    names = [line.split(" | ")[0] for line in text.splitlines() if line.startswith(("| fast", "| slow"))]
    assert names == ["| slow", "| fast"]
    assert line(text, "fast").startswith("| fast | - |") and "| - | not run | 18/19 |" in line(text, "fast")


def test_a_changed_source_marks_its_results_stale(tmp_path):
    text = block(tmp_path, measured(sha1="before"))
    assert line(text, "fast") == "| fast | - | - | - | - | - | not run | stale | not run |"
    assert "has changed" in text
    assert "no solution has passed" in results.answer(built(tmp_path, measured(sha1="before")))


def test_a_few_stale_workloads_are_counted(tmp_path):
    """A reader must see that the rest is of the source as it is."""
    text = block(tmp_path, measured()[:18] + measured(sha1="before")[18:])
    assert "| 18/19, 1 stale |" in line(text, "fast") and "has changed" in text


def test_missing_workloads_are_not_hidden(tmp_path):
    assert "| 7/19 |" in line(block(tmp_path, measured()[:7]), "fast")


def test_versions_get_tables_of_their_own(tmp_path):
    """A mean over two versions of torch would be nobody's figure."""
    text = block(tmp_path, measured()[:9] + measured(torch="2.13")[9:])
    assert "| 9/19 |" in text and "| 10/19 |" in text


def test_what_a_solution_calls_is_named_once(tmp_path):
    """Whose kernels were measured, in which release, without a table of their own for each release."""
    both = measured(packages="theirs 1.2")[:9] + measured(packages="theirs 1.3")[9:]
    text = block(tmp_path, both)
    assert "| 19/19 |" in line(text, "fast")
    assert text.count("theirs") == 2 and "fast with theirs 1.2 or theirs 1.3." in text
    assert "fast with " not in block(tmp_path, measured())


def test_the_gain_is_over_sglangs_kernel_where_both_count(tmp_path):
    """A serving engineer would read a ratio of other traces, or of a workload that one of the two failed."""
    theirs = measured("sglang_triton", 1.5)[:-1]
    found = comparison.build(
        [trace_set(tmp_path, [*measured("hopper_fused"), *theirs], ("hopper_fused", "sglang_triton"))]
    )
    rows = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", results.gain(found), re.M)
    missing = RECORDS[-1].axes["seq_len"]
    assert rows == [(f"{t}", "1.50x") for t in results.GAIN_SEQ_LENS if t != missing]
    assert "relaxed tolerance" in results.gain(found) and "protocol once" in results.gain(found)


def test_the_answer_names_all_level_solutions_by_tolerance(tmp_path):
    """Which to use, best times against the yardstick; one paragraph for each machine."""
    traces = [*measured(), *measured("slow", 1.02), *measured("sglang_triton", 2.0)]
    traces += measured("slow", tolerance=DEFAULT, protocol="twice")
    text = results.answer(comparison.build([trace_set(tmp_path, traces, ("fast", "slow", "sglang_triton"))]))
    use = f"On NVIDIA H200 use `fast` or `slow` at relaxed {results.LINK} and `slow` at default tolerance."
    assert text.startswith(use)
    assert "`fast` is 2.00, 2.00 and 2.00 times (2.00) as fast as SGLang's Triton kernel" in text
    assert text.endswith("geometric mean over all 19 workloads.")


def test_a_gpu_without_peers_or_a_bound_is_answered_too(tmp_path):
    """A user who ran our solutions on a GPU of their own would get an error from `moebench docs`, and a failed test."""
    found = built(tmp_path, [*measured(hardware="A GPU"), *measured(hardware=MEASURED_ON)])
    first, second = results.answer(found).split("\n\n")
    assert first.startswith(f"On {MEASURED_ON} use `fast` at relaxed")
    assert second.startswith("On A GPU use `fast` at relaxed") and "no peer was measured there." in second
    at = [i for i, r in enumerate(RECORDS, start=1) if r.axes["seq_len"] in results.SHOWN_SEQ_LENS]
    assert f"takes {at[0]}.000, {at[1]}.000 and {at[2]}.000 ms" in second
    assert results.gain(found) == ""


def test_the_readme_begins_with_the_answer_and_its_table_fits():
    text = (paths.ROOT / "README.md").read_text()
    assert text.index("<!-- generated: answer -->") < text.index("make bench")
    assert too_wide(text.split("<!-- generated: results -->")[1].split("<!-- end of")[0]) == []


def test_a_solution_is_judged_where_it_has_a_trace(tmp_path):
    """A reader would take a solution that is only written for a GPU for one that was tried there."""
    text = solutions.gpus(built(tmp_path, measured("triton_fused_v2", hardware="NVIDIA B200", sha1="before")))
    judged = {row.split("(")[0].strip("| "): row.split(" | ")[1] for row in text.splitlines()[2:]}
    assert judged["sm_100"] == "`triton_fused_v2`" and judged["sm_90"] == "none"
    assert "`triton_fused_v2`" in text.split("sm_90")[1].splitlines()[0]
