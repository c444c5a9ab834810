"""docs/tolerances.md: what each tolerance asks for is what the harness judges by; who passes is from traces/."""

from harness.core import paths
from harness.judging.tolerances import TOLERANCES
from harness.report.blocks import tolerances
from harness.results import comparison
from recorded import DEFAULT, trace, trace_set

PAGE = (paths.DOCS / "tolerances.md").read_text()


def test_the_page_states_each_tolerance():
    for t in TOLERANCES.values():
        assert f"| `{t.name}` | {t.rtol:g} | {t.atol:g} | {t.ratio:g} |" in PAGE


def test_who_passes_and_how_narrowly(tmp_path):
    """A reader would miss: a tolerance that was never tried; how near the worst workload is to failing."""
    traces = [trace("fast", 1, matched=0.9), trace("fast", 7, matched=0.97), trace("slow", 1)]
    traces += [trace("slow", 7, matched=0.31, tolerance=DEFAULT, status="INCORRECT_NUMERICAL")]
    text = tolerances.block(comparison.build([trace_set(tmp_path, traces)]))
    assert "| solution | default (0.95) | relaxed (0.85) | contest (0.9) |" in text
    assert "| fast | not run | 2/19, 0.900 | not run |" in text
    assert "| slow | 0/19, 0.310 | 1/19, 0.990 | not run |" in text
