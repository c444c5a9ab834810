"""The results in README.md are those in traces/."""

import pytest
from flashinfer_bench import Correctness, Environment, Evaluation, Performance, Trace
from flashinfer_bench.data import load_jsonl_file
from harness import paths, results_block

from definitions.moe_fp8_block_scale import definition_name

NAME = definition_name("full")


def traces(speedup=40.0, sha1="now"):
    libs = {
        "solution_sha1": sha1,
        "tolerance": "relaxed: rtol=0.2",
        "torch": "2.11",
        "protocol": "p",
    }
    environment = Environment(hardware="A GPU", libs=libs)
    found = []
    for at, record in enumerate(load_jsonl_file(Trace, paths.workload_file(NAME))):
        performance = Performance(latency_ms=at + 1, speedup_factor=speedup)
        ev = Evaluation(
            status="PASSED",
            environment=environment,
            timestamp="2026-01-02T03:04:05",
            correctness=Correctness(),
            performance=performance,
        )
        update = {"solution": "tiny", "evaluation": ev}
        found.append(record.model_copy(update=update))
    return found


def test_readme_is_up_to_date():
    """A reader must see the figures that were recorded last."""
    text = paths.README.read_text()
    assert results_block.renewed(text) == text, "run `make readme`"


def test_block_holds_what_was_measured():
    text = results_block.block(traces(), 19, {"tiny": "now"})
    line = next(line for line in text.splitlines() if line.startswith("| tiny"))
    assert line.startswith("| tiny | 19/19 | 40.0x | 10.000 | 1.000 | 2.000 | 12.000 |")
    for said in ("A GPU", "relaxed", "torch 2.11", "protocol p", "2026-01-02"):
        assert said in text
    assert "stale" not in text


def test_a_changed_source_marks_its_results_stale():
    text = results_block.block(traces(sha1="before"), 19, {"tiny": "now"})
    assert "| tiny (stale) |" in text and "has changed" in text


def test_missing_workloads_are_not_hidden():
    text = results_block.block(traces()[:7], 19, {"tiny": "now"})
    assert "| tiny | 7/19 |" in text


def test_a_missing_marker_is_named():
    with pytest.raises(ValueError, match="lacks the marker <!-- end of results"):
        results_block.renewed(f"x\n{results_block.BEGIN}\n")
