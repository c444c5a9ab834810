"""The results page: complete, harmless, and usable in a real browser."""

import json
import math
import re

import pytest
from harness import cli
from harness.core import paths
from harness.results import comparison
from harness.results.model_names import layers
from recorded import DEFAULT, NAME, RECORDS, RELAXED, trace, trace_set, write

browser = pytest.importorskip("browser")  # which needs selenium
By, Keys, ActionChains, WebDriverWait = browser.By, browser.Keys, browser.ActionChains, browser.WebDriverWait
HOSTILE = "</script><script>window.hacked = 1</script><!--<script> & \u2028 'x' \"y\""
HOSTILE_NAME = '<img src=x onerror="window.hacked = 1">'
FAST = {1: 0.5, 7: 0.09, 80: 10.0, 901: 2.0, 14107: 30.0}  # in another order as text than as numbers
SLOW = {1: 1.0, 7: 2.0, 80: 3.0, 901: 4.0}

pytestmark = pytest.mark.xdist_group("results page")  # one worker makes the pages and starts the browser


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page whose traces hold every state that a cell may have."""
    root = tmp_path_factory.mktemp("page")
    traces = [trace("fast", t, ms, 20.0, log="fine" if t == 1 else "") for t, ms in FAST.items()]
    traces += [trace("slow", t, ms, 20.0) for t, ms in SLOW.items()]
    traces += [
        trace("slow", 14107, status="RUNTIME_ERROR", log=f"Traceback\n{HOSTILE}"),
        trace("slow", 16, status="INCORRECT_NUMERICAL", matched=0.25),
        trace("old", 7, 0.01, 20.0, sha1="0" * 40),
        trace(HOSTILE_NAME, 1, 0.7, 20.0),
        trace("fast", 1, 0.25, 20.0, tolerance=DEFAULT),
        trace("fast", 7, 0, tolerance=f"odd {HOSTILE}"),
    ]
    trace_set(root, traces, solutions=("fast", "slow"))
    assert cli.main(["page", "--traces", str(root), "--output", str(root / "page.html")]) == 0
    return root / "page.html"


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The page of this repository's traces, as `make page` writes it to docs/."""
    output = tmp_path_factory.mktemp("here") / "results.html"
    assert cli.main(["page", "--output", str(output)]) == 0
    return output


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    if browser.MISSING:
        pytest.skip(browser.MISSING)
    driver = browser.start(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.fixture
def opened(driver, page):
    """The page, reloaded at 1280 pixels; afterwards nothing may have gone wrong in the console."""
    driver.get("about:blank")
    driver.get_log("browser")
    browser.resize(driver, 1280)
    driver.get(page.as_uri())
    yield driver
    assert driver.get_log("browser") == []
    assert driver.execute_script("return window.hacked") is None


def find(driver, selector):
    """Displayed elements."""
    script = "return [...document.querySelectorAll(arguments[0])].filter((node) => node.checkVisibility())"
    return driver.execute_script(script, selector)


def choose(driver, name, value):
    driver.find_element(By.CSS_SELECTOR, f'input[name="{name}"][value="{value}"]').click()


def header(driver, name, table=".workloads"):
    return next(th for th in find(driver, f"{table} th[aria-sort]") if th.text.split("\n")[0].strip(" ↕↑↓") == name)


def column(driver, solution, figure="latency"):
    """The displayed run group's figures of a solution, from top to bottom; None where there is none."""
    cells = find(driver, f'.workloads td[data-solution="{solution}"]')
    return [float(text) if (text := cell.get_attribute(f"data-{figure}")) else None for cell in cells]


def figures(values):
    return [value for value in values if value is not None]


def trace_dialog(driver):
    """The dialog, as soon as the page has seen its new fragment."""
    return WebDriverWait(driver, 10).until(lambda _: find(driver, "dialog[open]"))[0]


def is_closed(driver):
    return WebDriverWait(driver, 10).until(lambda _: not find(driver, "dialog[open]") and "#" not in driver.current_url)


def trace_terms(driver):
    """What the open dialog says: term -> value."""
    dialog = trace_dialog(driver)
    terms = [node.text for node in dialog.find_elements(By.TAG_NAME, "dt")]
    return dict(zip(terms, [node.text for node in dialog.find_elements(By.TAG_NAME, "dd")], strict=True))


def data_of(page):
    """The figures that the page's script draws and shows."""
    text = page.read_text()
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_page_holds_every_recorded_figure(here):
    """A reader must see the figures that were recorded last, of every solution of the FP8 layers and no other."""
    data, text = data_of(here), here.read_text()
    built = comparison.recorded([layer.definition for layer in layers()])
    cells = [cell for group in built.groups for cell in group.cells]
    shown = [
        (point["latency_ms"], point["speedup"]) for g in data["groups"] for s in g["series"] for point in s["points"]
    ]
    assert sorted(shown) == sorted((cell.latency_ms, cell.speedup) for cell in cells if cell.latency_ms)
    assert {view["title"] for view in data["traces"].values()} == {f"{c.solution} at T = {c.seq_len}" for c in cells}
    assert len(data["traces"]) == len(cells) == text.count('<a class="figure"')
    assert data["solutions"] == sorted({cell.solution for cell in cells})
    for group in built.groups:
        for s in group.total.summaries:
            assert s.mean is None or f'<td data-value="{s.mean}"' in text


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    """The page of two models, and the other one's definition."""
    root = tmp_path_factory.mktemp("two")
    other = "moe_fp8_block_scale_renorm_topk8_e128_h2048_i768"
    traces = [trace("fast", t, 1.0, 20.0) for t in (1, 7)]
    traces += [trace("fast", t, 2.0, 20.0, definition=other) for t in (1, 8, 64)]
    file = write(root / "traces.jsonl", traces)
    assert cli.main(["page", "--traces", str(file), "--output", str(root / "page.html")]) == 0
    return root / "page.html", other


def test_a_page_of_one_model_has_no_choice_of_it(page, of_two):
    """A choice of one is a riddle; the main job is what a reader of several meets first."""
    assert 'name="definition"' not in page.read_text()
    text = of_two[0].read_text()
    choices = re.findall(r'name="definition" value="(\w+)"( checked)?>([^<]+)<', text)
    assert choices == [(NAME, " checked", "DeepSeek-V3 EP8"), (of_two[1], "", "Qwen3-30B EP1")]
    assert set(re.findall(r'<section [^>]*data-definition="(\w+)"', text)) == {NAME, of_two[1]}
    assert text.count("<section") == len(re.findall(r'<section [^>]*data-definition="', text))


def test_a_model_is_chosen(driver, of_two):
    """Sections of the other models are hidden, and a link to a run group of one shows it."""
    page, other = of_two
    driver.get(page.as_uri())
    shown = [node.get_attribute("data-definition") for node in find(driver, "main section")]
    assert set(shown) == {NAME} and len(find(driver, ".workloads tbody tr")) == 19
    choose(driver, "definition", other)
    assert {node.get_attribute("data-definition") for node in find(driver, "main section")} == {other}
    assert len(find(driver, ".workloads tbody tr")) == 12
    group = re.search(rf'id="(group-\w+)"[^>]*data-definition="{NAME}"', page.read_text())[1]
    driver.execute_script("location.hash = arguments[0]", group)
    WebDriverWait(driver, 10).until(lambda _: find(driver, f"#{group}"))
    assert {node.get_attribute("data-definition") for node in find(driver, "main section")} == {NAME}


def test_page_asks_for_nothing(page):
    """It is to work without a network: no address but the name of SVG, no import, and a policy that forbids both."""
    text = page.read_text()
    assert set(re.findall(r"\w+://[^\"'\s<]*", text)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in text and "url(" not in text
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
    assert "default-src 'none'" in policy and "unsafe" not in policy


def test_what_a_trace_says_cannot_end_the_script(page):
    """A log of a user's solution is data: the page has its own two script elements and no others."""
    text = page.read_text()
    assert len(re.findall(r"<script", text, re.IGNORECASE)) == len(re.findall(r"</script", text, re.IGNORECASE)) == 2
    assert "<img" not in text and "<!--" not in text
    data = data_of(page)
    assert f"Traceback\n{HOSTILE}" in [found["log"] for found in data["traces"].values()]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--traces", "nowhere", "--output", "page.html"], "nowhere: no such file or folder"),
        (["--traces", "nowhere"], "--output: want a file"),
    ],
)
def test_bad_input_gets_one_line(tmp_path, monkeypatch, capsys, args, message):
    """And the page in docs/ is never replaced by one of other traces."""
    monkeypatch.setattr(paths, "RESULTS_PAGE", tmp_path / "results.html")
    assert cli.main(["page", *args]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and message in err and not paths.RESULTS_PAGE.exists()


@pytest.mark.parametrize("width", [1280, 400])
def test_page_of_this_repository_loads_alone(driver, here, width):
    """What a reader downloads: no console message, no request but the file, no page wider than the window."""
    driver.get("about:blank")
    browser.resize(driver, width)
    driver.get_log("browser")
    browser.requested(driver)
    driver.get(here.as_uri())
    assert driver.get_log("browser") == []
    assert {url for url in browser.requested(driver) if not url.startswith("data:")} == {here.as_uri()}
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    section = find(driver, "section.group")[0]  # the machine that all solutions were measured on comes first
    counts = [len(section.find_elements(By.CSS_SELECTOR, s)) for s in (".workloads tbody tr", ".curve.series-bound")]
    assert counts == [19, 2], "19 workloads, and the bound in the legend and the plot"


def test_sorts_by_number_and_back(opened):
    """Text would put 10 before 2; workloads without a figure stay last either way."""
    before = column(opened, "fast")
    assert header(opened, "T").get_attribute("aria-sort") == "ascending"
    for direction, backwards in (("ascending", False), ("descending", True)):
        header(opened, "fast").find_element(By.TAG_NAME, "button").click()
        after = column(opened, "fast")
        assert figures(after) == sorted(FAST.values(), reverse=backwards) == after[: len(FAST)] != figures(before)
        assert header(opened, "fast").get_attribute("aria-sort") == direction
        assert header(opened, "T").get_attribute("aria-sort") == "none"


def test_sorts_from_the_keyboard(opened):
    for key, backwards in ((Keys.ENTER, False), (Keys.SPACE, True)):
        header(opened, "fast").find_element(By.TAG_NAME, "button").send_keys(key)
        assert figures(column(opened, "fast")) == sorted(FAST.values(), reverse=backwards)


def test_another_figure_is_shown_and_sorted_by(opened):
    header(opened, "fast").find_element(By.TAG_NAME, "button").click()
    choose(opened, "metric", "speedup")
    speedups = figures(column(opened, "fast", "speedup"))
    assert speedups == sorted(20 / ms for ms in FAST.values())
    shown, beside = (find(opened, f'td[data-solution="fast"] .m-{kind}')[0] for kind in ("speedup", "latency"))
    assert (shown.text, beside.text) == ("0.7x", "30.000") and shown.location["x"] < beside.location["x"]


def test_filters_by_solution(opened):
    points = len(find(opened, ".point"))
    choose(opened, "solution", "slow")
    assert column(opened, "slow") == [] and figures(column(opened, "fast")) == list(FAST.values())
    assert not [node for node in find(opened, "main [data-solution]") if node.get_attribute("data-other") == "slow"]
    assert len(find(opened, ".point")) == points - len(SLOW)
    assert "3 of 4 solutions" in opened.find_element(By.ID, "shown").text


def test_filters_by_regime(opened):
    for regime in ("17 to 100", "101 to 1000", "over 1000"):
        choose(opened, "regime", regime)
    lengths = [int(node.text) for node in find(opened, ".workloads tbody th")]
    assert lengths == [1, 7, 14, 15, 16]
    assert {node.get_attribute("data-regime") for node in find(opened, ".summary tbody tr")} == {"", "T <= 16"}
    drawn = {re.search(r"T = (\d+)", node.get_attribute("aria-label"))[1] for node in find(opened, ".point")}
    assert drawn == {"1", "7"}


def test_filters_by_tolerance(opened):
    assert [node.get_attribute("data-tolerance") for node in find(opened, "section.group")] == ["relaxed"]
    choose(opened, "tolerance", "default")
    assert figures(column(opened, "fast")) == [0.25]
    choose(opened, "tolerance", "")
    assert len(find(opened, "section.group")) == 3


def test_link_to_a_hidden_run_group_shows_it(opened):
    opened.find_element(By.LINK_TEXT, "default").click()
    WebDriverWait(opened, 10).until(lambda _: find(opened, 'section.group[data-tolerance="default"]'))
    assert len(find(opened, "section.group")) == 1


def test_states_are_shown_in_words(opened):
    """Colour alone means nothing to a reader who does not see it, or on paper."""

    def words(solution, seq_len):
        row = next(r for r in find(opened, ".workloads tbody tr") if r.text.split()[0] == str(seq_len))
        return row.find_element(By.CSS_SELECTOR, f'td[data-solution="{solution}"]').text

    assert "★" in words("fast", 7) and "0.090" in words("fast", 7)
    assert "stale" in words("old", 7) and "★" not in words("old", 7)
    assert words("slow", 14107) == "runtime error"
    assert "incorrect numerical" in words("slow", 16) and "matched 0.2500" in words("slow", 16)
    assert words("fast", 14) == "not run"
    choose(opened, "tolerance", "")
    assert "passed, not timed" in opened.find_element(By.TAG_NAME, "main").text


def test_cell_shows_its_trace(opened, page):
    """From a figure to the run: what was measured, how, where, from which source; and back."""
    (link,) = find(opened, '.workloads td[data-latency="0.5"] a')
    link.click()
    assert trace_dialog(opened).find_element(By.TAG_NAME, "h2").text == "fast at T = 1"
    found = trace_terms(opened)
    wanted = {
        "Status": "PASSED",
        "Latency": "0.5000 ms",
        "Reference": "20.000 ms",
        "Speed-up": "40.00x",
        "Matched ratio": "0.990000",
        "Maximum absolute error": "3",
        "Maximum relative error": "2",
        "Matched at default": "0.990000",
        "Tolerance": RELAXED,
        "Protocol": "once",
        "Timestamp": "2026-01-01T00:00:00",
        "Command": "python x",
        "torch": "2.11",
        "hardware": "NVIDIA H200",
    }
    assert found.items() >= wanted.items()
    recorded = comparison.build([page.parent]).sections
    cell = next(g for s in recorded for g in s.groups if g.tolerance == RELAXED).rows[0].cells["fast"]
    assert (found["SHA-1"], found["Recorded in"]) == (cell.solution_sha1, cell.recorded_in)
    assert found["State"].startswith("current") and find(opened, "dialog pre")[0].text == "fine"
    find(opened, "dialog .close")[0].click()
    assert is_closed(opened)
    assert opened.switch_to.active_element == link


def test_trace_opens_from_its_address(opened, page):
    """A link that was sent to somebody else leads to the trace; a hostile log is shown as what it is."""
    row = next(r for r in find(opened, ".workloads tbody tr") if r.text.startswith("14107"))
    address = row.find_element(By.CSS_SELECTOR, 'td[data-solution="slow"] a').get_attribute("href")
    opened.get("about:blank")
    opened.get(address)
    assert trace_terms(opened)["Status"] == "RUNTIME_ERROR"
    (log,) = find(opened, "dialog pre")
    assert log.get_property("textContent") == f"Traceback\n{HOSTILE}"
    ActionChains(opened).send_keys(Keys.ESCAPE).perform()
    assert is_closed(opened)


def test_unknown_address_is_no_error(opened, page):
    for fragment in ("trace-%E0%A4%A", "trace-of-nothing", "constructor"):
        opened.get("about:blank")
        opened.get(f"{page.as_uri()}#{fragment}")
        assert find(opened, "dialog[open]") == [] and find(opened, ".point")


def test_hostile_name_is_only_a_name(opened):
    assert f"{HOSTILE_NAME} (0 of 19 passed)" in [node.text for node in find(opened, ".legend button")]
    assert opened.find_elements(By.TAG_NAME, "img") == []


def drawn(driver, solution):
    """Where the displayed plot has a solution's points: T -> (x, y)."""
    points = {}
    for point in find(driver, ".point"):
        if found := re.match(rf"{solution} at T = ([\d,]+):", point.get_attribute("aria-label")):
            place = re.findall(r"[\d.]+", point.get_attribute("transform"))
            points[int(found[1].replace(",", ""))] = tuple(map(float, place))
    return points


def test_plot_shows_values_and_leads_to_traces(opened):
    choose(opened, "plot", "latency")
    curve = [point for point in find(opened, ".point") if point.get_attribute("aria-label").startswith("fast at")]
    assert len(curve) == len(FAST)
    ActionChains(opened).move_to_element(curve[1]).perform()
    (tip,) = find(opened, ".tip")
    for text in ("T = 7", "0.090 ms", "2.000 ms", "0.010 ms (stale)"):
        assert text in tip.text
    opened.execute_script("arguments[0].focus()", curve[1])
    ActionChains(opened).send_keys(Keys.ARROW_RIGHT).perform()
    assert opened.switch_to.active_element.accessible_name.startswith("fast at T = 80: 10.000 ms")
    ActionChains(opened).send_keys(Keys.ENTER).perform()
    assert trace_terms(opened)["Latency"] == "10.0000 ms"


@pytest.mark.parametrize("plot", ["latency", "speedup"])
def test_workloads_stand_at_equal_distances(opened, plot):
    choose(opened, "plot", plot)
    places = sorted(workload.axes["seq_len"] for workload in RECORDS)
    found = drawn(opened, "fast")
    assert sorted(found) == sorted(FAST)
    (one, _), (last, _) = found[1], found[14107]
    for t, (x, _) in found.items():
        assert (x - one) / (last - one) == pytest.approx(places.index(t) / (len(places) - 1), abs=0.002)


def test_times_the_bound_is_linear_and_numbers_stand_for_outliers(driver, here):
    """The default view of traces with a bound. A point at 56 must not flatten those that lie between 1 and 2."""
    browser.resize(driver, 1280)
    driver.get(here.as_uri())
    group = next(group for group in comparison.recorded([NAME]).groups if group.tolerance_name == "relaxed")
    times = {cell.seq_len: cell.over_bound for cell in group.cells if cell.solution == "flashinfer_cutlass"}
    numbers = [node.text for node in find(driver, ".point.series-slate text")]
    above = sorted(times.values())[-len(numbers) :]
    assert sorted(float(text.removesuffix(" ↑")) for text in numbers) == [float(f"{value:.2g}") for value in above]
    inside = sorted((times[t], y) for t, (_, y) in drawn(driver, "flashinfer_cutlass").items() if times[t] < above[0])
    (a, low), (b, middle), (c, high) = inside[0], inside[6], inside[-1]
    assert (low - high) / (low - middle) == pytest.approx((c - a) / (b - a), rel=0.02)
    assert "bound" in [node.text for node in find(driver, ".plot > text.name")]


@pytest.mark.parametrize("plot, values", [("latency", FAST), ("speedup", {t: 20 / ms for t, ms in FAST.items()})])
def test_other_views_are_logarithmic(opened, plot, values):
    """Equal ratios are equal distances."""
    choose(opened, "plot", plot)
    one, seven, eighty = (drawn(opened, "fast")[t][1] for t in (1, 7, 80))
    wanted = math.log(values[80] / values[1]) / math.log(values[7] / values[1])
    assert (eighty - one) / (seven - one) == pytest.approx(wanted, rel=0.02)


def test_names_at_the_ends_of_curves_do_not_touch(opened):
    """In the colour of their curves; a narrow screen has the legend only."""
    names = find(opened, ".plot > text.name")
    assert {name.text for name in names} == {"fast", "slow", "old", HOSTILE_NAME}
    tops = sorted(name.rect["y"] for name in names)
    assert all(b - a >= 10 for a, b in zip(tops, tops[1:], strict=False))
    browser.resize(opened, 400)
    assert WebDriverWait(opened, 10).until(lambda _: not find(opened, ".plot > text.name"))


def test_legend_hides_a_curve(opened):
    points = len(find(opened, ".point"))
    (button,) = find(opened, '.legend button[data-curve="slow"]')
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert len(find(opened, ".point")) == points - len(SLOW)
    assert figures(column(opened, "slow")) == list(SLOW.values()), "the table keeps it"
    button.click()
    assert len(find(opened, ".point")) == points


def test_narrow_screen_scrolls_tables_not_the_page(opened):
    browser.resize(opened, 400)
    assert opened.execute_script("return document.documentElement.scrollWidth") <= 400
    find(opened, ".workloads td.best a")[0].click()
    assert trace_dialog(opened).size["width"] <= 400


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_text_is_legible(opened, page, colours):
    """Contrast of at least 4.5 for text, and 3 for curves, on their own background."""
    browser.resize(opened, 1280, colours=colours)
    script = """
      const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
      const light = (c) => c.slice(0, 3).map((v) => v / 255)
        .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
        .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
      const behind = (node) => {
        for (; node; node = node.parentElement) {
          const colour = rgb(getComputedStyle(node).backgroundColor);
          if (colour.length === 3 || colour[3] > 0) return colour;
        }
      };
      return arguments[0].map(([selector, property]) => {
        const node = document.querySelector(selector);
        const [a, b] = [light(rgb(getComputedStyle(node)[property])), light(behind(node))];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      });
    """
    text = ["h1", ".note.muted", ".tag.failed", ".tag.stale", ".tag.skipped", "td.best .m-latency", ".choice a"]
    lines = [f".curve.{colour}" for colour in {s["colour"] for s in data_of(page)["groups"][0]["series"]}]
    ratios = opened.execute_script(script, [[s, "color"] for s in text] + [[s, "stroke"] for s in lines])
    assert min(ratios[: len(text)]) >= 4.5 and min(ratios[len(text) :]) >= 3
    page = opened.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (page == "rgb(255, 255, 255)") == (colours == "light")
