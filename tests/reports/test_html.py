"""The page of `compare --html`: what others named is shown in it, and not obeyed.

In a real browser it shows one definition, GPU and tolerance, sorts, opens at a link's view and fits
the window, from a file, without network, in both colour schemes.
"""

import base64
import gzip
import json
import re

import browser
import pytest
from moebench import cli
from moebench.core.printable import printable
from moebench.reports import html
from moebench.reports.figures import style
from moebench.results import measurements
from recorded import DEFAULT, trace, write

MARKUP = "<b>x</b></script><!--<script>\x1b[2J"

CHOICES = ("definition", "hardware", "tolerance")

# one worker makes it, and starts a browser
pytestmark = pytest.mark.xdist_group("page")


def page_of(tmp_path, *traces):
    rows, _ = measurements.load([write(tmp_path / "t.jsonl", traces)])
    return html.page(rows)


def inflated(page, name):
    """Return a text of the page that lies in it compressed."""
    text = re.search(f'^const {name} = "(.*)";$', page, re.M)[1]
    return gzip.decompress(base64.b64decode(text)).decode()


def results_of(page):
    """Return the rows, a dict each, and what else the page knows of them."""
    results = json.loads(inflated(page, "RESULTS"))
    rows = []
    for row in results["rows"]:
        rows.append(dict(zip(results["columns"], row, strict=True)))
    return rows, results


def test_markup_and_control_characters_of_others_are_data(tmp_path):
    theirs = trace("fast", 1).model_copy(update={"solution": MARKUP})
    page = page_of(tmp_path, theirs)
    assert MARKUP not in page
    assert page.count("</script>") == 1
    assert "\x1b" not in page + inflated(page, "RESULTS")

    rows, _ = results_of(page)
    assert [row["solution"] for row in rows] == [printable(MARKUP)]


@pytest.fixture(scope="module")
def page_of_all(tmp_path_factory):
    """The file of this repository's traces, which takes seconds to make."""
    file = tmp_path_factory.mktemp("page") / "page.html"
    assert cli.main(["compare", "--html", str(file)]) == 0
    return file


def test_a_page_of_all_records_is_under_3_mb(page_of_all):
    rows, _ = results_of(page_of_all.read_text())
    assert len(rows) > 3000
    assert page_of_all.stat().st_size < 3_000_000


def test_a_view_is_offered_of_what_was_recorded_relaxed_first(tmp_path):
    by_default = trace("fast", 1, tolerance=DEFAULT)
    elsewhere = trace("fast", 1, hardware="NVIDIA  H100 ")
    page = page_of(tmp_path, by_default, trace("fast", 1), elsewhere)
    rows, results = results_of(page)
    orders = results["orders"]
    assert orders["definition"] == ["full"]
    assert orders["hardware"] == ["NVIDIA H200", "NVIDIA  H100 "]
    assert orders["tolerance"][0] == "relaxed"

    assert {(row["hardware"], row["tolerance"]) for row in rows} == {
        ("NVIDIA H200", "default"),
        ("NVIDIA H200", "relaxed"),
        ("NVIDIA  H100 ", "relaxed"),
    }


def test_a_number_has_six_digits_and_none_is_null(tmp_path):
    (row,), _ = results_of(page_of(tmp_path, trace("fast", 1, 0.123456789)))
    assert row["ms"] == 0.123457
    assert row["tokens"] == 1

    (row,), _ = results_of(page_of(tmp_path, trace("fast", 1, status="RUNTIME_ERROR")))
    assert row["ms"] is None


def test_a_range_is_shown_of_several_runs_alone(tmp_path):
    fast = [trace("fast", 1, ms) for ms in (1.0, 1.5, 1.1)]
    rows, _ = results_of(page_of(tmp_path, *fast, trace("slow", 1, 2.0)))
    ranges = {}
    for row in rows:
        ranges[row["solution"]] = (row["runs"], row["ms_low"], row["ms_high"])
    assert ranges == {"fast": (3, 1.0, 1.5), "slow": (1, None, None)}


def test_a_solution_has_one_colour_on_the_page_and_in_the_figures(tmp_path):
    _, results = results_of(page_of(tmp_path, trace("mma_fused", 1)))
    light, _ = results["looks"]["mma_fused"]["colours"]
    assert light == style.look("mma_fused")["color"]


@pytest.fixture(scope="module")
def opened(page_of_all):
    """The page of this repository's traces in a browser, or a skip that says what is missing."""
    if browser.MISSING:
        pytest.skip(browser.MISSING)
    driver = browser.start(page_of_all.with_name("profile"))
    yield driver, f"file://{page_of_all}"
    driver.quit()


def open_page(opened, colours="light", width=1280, address=""):
    driver, url = opened
    browser.resize(driver, width, colours=colours)
    browser.requested(driver)
    driver.get("about:blank")
    driver.get(url + address)
    browser.WebDriverWait(driver, 20).until(
        lambda d: d.find_elements(browser.By.CSS_SELECTOR, ".scatterlayer .point")
    )
    return driver


def element(driver, selector):
    return driver.find_element(browser.By.CSS_SELECTOR, selector)


def column(driver, name):
    """Return the texts of a column of the table."""
    script = (
        "const at = [...document.querySelectorAll('th')].findIndex("
        "head => head.dataset.column === arguments[0]);"
        "return [...document.querySelectorAll('tbody tr')].map(row => row.cells[at].textContent)"
    )
    return driver.execute_script(script, name)


def chosen(driver):
    """Return the choices that the page shows."""
    return [element(driver, f"#{name}").get_property("value") for name in CHOICES]


def test_a_column_sorts_both_ways(opened):
    driver = open_page(opened)
    button = element(driver, "th[data-column=ms] button")

    button.click()
    up = [float(text) for text in column(driver, "ms")]
    button.click()
    down = [float(text) for text in column(driver, "ms")]
    assert len(up) > 100
    assert up == sorted(up)
    assert down == up[::-1]


@pytest.mark.parametrize(
    "colours", ["light", pytest.param("dark", marks=pytest.mark.slow)]
)
def test_it_needs_no_network_and_logs_no_error(opened, colours):
    driver = open_page(opened, colours)
    assert chosen(driver)[1:] == ["NVIDIA H200", "relaxed"]
    element(driver, "th[data-column=ms] button").click()

    schemes = {url.partition(":")[0] for url in browser.requested(driver)}
    assert schemes <= {"file", "data", "blob"}
    entries = driver.get_log("browser")
    errors = [entry for entry in entries if entry["level"] == "SEVERE"]
    assert errors == []


def test_a_link_opens_the_view_that_it_was_taken_from(opened):
    driver = open_page(opened)
    element(driver, "#definition option[value=qwen3-30b]").click()
    element(driver, "#tolerance option[value=contest]").click()
    element(driver, "th[data-column=matched] button").click()
    matched = column(driver, "matched")
    choices = ["qwen3-30b", "NVIDIA H200", "contest"]
    assert chosen(driver) == choices
    # of single calls
    assert driver.find_elements(browser.By.CSS_SELECTOR, "tr.tied") == []

    address = driver.execute_script("return location.hash")
    open_page(opened)
    assert chosen(driver) != choices
    open_page(opened, address=address)
    assert chosen(driver) == choices
    assert column(driver, "matched") == matched


def test_an_address_hides_a_solution_and_one_of_nothing_opens_the_first_view(opened):
    driver = open_page(
        opened, address="#hidden=hopper_fused&tolerance=none&sort=nothing"
    )
    assert chosen(driver)[1:] == ["NVIDIA H200", "relaxed"]
    visible = driver.execute_script(
        "return figure.data.map(curve => [curve.meta, curve.visible])"
    )
    assert dict(visible)["hopper_fused"] == "legendonly"
    assert dict(visible)["deepgemm"] is True


@pytest.mark.parametrize("width", [1280, 420])
def test_it_fits_into_the_window(opened, width):
    driver = open_page(opened, width=width)
    page_width, window = driver.execute_script(
        "const page = document.documentElement; return [page.scrollWidth, page.clientWidth]"
    )
    assert page_width == window
    table, room = driver.execute_script(
        "const box = document.querySelector('.wide'); return [box.scrollWidth, box.clientWidth]"
    )
    assert table == room
    assert "hopper_fused_invariant" in column(driver, "solution")
