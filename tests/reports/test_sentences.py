"""Figures in sentences: recomputed, or found to have no source."""

import pytest
from moebench.core import paths
from moebench.reports.docs import sentences
from moebench.reports.docs.computed import FUNCTIONS as FUNCTIONS_OF_PAGES
from moebench.reports.docs.page import read_pages

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


def time(us):
    return [us]


def saving():
    return ["10", "18"]


def changed_saving():
    return ["9", "18"]


FUNCTIONS = {"time": time, "saving": saving, "changed": changed_saving}


def sentence(text, computed_by=None, page="docs/a.md", **arguments):
    fields = {"page": page, "text": text, "from": computed_by, "with": arguments}
    return sentences.Sentence.model_validate(fields)


TIME = sentence("takes {} us", "time", us="4.4")
SAVING = sentence("{} to {}% less", "saving")


@pytest.fixture
def root(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# R\n")
    (tmp_path / "docs/a.md").write_text(PAGE)
    return tmp_path


def problems_of(root, *listed, check=True, functions=FUNCTIONS):
    return sentences.update(check, list(listed), functions, root)


def test_a_page_whose_figures_all_have_a_source_is_in_order(root):
    assert problems_of(root, TIME, SAVING) == []


@pytest.mark.parametrize("listed", [(TIME,), (SAVING,), ()])
def test_a_figure_that_nothing_gives_is_a_problem(root, listed):
    problems = problems_of(root, *listed)
    assert len(problems) == 2 - len(listed)
    assert all(problem.startswith("docs/a.md:3: ") for problem in problems)


def test_a_page_of_a_solution_may_have_more_figures_than_records_give(root):
    (root / "solutions/a").mkdir(parents=True)
    page = root / "solutions/a/README.md"
    page.write_text(PAGE)
    listed = [
        TIME,
        SAVING,
        sentence("takes {} us", "time", page="solutions/a/README.md", us="5.5"),
    ]

    assert len(problems_of(root, *listed)) == 1
    assert problems_of(root, *listed, check=False) == []
    assert page.read_text() == PAGE.replace("4.4", "5.5")


def test_a_sentence_of_no_page_is_a_problem(root):
    elsewhere = sentence("takes {} us", "time", page="docs/b.md", us="4.4")
    (problem,) = problems_of(root, TIME, SAVING, elsewhere)
    assert problem.startswith("docs/b.md: ")


def test_a_figure_may_be_no_measurement(root):
    assert problems_of(root, sentence("takes 4.4 us"), SAVING) == []


def test_a_figure_that_has_changed_is_found_and_written(root):
    changed_figure = sentence("{} to {}% less", "changed")
    assert len(problems_of(root, TIME, changed_figure)) == 1
    assert (root / "docs/a.md").read_text() == PAGE

    assert problems_of(root, TIME, changed_figure, check=False) == []
    assert (root / "docs/a.md").read_text() == PAGE.replace("10 to", "9 to")
    assert problems_of(root, TIME, changed_figure) == []


@pytest.mark.parametrize("text", ["took {} us", "{}"])
def test_a_text_that_fits_no_sentence_or_several_is_a_problem(root, text):
    assert len(problems_of(root, TIME, SAVING, sentence(text, "time", us="1"))) == 1


@pytest.mark.parametrize("figures", [None, ["nan"], [], ["4.4", "4.4"]])
def test_what_a_figure_is_computed_from_may_be_gone(root, figures):
    """Its traces are stale for instance. Nothing is written then."""

    def compute(us):
        if figures is None:
            raise KeyError("hopper_fused")
        return figures

    functions = FUNCTIONS | {"time": compute}
    assert len(problems_of(root, TIME, SAVING, check=False, functions=functions)) == 1
    assert (root / "docs/a.md").read_text() == PAGE


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ("1.5 GB and 3 times, 2x", ["1.5 GB", "3 times", "2x"]),
        (
            "1,300 us; 47.3, 195.5 and 399.2 us",
            ["1,300 us", "47.3, 195.5 and 399.2 us"],
        ),
        ("torch 2.11.0, T=57 ms, v1.2s, a/3 s, 128 x 128", []),
        ("4.6 TB/s or 1522 TFLOP/s", ["4.6 TB/s", "1522 TFLOP/s"]),
    ],
)
def test_what_a_figure_is(text, figures):
    assert [match[0] for match in sentences.QUANTITY.finditer(text)] == figures


def test_every_listed_sentence_is_computed_by_a_function_or_is_no_measurement():
    for each in sentences.listed():
        if each.computed_by is None:
            assert each.not_measured is not None
        else:
            assert each.not_measured is None
            assert each.computed_by in FUNCTIONS_OF_PAGES


def test_no_figure_of_this_repository_is_without_source():
    """No figure is computed here, and so none compared: `moebench docs --check` does that."""
    listed = sentences.listed()
    for page in read_pages(paths.ROOT).values():
        covered = []
        for each in listed:
            if each.page == page.name:
                (match,) = each.pattern.finditer(page.text)
                covered.append(range(*match.span()))
        assert list(sentences.without_source(page, covered)) == []


def test_statistics_of_a_series_are_written_in_a_format(root):
    fields = {"page": "docs/a.md", "text": "{:.0f} to\n{:.0f}% less", "from": "savings"}
    least_and_greatest = sentences.Sentence(**fields, show=["min", "max"])
    functions = FUNCTIONS | {"savings": lambda: [12.2, 9.6, 17.9]}
    assert least_and_greatest.numbers(functions) == ["10", "18"]
    assert problems_of(root, TIME, least_and_greatest, functions=functions) == []

    functions = FUNCTIONS | {"savings": lambda: [12.2, float("nan")]}
    assert least_and_greatest.numbers(functions) is None
