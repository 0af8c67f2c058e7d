"""report.html in a real browser: content, sorting, filtering, folding, keyboard, phone, dark, and nothing hostile runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from llm_perf_opt.analysis.origin import Side
from llm_perf_opt.compare.compare import compare
from llm_perf_opt.compare.page import comparison_html
from llm_perf_opt.reporting.report import report_html
from llm_perf_opt.summary import Summary
from tests.unit.compare.test_compare import document
from tests.unit.report_summaries import HOSTILE, bare_summary, full_summary, hostile_summary

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.needs("chromium")

NARROW = {"viewport": {"width": 360, "height": 740}}


class Visit:
    """A page with everything it complained about and asked for."""

    def __init__(self, browser: Browser, folder: Path, summary: Summary, **options: Any) -> None:
        path = folder / "report.html"
        path.write_text(report_html(summary), encoding="utf-8")
        self.page: Page = browser.new_page(**options)
        self.trouble: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.trouble.append(message.text))
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("dialog", lambda dialog: self.trouble.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def rows(self, table: str) -> list[str]:
        """Return the first code cell of every visible row."""
        found: list[str] = self.page.locator(f"#{table} tbody tr:not(.detail):visible code").all_inner_texts()
        return found


@pytest.fixture
def full(browser: Browser, tmp_path: Path) -> Iterator[Visit]:
    visit = Visit(browser, tmp_path, full_summary(8))
    yield visit
    assert visit.trouble == []
    assert [url for url in visit.requests if not url.startswith(("file:", "data:"))] == []
    visit.page.close()


def test_content_is_there_in_reading_order(full: Visit) -> None:
    headings = full.page.locator("h1, h2")
    assert headings.evaluate_all(
        "all => all.map(each => each.id || each.closest('details[id], section').id)"
    ) == [
        "summary", "verdicts", "findings", "trust", "time", "budget", "hardware", "model", "modules", "timeline", "kernels",
        "operators", "what-if", "environment", "stages", "methods",
    ]  # fmt: skip
    texts = headings.all_inner_texts()
    assert texts[0] == "Test-OCR" and all(texts) and len(set(texts)) == len(texts)
    # The fourth is about the measurement: it stands in the strip, and nothing is folded.
    assert full.page.locator("article.finding:visible").count() == 3
    assert full.page.locator("#summary details.more").count() == 0
    assert "noisy" in full.page.locator("#trust").inner_text()
    # One sample, every sample, budget, two rooflines, FLOPs by component, timeline, two of other devices.
    assert full.page.locator(".chart svg:visible").count() == 9


def test_kernels_sort_both_ways_and_unknown_stays_last(full: Visit) -> None:
    assert full.rows("table-kernels")[0] == "kernel 0"
    total = full.page.locator("#table-kernels th button", has_text="total")
    total.click()
    assert full.rows("table-kernels") == [f"kernel {n}" for n in range(8)]
    total.click()
    assert full.rows("table-kernels") == [f"kernel {n}" for n in reversed(range(8))]
    assert full.page.locator("#table-kernels th[aria-sort=ascending]").count() == 1
    intensity = full.page.locator("#table-kernels th button", has_text="FLOP/B")
    intensity.click()
    assert full.rows("table-kernels")[:3] == ["kernel 2", "kernel 1", "kernel 0"]
    intensity.click()
    assert full.rows("table-kernels")[:3] == ["kernel 0", "kernel 1", "kernel 2"]


def test_kernels_filter_by_text_and_family_and_unfold(full: Visit) -> None:
    page = full.page
    page.locator("#table-kernels [data-filter]").fill("T3::params")
    assert full.rows("table-kernels") == ["kernel 3"]
    assert page.locator("#table-kernels [data-count]").inner_text() == "1 of 8 rows"
    page.locator("#table-kernels [data-filter]").fill("")
    page.locator("#table-kernels select[data-group]").select_option("attention")
    assert full.rows("table-kernels") == ["kernel 2", "kernel 5"]
    fold = page.locator("#table-kernels").get_by_role("button", name="kernel 2")
    fold.click()
    assert fold.get_attribute("aria-expanded") == "true"
    detail = page.locator("#table-kernels tr.detail:visible")
    assert detail.count() == 1
    assert "void kernel_2<int, float, (bool)1>(T2::Params)" in detail.inner_text()
    verdict = full_summary(8).kernels[2].vendor_verdict
    assert verdict and verdict in detail.inner_text()
    fold.click()
    assert page.locator("#table-kernels tr.detail:visible").count() == 0


def test_module_tree_folds_filters_and_sorts_inside_its_branches(full: Visit) -> None:
    page = full.page
    assert len(full.rows("table-modules")) == 12
    page.locator("#table-modules select[data-group]").select_option("decode")
    assert full.rows("table-modules") == ["model", "layers", "0", "1", "norm", "lm_head"]
    layers = page.locator("#table-modules tr:visible").get_by_role("button", name=re.compile("layers$"))
    layers.click()
    assert full.rows("table-modules") == ["model", "layers", "norm", "lm_head"]
    layers.click()
    page.locator("#table-modules th button", has_text="FLOPs").click()
    assert full.rows("table-modules") == ["model", "layers", "1", "0", "norm", "lm_head"]
    page.locator("#table-modules select[data-depth]").select_option("1")
    assert full.rows("table-modules") == ["model", "lm_head"]
    page.locator("#table-modules [data-filter]").fill("model.layers.1")
    assert full.rows("table-modules") == ["model", "layers", "1"]


def test_components_show_when_sources_disagree(full: Visit) -> None:
    row = full.page.locator("#table-components tr", has_text="language_model").first
    assert re.search(r"hooks \(\w+\)", row.inner_text())
    assert not re.search(
        r"hooks \(", full.page.locator("#table-components tr", has_text="sam").first.inner_text()
    )
    full.page.get_by_role("button", name="language_model").click()
    shown = full.page.locator("#table-components tr.detail:visible").inner_text()
    assert "120 ms" in shown and "90.0 ms" in shown


@pytest.mark.parametrize("way", ["hover", "focus"])
def test_roofline_marks_name_their_kernel(full: Visit, way: str) -> None:
    marks = full.page.locator(".desk circle[data-kernel='1']")
    getattr(marks, way)()
    shown = full.page.locator("#kernel-point").inner_text()
    assert "kernel 1" in shown and "void kernel_1<int, float, (bool)1>(T1::Params)" in shown
    getattr(full.page.locator(".desk circle[data-name='decode']"), way)()
    assert "launch-bound" in full.page.locator("#phase-point").inner_text()


def test_keyboard_reaches_and_works_everything(full: Visit) -> None:
    page = full.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.evaluate(
        """() => { window.reached = []; addEventListener("focusin", ({target: e}) => reached.push(e.id
        || e.dataset.kernel && "mark " + e.dataset.kernel
        || e.className && String(e.className) + " " + (e.closest(".table") || {id: ""}).id || e.tagName)) }"""
    )
    while page.evaluate("document.activeElement !== document.body") and page.evaluate("reached.length < 600"):
        for _ in range(25):
            page.keyboard.press("Tab")
    reached = set(page.evaluate("reached"))
    for wanted in ("theme", "mark 0", "sort table-kernels", "fold table-kernels", "fold table-modules"):
        assert wanted in reached, (wanted, sorted(reached))
    button = page.locator("#table-kernels").get_by_role("button", name="Details of kernel 0")
    button.focus()
    page.keyboard.press("Enter")
    assert page.locator("#table-kernels tr.detail:visible").count() == 1
    page.locator("#table-operators th button", has_text="calls").focus()
    page.keyboard.press("Space")
    assert page.locator("#table-operators th[aria-sort=descending]").count() == 1


@pytest.mark.parametrize("make", [full_summary, hostile_summary, bare_summary])
def test_phone_never_scrolls_sideways(browser: Browser, tmp_path: Path, make: Any) -> None:
    visit = Visit(browser, tmp_path, make(), **NARROW, device_scale_factor=2)
    page = visit.page
    for details in page.locator("details").all():
        details.evaluate("each => { each.open = true }")
    page.evaluate(
        "document.querySelectorAll('button.fold[aria-expanded=false]').forEach((each) => each.click())"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    wide = page.evaluate(
        """() => [...document.querySelectorAll("main *")].filter(e => !e.closest(".scroll, .hidden, nav")
        && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + "." + e.className)"""
    )
    assert wide == []
    assert visit.trouble == []
    page.close()


TOO_WIDE = """() => [...document.querySelectorAll(".table .scroll")].filter(e => e.scrollWidth > e.clientWidth + 1)
    .map(e => `${e.getAttribute("aria-label")}: ${e.scrollWidth} > ${e.clientWidth}`)"""


@pytest.mark.parametrize("width", [1300, 390])
@pytest.mark.parametrize("make", [full_summary, hostile_summary])
def test_every_table_fits_its_page(browser: Browser, tmp_path: Path, make: Any, width: int) -> None:
    visit = Visit(browser, tmp_path, make(), viewport={"width": width, "height": 900})
    visit.page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    assert visit.page.evaluate(TOO_WIDE) == []
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    visit.page.close()


@pytest.mark.parametrize("width", [1300, 390])
def test_a_comparison_fits_its_page(browser: Browser, tmp_path: Path, width: int) -> None:
    result = compare(
        Side("A", [], [full_summary()], [document()]), Side("B", [], [full_summary()], [document(1.5)])
    )
    path = tmp_path / "comparison.html"
    path.write_text(comparison_html(result), encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(path.as_uri())
    assert page.evaluate(TOO_WIDE) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert "slower per answer" in page.locator(".answer").inner_text()
    assert page.locator(".chart svg:visible").count() == 5
    assert page.locator(".lpo-waterfall:visible").count() == 1
    page.locator("#why-0 .lpo-waterfall:visible rect[tabindex]").nth(1).focus()
    assert "decode" in page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.close()


def test_a_phone_shows_rows_as_cards_with_the_names_of_their_columns(
    browser: Browser, tmp_path: Path
) -> None:
    visit = Visit(browser, tmp_path, full_summary(), viewport={"width": 390, "height": 900})
    cell = visit.page.locator("#table-samples tbody tr").first.locator("[data-label=TTFT]")
    assert cell.inner_text().strip() == "420 ms"
    assert cell.evaluate("each => getComputedStyle(each, '::before').content") == '"TTFT"'
    assert not visit.page.locator("#table-samples th button").first.is_visible(), "one menu stands for them"
    shown = visit.page.locator("#table-samples tbody tr [data-label=TTFT]")
    given = shown.all_inner_texts()
    menu = visit.page.locator("#table-samples .sortmenu select")
    menu.select_option(label="TTFT ▲")
    assert shown.first.inner_text().strip() == "160 ms"
    menu.select_option(label="as given")
    assert shown.all_inner_texts() == given
    assert (
        visit.page.locator("#table-samples tbody tr").first.evaluate("e => getComputedStyle(e).display")
        == "grid"
    )
    visit.page.close()


def test_the_first_screen_shows_the_first_finding(browser: Browser, tmp_path: Path) -> None:
    visit = Visit(browser, tmp_path, full_summary(), viewport={"width": 1300, "height": 900})
    bottom = "e => e.getBoundingClientRect().bottom"
    assert visit.page.locator("article.finding").first.evaluate(bottom) <= 900
    assert visit.page.locator(".numbers>div").count() == 4
    assert not visit.page.locator(".point").first.is_visible(), "empty until a mark is pointed at"
    visit.page.close()


def test_a_phone_cuts_no_chart_and_folds_the_strip(browser: Browser, tmp_path: Path) -> None:
    visit = Visit(browser, tmp_path, full_summary(), viewport={"width": 390, "height": 900})
    drawn = visit.page.locator(".chart:visible")
    assert drawn.count() == 9
    cut = "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.scrollWidth)"
    assert drawn.evaluate_all(cut) == []
    # Text stays as large as on a desk, and inside its drawing.
    outside = """all => all.flatMap(e => [...e.querySelectorAll("text")].filter(t => t.getBoundingClientRect().right
        > e.getBoundingClientRect().right + 1).map(t => t.textContent))"""
    assert drawn.evaluate_all(outside) == []
    heights = drawn.locator("text").evaluate_all("all => all.map(t => t.getBoundingClientRect().height)")
    assert min(heights) > 10
    strip = visit.page.locator("#trust")
    assert strip.get_attribute("open") is None
    visit.page.close()


def test_operators_open_on_the_largest_share_of_the_run(full: Visit) -> None:
    assert full.rows("table-operators")[0] == "aten::copy_"
    assert full.page.locator("#what-if details").count() == 1
    assert not full.page.locator("#table-what-if").is_visible()


def test_dark_by_preference_and_by_the_button(browser: Browser, tmp_path: Path) -> None:
    def colours(page: Page) -> tuple[str, str]:
        return (
            page.evaluate("getComputedStyle(document.body).backgroundColor"),
            page.evaluate("getComputedStyle(document.querySelector('.lpo-surface')).fill"),
        )

    light, dark = ("rgb(255, 255, 255)",) * 2, ("rgb(21, 24, 29)",) * 2
    preferring = Visit(browser, tmp_path, full_summary(), color_scheme="dark")
    assert colours(preferring.page) == dark
    preferring.page.locator("#theme").click()
    assert colours(preferring.page) == light
    preferring.page.close()
    other = Visit(browser, tmp_path, full_summary(), color_scheme="light")
    assert colours(other.page) == light
    other.page.locator("#theme").click()
    other.page.locator("#theme").click()
    assert colours(other.page) == dark
    other.page.emulate_media(media="print")
    assert colours(other.page)[0] == light[0]
    assert not other.page.locator("header.top").is_visible()
    other.page.close()


def test_hostile_names_run_nothing_and_are_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    visit = Visit(browser, tmp_path, hostile_summary())
    page = visit.page
    for fold in page.locator("button.fold:visible").all()[:10]:
        fold.click()
    for mark in page.locator(".desk circle[tabindex]").all():
        mark.focus()
    for select in page.locator("select[data-group]").all():
        select.select_option(index=1)
    page.wait_for_timeout(200)
    assert page.evaluate("window.hacked === undefined")
    for tag in ("img", "iframe", "script"):
        assert page.locator(f"main {tag}").count() == 0
    assert page.locator("#table-kernels tbody code").first.inner_text() == HOSTILE[:60]
    assert visit.trouble == []
    assert [url for url in visit.requests if not url.startswith(("file:", "data:"))] == []
    page.close()


def test_an_injected_script_is_refused_by_the_page(browser: Browser, tmp_path: Path) -> None:
    visit = Visit(browser, tmp_path, full_summary())
    path = tmp_path / "injected.html"
    path.write_text(
        report_html(full_summary()).replace("</main>", "<script>window.hacked=1</script></main>"),
        encoding="utf-8",
    )
    visit.page.goto(path.as_uri())
    assert visit.page.evaluate("window.hacked === undefined")
    assert any("Content Security Policy" in message for message in visit.trouble)
    visit.page.close()


def test_without_scripts_everything_is_open(browser: Browser, tmp_path: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    path = tmp_path / "report.html"
    path.write_text(report_html(full_summary()), encoding="utf-8")
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.locator("#table-kernels tr.detail:visible").count() == 4
    assert not page.locator(".tools").first.is_visible()
    context.close()
