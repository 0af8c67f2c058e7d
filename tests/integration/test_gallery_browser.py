"""The gallery in a real browser: it looks right, loads nothing, and no text of the model comes alive."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from llm_perf_opt.workloads.outputs.gallery import Entry, GalleryHeader, write_gallery

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.needs("chromium")

HOSTILE = "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'></pre>\"><svg onload=window.hacked=1>"


@pytest.fixture
def gallery(tmp_path: Path) -> Path:
    image = tmp_path / "page.png"
    Image.new("RGB", (600, 800), "white").save(image)
    record: dict[str, Any] = {
        "id": HOSTILE, "prompt": HOSTILE, "raw_text": HOSTILE + "raw", "clean_text": HOSTILE, "timings": {"ttft_s": 1.5},
        "tokens": {"new": 3}, "boxes": [{"label": HOSTILE, "box_px": [60, 80, 300, 400]}], "malformed_boxes": 1,
    }  # fmt: skip
    long = {**record, "id": "x" * 300, "clean_text": "y" * 5000, "boxes": []}
    entries = [Entry(record, image, HOSTILE), Entry(long, image), Entry(long, None)]
    write_gallery(
        tmp_path / "viz", GalleryHeader(HOSTILE, {"Model": HOSTILE}, [HOSTILE], total=3), entries, 480
    )
    return tmp_path / "viz" / "predictions.html"


def visit(browser: Browser, path: Path, **options: Any) -> tuple[Page, list[str]]:
    page = browser.new_page(**options)
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
    page.on("dialog", lambda dialog: trouble.append("dialog"))
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith("data:") or request.url == path.as_uri()
            else trouble.append(request.url)
        ),
    )
    page.goto(path.as_uri())
    return page, trouble


def test_nothing_runs_and_nothing_is_loaded(browser: Browser, gallery: Path) -> None:
    page, trouble = visit(browser, gallery)
    assert page.evaluate("window.hacked") is None
    assert trouble == []
    assert page.locator("h2").first.inner_text() == HOSTILE
    assert page.locator("script").count() == page.locator("article section img").count() == 0


def test_boxes_lie_where_they_belong(browser: Browser, gallery: Path) -> None:
    page, _ = visit(browser, gallery, viewport={"width": 1280, "height": 900})
    image = page.locator("figure img").first.bounding_box()
    box = page.locator("figure rect").first.bounding_box()
    assert image is not None
    assert box is not None
    expected = {"x": image["x"] + image["width"] * 0.1, "y": image["y"] + image["height"] * 0.1}
    assert box["x"] == pytest.approx(expected["x"], abs=3)
    assert box["y"] == pytest.approx(expected["y"], abs=3)
    assert box["width"] == pytest.approx(image["width"] * 0.4, abs=4)
    assert box["height"] == pytest.approx(image["height"] * 0.4, abs=4)


def test_boxes_can_be_hidden_without_scripts(browser: Browser, gallery: Path) -> None:
    page, _ = visit(browser, gallery, java_script_enabled=False)
    assert page.locator("figure svg").first.is_visible()
    page.locator("#show-boxes").uncheck()
    assert not page.locator("figure svg").first.is_visible()


@pytest.mark.parametrize("width", [360, 820, 1280])
def test_the_page_never_scrolls_sideways(browser: Browser, gallery: Path, width: int) -> None:
    page, _ = visit(browser, gallery, viewport={"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_it_follows_the_readers_colour_scheme(browser: Browser, gallery: Path) -> None:
    def colors(scheme: str) -> tuple[str, str]:
        page, _ = visit(browser, gallery, color_scheme=scheme)
        return tuple(page.evaluate("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))"))

    light, dark = colors("light"), colors("dark")
    assert light[0] != dark[0], "the paper changes"
    assert light[1] != dark[1], "and the ink with it"
