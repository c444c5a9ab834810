"""The page of `compare --html` in a real browser: from a file, without network, in both colour
schemes.
"""

import browser
import pytest
from moebench import cli


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
    browser.WebDriverWait(driver, 20).until(
        lambda d: d.find_elements(browser.By.CSS_SELECTOR, ".scatterlayer .point")
    )
    return driver


@pytest.mark.parametrize("colours", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_it_needs_no_network_sorts_both_ways_and_shows_a_section(opened, colours):
    driver = open_page(opened, colours)
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
    assert {url.partition(":")[0] for url in browser.requested(driver)} <= {"file", "data", "blob"}
    assert not [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
