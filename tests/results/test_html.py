"""The page of `compare --html` in a real browser: from a file, without network, in both colour schemes."""

import math

import browser
import pytest
from harness import cli


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """The page of this repository's traces in a browser, or a skip that says what is missing."""
    if browser.MISSING:
        pytest.skip(browser.MISSING)
    folder = tmp_path_factory.mktemp("page")
    assert cli.main(["compare", "--html", str(folder / "page.html")]) == 0
    driver = browser.start(folder / "profile")
    yield driver, f"file://{folder}/page.html"
    driver.quit()


def open_page(opened, colours):
    driver, url = opened
    browser.resize(driver, 1200, colours=colours)
    browser.requested(driver)
    driver.get(url)
    browser.WebDriverWait(driver, 20).until(lambda d: d.find_elements(browser.By.CSS_SELECTOR, ".scatterlayer .point"))
    return driver


def hovered(driver, point):
    browser.ActionChains(driver).move_to_element(point).perform()
    labels = browser.WebDriverWait(driver, 10).until(
        lambda d: d.find_elements(browser.By.CSS_SELECTOR, ".hoverlayer .hovertext")
    )
    return labels[0].text


def most_alone(driver):
    """Trace and number of the point that is farthest from its neighbours, where no other one answers the mouse."""
    script = "return [...document.querySelectorAll('.scatterlayer .trace')].map(t => [...t.querySelectorAll('.point')]"
    rects = driver.execute_script(script + ".map(p => [p.getBoundingClientRect().x, p.getBoundingClientRect().y]))")
    at = [(trace, n, *place) for trace, points in enumerate(rects) for n, place in enumerate(points)]
    return max(at, key=lambda p: min(math.dist(p[2:], other[2:]) for other in at if other[:2] != p[:2]))[:2]


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_a_point_tells_time_tolerance_date_and_source(opened, colours):
    driver = open_page(opened, colours)
    trace, n = most_alone(driver)
    data = driver.execute_script("return FIGURE.data.filter(t => t.meta.section === chosen.value)")[trace]
    solution, ms, tolerance, date, sha1, state, _ = data["customdata"][n]
    traces = driver.find_elements(browser.By.CSS_SELECTOR, ".scatterlayer .trace")
    told = hovered(driver, traces[trace].find_elements(browser.By.CSS_SELECTOR, ".point")[n])
    for part in (solution, f"{ms:.4f}", tolerance, date, sha1, state):
        assert part in told
    assert {url.partition(":")[0] for url in browser.requested(driver)} <= {"file", "data", "blob"}
    assert not [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]


def test_a_heading_sorts_both_ways_and_a_section_shows_its_rows(opened):
    driver = open_page(opened, "light")
    heads = [head.text for head in driver.find_elements(browser.By.TAG_NAME, "th")]
    at = heads.index("ms")
    cell = f"return [...document.querySelectorAll('tbody tr:not([hidden])')].map(r => r.cells[{at}].dataset.value)"
    driver.find_elements(browser.By.CSS_SELECTOR, "th button")[at].click()
    up = [float(value) for value in driver.execute_script(cell) if value]
    driver.find_elements(browser.By.CSS_SELECTOR, "th button")[at].click()
    down = [float(value) for value in driver.execute_script(cell) if value]
    assert up == sorted(up) and down == up[::-1] and len(up) > 100
    driver.find_elements(browser.By.TAG_NAME, "option")[-1].click()
    assert len([value for value in driver.execute_script(cell) if value]) != len(up)
