"""The page of `compare --html`: what others named is shown in it, and not obeyed.

In a real browser it sorts and shows one section, from a file, without network, in both colour
schemes.
"""

import base64
import gzip
import json
import re

import browser
import pytest
from moebench import cli
from moebench.reports import html
from moebench.results import measurements
from recorded import trace, write

MARKUP = "<b>x</b></script><!--<script>\x1b[2J"
SHOWN_ROWS = "[...document.querySelectorAll('tbody tr:not([hidden])')]"

pytestmark = pytest.mark.usefixtures("sources_once")


def page_of(tmp_path, traces):
    rows, _ = measurements.load([write(tmp_path / "t.jsonl", traces)])
    return html.page(rows)


def inflated(page, name):
    """Return a text of the page that lies in it compressed."""
    text = re.search(f'^const {name} = "(.*)";$', page, re.M)[1]
    return gzip.decompress(base64.b64decode(text)).decode()


def test_markup_and_control_characters_of_others_are_shown(tmp_path):
    theirs = trace("fast", 1).model_copy(update={"solution": MARKUP})
    page = page_of(tmp_path, [theirs])

    rows = inflated(page, "ROWS")
    curves = inflated(page, "CURVES")
    assert MARKUP not in page + rows + curves
    assert "\x1b" not in page + rows + curves
    assert page.count("</script>") == 1
    assert "<td>&lt;b&gt;x&lt;/b&gt;&lt;/script&gt;" in rows


@pytest.fixture(scope="module")
def page_of_all(tmp_path_factory):
    """The file of this repository's traces, which takes seconds to make."""
    file = tmp_path_factory.mktemp("page") / "page.html"
    assert cli.main(["compare", "--html", str(file)]) == 0
    return file


def test_a_page_of_all_records_is_under_3_mb(page_of_all):
    assert inflated(page_of_all.read_text(), "ROWS").count("<tr") > 3000
    assert page_of_all.stat().st_size < 3_000_000


def test_a_curve_is_of_the_section_of_its_rows(tmp_path):
    traces = [trace("fast", 1), trace("fast", 1, hardware="NVIDIA  H100 ")]
    page = page_of(tmp_path, traces)

    options = re.findall(r'<option value="(\d+)">(.*)</option>', page)
    assert [name for _, name in options] == ["full on NVIDIA H200", "full on NVIDIA  H100 "]
    sections = re.findall(r'data-section="(\d+)"', inflated(page, "ROWS"))
    figure = json.loads(inflated(page, "CURVES"))
    assert sorted(sections) == sorted(str(each["meta"]["section"]) for each in figure["data"])
    assert sorted(sections) == sorted(number for number, _ in options)


def test_a_number_has_four_digits_and_its_whole_value_to_sort_by(tmp_path):
    rows = inflated(page_of(tmp_path, [trace("fast", 1, 0.123456)]), "ROWS")
    assert '<td class="number" data-value="0.123456">0.1235</td>' in rows
    assert '<td class="number" data-value="1">1</td>' in rows


@pytest.fixture(scope="module")
def opened(page_of_all):
    """The page of this repository's traces in a browser, or a skip that says what is missing."""
    if browser.MISSING:
        pytest.skip(browser.MISSING)
    driver = browser.start(page_of_all.with_name("profile"))
    yield driver, f"file://{page_of_all}"
    driver.quit()


def open_page(opened, colours):
    driver, url = opened
    browser.resize(driver, 1200, colours=colours)
    browser.requested(driver)
    driver.get(url)
    browser.WebDriverWait(driver, 20).until(
        lambda d: d.find_elements(browser.By.CSS_SELECTOR, ".scatterlayer .point")
    )
    return driver


def shown_times(driver, column):
    script = f"return {SHOWN_ROWS}.map(row => row.cells[{column}].dataset.value)"
    return [float(value) for value in driver.execute_script(script) if value]


@pytest.mark.parametrize("colours", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_it_needs_no_network_sorts_both_ways_and_shows_a_section(opened, colours):
    driver = open_page(opened, colours)
    headings = [head.text for head in driver.find_elements(browser.By.TAG_NAME, "th")]
    column = headings.index("ms")
    button = driver.find_elements(browser.By.CSS_SELECTOR, "th button")[column]

    button.click()
    up = shown_times(driver, column)
    button.click()
    down = shown_times(driver, column)
    assert len(up) > 100
    assert up == sorted(up)
    assert down == up[::-1]

    driver.find_elements(browser.By.TAG_NAME, "option")[-1].click()
    assert len(shown_times(driver, column)) != len(up)
    schemes = {url.partition(":")[0] for url in browser.requested(driver)}
    assert schemes <= {"file", "data", "blob"}
    errors = [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []
