"""The gallery: everything shown, nothing of it alive."""

from __future__ import annotations

import base64
import html
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from llm_perf_opt.workloads.outputs.gallery import Entry, GalleryHeader, write_gallery
from tests.text_facts import mentions

HOSTILE = "<script>alert(1)</script> \"'><img src=x onerror=alert(1)> </pre> | `x` ```\n# heading [a](javascript:x) {{ 7*7 }}"


class Tags(HTMLParser):
    """Collects start tags with attributes, and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def record(name: str = "a.png", text: str = "hello", **extra: Any) -> dict[str, Any]:
    base = {
        "id": name,
        "prompt": "p",
        "raw_text": text,
        "text": text,
        "clean_text": text,
        "tokens": {"new": 3},
    }
    return {
        **base,
        "timings": {"ttft_s": 0.5},
        "edit_distance_ratio": 0.25,
        "boxes": [],
        "malformed_boxes": 0,
        **extra,
    }


def image(path: Path, size: tuple[int, int] = (600, 800)) -> Path:
    Image.new("RGB", size, "white").save(path)
    return path


def gallery(folder: Path, *entries: Entry, width: int = 480, **header: Any) -> tuple[str, str, Tags]:
    write_gallery(folder, GalleryHeader(title="Predictions", total=len(entries), **header), entries, width)
    page = (folder / "predictions.html").read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(page)
    return (folder / "predictions.md").read_text(encoding="utf-8"), page, tags


def inlined(tags: Tags) -> list[Image.Image]:
    found = []
    for name, attributes in tags.tags:
        if name == "img":
            source = attributes["src"] or ""
            assert source.startswith("data:image/jpeg;base64,")
            found.append(Image.open(io.BytesIO(base64.b64decode(source.split(",", 1)[1]))))
    return found


def test_thumbnails_have_the_configured_width_and_small_pages_stay(tmp_path: Path) -> None:
    big, small = image(tmp_path / "big.png"), image(tmp_path / "small.png", (100, 50))
    _, _, tags = gallery(
        tmp_path / "viz", Entry(record("big.png"), big), Entry(record("small.png"), small), width=120
    )
    assert [picture.size for picture in inlined(tags)] == [(120, 160), (100, 50)]
    files = sorted((tmp_path / "viz" / "images").iterdir())
    assert [Image.open(path).size for path in files] == [(120, 160), (100, 50)]


def test_boxes_are_drawn_in_the_file_and_laid_over_the_page(tmp_path: Path) -> None:
    boxes = [{"label": "title", "box_px": [60, 80, 300, 400]}, {"label": "text", "box_px": [0, 0, 600, 800]}]
    markdown, _, tags = gallery(
        tmp_path / "viz", Entry(record(boxes=boxes), image(tmp_path / "a.png")), width=300
    )
    picture = Image.open(next((tmp_path / "viz" / "images").iterdir())).convert("RGB")
    red, green, blue = picture.getpixel((30, 100))
    assert (red, green, blue) != (255, 255, 255)
    assert blue > red, "the first label's colour is blue"
    assert inlined(tags)[0].convert("L").getextrema() == (255, 255), "the page below the overlay stays clean"
    rectangles = [attributes for name, attributes in tags.tags if name == "rect"]
    assert [(box["x"], box["y"], box["width"], box["height"]) for box in rectangles] == [
        ("60", "80", "240", "320"),
        ("0", "0", "600", "800"),
    ]
    assert "Boxes: 2 (`title`, `text`)" in markdown


def test_html_is_self_contained_and_loads_nothing(tmp_path: Path) -> None:
    _, page, tags = gallery(tmp_path / "viz", Entry(record(), image(tmp_path / "a.png")))
    for name, attributes in tags.tags:
        assert name not in {"script", "link", "iframe", "object", "base"}
        for key, value in attributes.items():
            if key in {"src", "href", "srcset", "action", "data"}:
                assert value is not None
                assert value.startswith("data:")
    assert not re.search(r"url\(|@import|https?://", page)
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page


@pytest.mark.parametrize(
    "field", ["id", "clean_text", "raw_text", "prompt", "label", "reference", "title", "fact"]
)
def test_hostile_text_is_shown_and_never_runs(tmp_path: Path, field: str) -> None:
    changed = {field: HOSTILE} if field in {"id", "clean_text", "raw_text", "prompt"} else {}
    label = HOSTILE if field == "label" else "x"
    entry = Entry(
        record(**{"boxes": [{"label": label, "box_px": [0, 0, 5, 5]}], **changed}),
        image(tmp_path / "a.png"),
        HOSTILE if field == "reference" else None,
    )
    header = GalleryHeader(
        title=HOSTILE if field == "title" else "t", facts={"k": HOSTILE if field == "fact" else "v"}, total=1
    )
    write_gallery(tmp_path / "viz", header, [entry], 100)
    page = (tmp_path / "viz" / "predictions.html").read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(page)
    assert "script" not in {name for name, _ in tags.tags}
    assert not [key for _, attributes in tags.tags for key in attributes if key.startswith("on")]
    assert len([name for name, _ in tags.tags if name == "img"]) == 1
    assert " ".join(HOSTILE.split()) in " ".join(tags.text.split()), "shown as it is"
    assert html.escape("<script>", quote=False) in page


def test_hostile_text_in_markdown_stays_in_its_place(tmp_path: Path) -> None:
    from markdown_it import MarkdownIt

    boxes = [{"label": HOSTILE, "box_px": [0, 0, 5, 5]}]
    entry = Entry(record(HOSTILE, HOSTILE, boxes=boxes), image(tmp_path / "a.png"))
    markdown, _, _ = gallery(tmp_path / "viz", entry, facts={HOSTILE: HOSTILE}, warnings=[HOSTILE])
    tags = Tags()
    tags.feed(MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown))
    names = [name for name, _ in tags.tags]
    assert not {"script", "a"} & set(names)
    assert names.count("img") == 1
    assert names.count("h1") == names.count("h2") == 1


def test_hostile_file_names_make_harmless_files(tmp_path: Path) -> None:
    names = ["../../etc/passwd", "a/b\\c:d*.png", "x" * 300 + ".png", "…"]
    entries = [Entry(record(name), image(tmp_path / f"{n}.png")) for n, name in enumerate(names)]
    gallery(tmp_path / "viz", *entries)
    written = sorted(path.name for path in (tmp_path / "viz" / "images").iterdir())
    assert len(written) == 4
    assert all(re.fullmatch(r"00\d-[A-Za-z0-9._-]{1,60}\.jpg", name) for name in written)
    assert {path.name for path in (tmp_path / "viz").iterdir()} == {
        "images",
        "predictions.md",
        "predictions.html",
    }


def test_text_without_images_and_an_empty_answer(tmp_path: Path) -> None:
    markdown, _, tags = gallery(tmp_path / "viz", Entry(record("prompt_000", ""), None))
    assert "img" not in [name for name, _ in tags.tags]
    assert "nothing readable" in tags.text
    assert "(empty)" in markdown


def test_a_page_that_is_gone_costs_its_picture_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, _, tags = gallery(tmp_path / "viz", Entry(record(), tmp_path / "gone.png"))
    assert "hello" in tags.text
    assert mentions(caplog.text, "a.png")


def test_what_is_not_shown_is_reported(tmp_path: Path) -> None:
    header = GalleryHeader("t", total=9, predictions_file="pred/predictions.jsonl")
    write_gallery(tmp_path, header, [Entry(record(), None)], 100)
    for name in ("predictions.md", "predictions.html"):
        lines = (tmp_path / name).read_text().splitlines()
        (messages,) = [line for line in lines if header.predictions_file in line]
        assert mentions(messages, "1", "9")


def test_deep_and_cmyk_images_are_shown(tmp_path: Path) -> None:
    Image.new("I;16", (20, 20), 65535).save(tmp_path / "deep.png")
    Image.new("CMYK", (20, 20)).save(tmp_path / "cmyk.jpg")
    entries = [Entry(record(name), tmp_path / name) for name in ("deep.png", "cmyk.jpg")]
    _, _, tags = gallery(tmp_path / "viz", *entries)
    assert all(picture.convert("L").getextrema()[0] > 250 for picture in inlined(tags))
