"""A report in a real browser: every section, every control, both themes, no error, no request."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_studies import gpu_study
from watching import Watch

from autotune.core.paths import CacheLocations
from autotune.operations.problem import Gemm
from autotune.reporting import Finder, write_page
from autotune.research.sweeps import sweep
from autotune.targets.registry import rescan

sys.path.append(str(Path(__file__).parents[1] / "toy"))

from installed import install

pytestmark = [pytest.mark.browser, pytest.mark.slow]

WAIT_S = 60


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of a sweep that was really made, beside a study with all that a GPU's trials say."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "site").mkdir()
    cache = folder / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(install(folder / "site")))
        patch.delitem(sys.modules, "toy_target", raising=False)
        rescan()
        result = sweep(Gemm(40, 30, 20), target="toy", cache=cache)
        swept = Finder(CacheLocations.at(cache)).find(result.study)
        assert len(swept.ranked) == len(result.measured) > 0
        path = folder / "report <b>&.html"
        write_page(path, [gpu_study("gpu </script>", 150), swept])
        yield path
    rescan()


@pytest.fixture(scope="module")
def opened(browser: Any, page: Path) -> Iterator[Any]:
    """The page, opened once; what it said and asked for is looked at when all is done."""
    watch = Watch(browser, page)
    yield browser
    assert watch.said() == []
    assert watch.asked() == []


def until(driver: Any, script: str, *arguments: Any) -> Any:
    """What a script returns once that is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, WAIT_S).until(lambda d: d.execute_script(script, *arguments))


def drawn(driver: Any, figure: str, after: int = 0) -> int:
    """Wait for a chart to be drawn once more than it was, and how often it has been."""
    script = (
        "const place = document.querySelector(`#${arguments[0]} .chart`);"
        "place.scrollIntoView({behavior: 'instant', block: 'center'});"
        "const times = Number(place.dataset.drawn || 0);"
        "return times > arguments[1] && place.querySelector('svg.marks') ? times : null;"
    )
    return int(until(driver, script, figure, after))


def choose(driver: Any, figure: str, control: str, place: int) -> None:
    driver.execute_script(
        "const select = document.querySelector(`#${arguments[0]} [data-control=${arguments[1]}]`);"
        "select.selectedIndex = arguments[2];"
        "select.dispatchEvent(new Event('change', {bubbles: true}));",
        figure,
        control,
        place,
    )


def cells(driver: Any, table: str) -> list[list[str]]:
    script = (
        "return [...document.getElementById(arguments[0]).tBodies[0].rows].map("
        "row => [...row.cells].map(cell => cell.textContent));"
    )
    found: list[list[str]] = driver.execute_script(script, table)
    return found


def test_every_section_is_reached_and_every_chart_drawn(opened: Any) -> None:
    from selenium.webdriver.common.by import By

    links = opened.find_elements(By.CSS_SELECTOR, "nav a")
    assert len(links) == 12
    opened.execute_script("document.documentElement.style.scrollBehavior = 'auto'")
    for link in links:
        section = link.get_attribute("hash")[1:]
        link.click()
        until(opened, "return location.hash === '#' + arguments[0]", section)
        visible = (
            "const box = document.getElementById(arguments[0]).getBoundingClientRect();"
            "return box.top < innerHeight && box.bottom > 0;"
        )
        assert until(opened, visible, section)
        for figure in opened.find_elements(By.CSS_SELECTOR, f"#{section} figure"):
            assert drawn(opened, figure.get_attribute("id")) >= 1
    marks = opened.find_elements(By.CSS_SELECTOR, "nav a[aria-current]")
    assert len(marks) == 1
    charts = "return document.querySelectorAll('.chart svg.marks').length"
    assert opened.execute_script(charts) == len(opened.find_elements(By.CSS_SELECTOR, "figure"))


def test_a_table_is_sorted_by_its_buttons(opened: Any) -> None:
    press = (
        "const head = [...document.querySelectorAll(`#${arguments[0]} th`)][arguments[1]];"
        "head.firstElementChild.focus(); head.firstElementChild.click();"
        "return head.getAttribute('aria-sort');"
    )
    names = [row[2] for row in cells(opened, "winner-table")]
    assert opened.execute_script(press, "winner-table", 2) == "ascending"
    rising = [row[2] for row in cells(opened, "winner-table")]
    assert rising == sorted(names, key=lambda text: int(text.replace(",", "")))
    assert opened.execute_script(press, "winner-table", 2) == "descending"
    assert [row[2] for row in cells(opened, "winner-table")] == rising[::-1] or sorted(
        rising
    ) == sorted(names)
    # Another column takes over.
    assert opened.execute_script(press, "winner-table", 3) == "ascending"
    words = [row[3] for row in cells(opened, "winner-table")]
    assert sorted(words) == sorted(row[3] for row in cells(opened, "winner-table"))
    sorted_heads = "return document.querySelectorAll('#winner-table th[aria-sort]').length"
    assert opened.execute_script(sorted_heads) == 1
    assert "sorted by" in opened.execute_script(
        "return document.getElementById('spoken').textContent"
    )


def test_the_theme_is_switched_and_charts_follow(opened: Any) -> None:
    from selenium.webdriver.common.by import By

    colors = "return getComputedStyle(document.body).backgroundColor"
    before, times = opened.execute_script(colors), drawn(opened, "progress-chart")
    text = "#progress-chart .chart svg.marks text"
    label = f"return document.querySelector('{text}').getAttribute('fill')"
    ink = opened.execute_script(label)
    button = opened.find_element(By.ID, "theme")
    opened.execute_script("arguments[0].scrollIntoView()", button)
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert opened.execute_script(colors) != before
    times = drawn(opened, "progress-chart", after=times)
    assert opened.execute_script(label) != ink
    opened.execute_script("arguments[0].click()", button)
    assert opened.execute_script(colors) == before
    drawn(opened, "progress-chart", after=times)


def test_two_parameters_are_chosen_in_the_heat_map(opened: Any) -> None:
    study = gpu_study("gpu", 150)
    times = drawn(opened, "heat-chart")
    choose(opened, "heat-chart", "x", 1)
    times = drawn(opened, "heat-chart", after=times)
    choose(opened, "heat-chart", "y", 2)
    drawn(opened, "heat-chart", after=times)
    family = study.ranked[0].family
    titles = opened.execute_script(
        "return [...document.querySelectorAll('#heat-chart .chart svg .role-axis-title text')]"
        ".map(each => each.textContent)"
    )
    assert {"tx", "order"} <= set(titles)
    expected: dict[tuple[str, str], tuple[float, int]] = {}
    for trial in study.ranked:
        if trial.family == family:
            at = (str(trial.configuration["tx"]), str(trial.configuration["order"]))
            best, count = expected.get(at, (study.rate(trial.value or 1.0) or 0.0, 0))
            expected[at] = (best, count + 1)
    found = {(x, y): (best, int(count)) for x, y, best, count in cells(opened, "heat-table")}
    assert found.keys() == expected.keys()
    for at, (text, count) in found.items():
        assert count == expected[at][1]
        assert float(text.replace(",", "")) == pytest.approx(expected[at][0], rel=1e-3)


def test_other_choices_redraw_their_charts(opened: Any) -> None:
    for figure, control, place in (
        ("parallel-chart", "share", 0),
        ("parallel-chart", "study", 2),
        ("heat-chart", "study", 2),
        ("progress-chart", "variant", 1),
        ("resources-chart", "variant", 3),
        ("winner-chart", "variant", 1),
    ):
        times = drawn(opened, figure)
        choose(opened, figure, control, place)
        assert drawn(opened, figure, after=times) > times


def test_it_is_readable_on_a_phone(opened: Any) -> None:
    size = opened.get_window_size()
    opened.set_window_size(500, 900)  # Chromium's narrowest
    wide = (
        "return [...document.querySelectorAll('main, section, .panel, .card, header')]"
        ".filter(each => each.getBoundingClientRect().right > innerWidth + 1)"
        ".map(each => each.id || each.className)"
    )
    try:
        assert opened.execute_script(wide) == []
    finally:
        opened.set_window_size(size["width"], size["height"])


def test_focus_is_seen_and_everything_is_reached_with_the_keyboard(opened: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    skip, *_ = opened.find_elements(By.CSS_SELECTOR, "a, button, select, summary, [tabindex]")
    assert skip.get_attribute("class") == "skip"
    opened.execute_script("scrollTo(0, 0); arguments[0].focus()", skip)
    skip.send_keys(Keys.TAB)
    assert opened.switch_to.active_element.get_attribute("id") == "theme"
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert opened.execute_script(outline) == "solid"
    named = (
        "return [...document.querySelectorAll('button, select, a, summary, [tabindex]')]"
        ".filter(each => !(each.textContent.trim() || each.getAttribute('aria-label') "
        "|| each.title || each.closest('label'))).map(each => each.outerHTML)"
    )
    assert opened.execute_script(named) == []
