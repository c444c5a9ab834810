"""Figures in sentences: recomputed, or found to have no source."""

import pytest
from moebench.reports import sentences
from moebench.reports.stated import NOT_MEASURED, RECOMPUTED

PAGE = """# A

It takes 4.4 us here, and 10 to
18% less there.

<!-- generated: t -->

| 99 ms |

<!-- end of t -->

```
sleep 5 s
```
"""
ONE = {("docs/a.md", "takes {} us"): lambda: ["4.4"]}
OTHER = {("docs/a.md", "{} to {}% less"): lambda: ["10", "18"]}


@pytest.fixture
def root(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# R\n")
    (tmp_path / "docs/a.md").write_text(PAGE)
    return tmp_path


def test_a_page_whose_figures_all_have_a_source_is_in_order(root):
    assert sentences.update(True, ONE | OTHER, {}, root) == []


@pytest.mark.parametrize(("known", "line"), [(ONE, 3), (OTHER, 3), ({}, 3)])
def test_a_figure_that_nothing_gives_is_a_problem(root, known, line):
    problems = sentences.update(True, known, {}, root)
    assert len(problems) == 2 - len(known)
    assert all(problem.startswith(f"docs/a.md:{line}: ") for problem in problems)


def test_a_figure_may_be_no_measurement(root):
    rule = {("docs/a.md", "takes 4.4 us"): "a rule"}
    assert sentences.update(True, OTHER, rule, root) == []


def test_a_figure_that_has_changed_is_found_and_written(root):
    changed = ONE | {("docs/a.md", "{} to {}% less"): lambda: ["9", "18"]}
    assert len(sentences.update(True, changed, {}, root)) == 1
    assert (root / "docs/a.md").read_text() == PAGE

    assert sentences.update(False, changed, {}, root) == []
    assert (root / "docs/a.md").read_text() == PAGE.replace("10 to", "9 to")
    assert sentences.update(True, changed, {}, root) == []


@pytest.mark.parametrize("template", ["took {} us", "{}"])
def test_a_template_fits_one_sentence(root, template):
    wrong = {("docs/a.md", template): lambda: ["1"]}
    assert len(sentences.update(True, ONE | OTHER | wrong, {}, root)) == 1


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ("1.5 GB and 3 times, 2x", ["1.5 GB", "3 times", "2x"]),
        ("1,300 us; 47.3, 195.5 and 399.2 us", ["1,300 us", "47.3, 195.5 and 399.2 us"]),
        ("torch 2.11.0, T=57 ms, v1.2s, a/3 s, 128 x 128", []),
        ("4.6 TB/s or 1522 TFLOP/s", ["4.6 TB/s", "1522 TFLOP/s"]),
    ],
)
def test_what_a_figure_is(text, figures):
    assert [match[0] for match in sentences.FIGURE.finditer(text)] == figures


def test_every_sentence_of_ours_is_in_its_page():
    """Whether its figures are those of the records says `moebench docs --check`."""
    for page, template in [*RECOMPUTED, *NOT_MEASURED]:
        text = (sentences.paths.ROOT / page).read_text(encoding="utf-8")
        matches = sentences.pattern_of(template).findall(text)
        assert len(matches) == 1, (page, template)


def test_no_figure_of_this_repository_is_without_source():
    root = sentences.paths.ROOT
    for path in [*(root / "docs").glob("*.md"), root / "README.md"]:
        page = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        covered = []
        for template in sentences.templates_of(page, [*RECOMPUTED, *NOT_MEASURED]):
            covered += [match.span() for match in sentences.pattern_of(template).finditer(text)]
        assert sentences.without_source(page, text, covered) == []


def missing():
    raise KeyError("hopper_fused")


@pytest.mark.parametrize("compute", [missing, lambda: ["nan"]])
def test_what_a_figure_is_computed_from_may_be_gone(root, compute):
    """Its traces are stale for instance. Nothing is written then."""
    gone = {("docs/a.md", "takes {} us"): compute}
    assert len(sentences.update(False, gone | OTHER, {}, root)) == 1
    assert (root / "docs/a.md").read_text() == PAGE
