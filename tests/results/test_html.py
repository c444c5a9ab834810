"""The page of `compare --html` in a real browser: from a file, without network, in both colour schemes."""

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


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_a_point_tells_time_tolerance_date_and_source(opened, colours):
    driver = open_page(opened, colours)
    data = driver.execute_script("return FIGURE.data.find(t => t.meta.section === chosen.value)")
    solution, ms, tolerance, date, sha1, state, _ = data["customdata"][0]
    told = hovered(driver, driver.find_element(browser.By.CSS_SELECTOR, ".scatterlayer .trace .point"))
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
