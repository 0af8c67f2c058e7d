"""The gallery: pages with the boxes the model drew next to the text it wrote.

``predictions.md`` refers to image files below ``images/``; ``predictions.html`` holds everything in one file
and loads nothing from anywhere. Both show untrusted text, so everything is escaped.
"""

from __future__ import annotations

import base64
import functools
import io
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.escape import md_block, md_cell, md_code, md_target, md_text, one_line, visible
from llm_perf_opt.core.files import atomic_write_bytes, atomic_write_text
from llm_perf_opt.core.units import seconds

if TYPE_CHECKING:
    import jinja2
    from PIL import Image

LOGGER = logging.getLogger(__name__)
MARKDOWN_NAME = "predictions.md"
HTML_NAME = "predictions.html"
_IMAGES_DIR = "images"
# Okabe and Ito's palette: suitable for colour-blind readers, on white and on scans.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D00", "#6A3D9A")
_JPEG_QUALITY = 85
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Entry:
    """One page of the gallery."""

    record: Mapping[str, Any]
    """The line of ``predictions.jsonl``."""
    path: Path | None
    """Image file; ``None`` for text prompts."""
    reference: str | None = None


@dataclass(frozen=True, slots=True)
class GalleryHeader:
    """The header above the pages."""

    title: str
    facts: Mapping[str, str] = field(default_factory=dict)
    """``Model``, ``Device`` and the like, in order."""
    warnings: Sequence[str] = ()
    """Said at the top: random weights, skipped images."""
    total: int = 0
    """Predictions there are, shown or not."""
    predictions_file: str | None = None
    """Where all of them can be read."""


@dataclass(frozen=True, slots=True)
class _Picture:
    file_name: str
    plain: bytes
    boxed: bytes
    width: int
    height: int
    """Of the thumbnail, in pixels."""
    page_width: int
    page_height: int


def write_gallery(
    folder: Path, header: GalleryHeader, entries: Sequence[Entry], thumbnail_width: int
) -> list[Path]:
    """Write both galleries and their images; return the files. A missing page loses only its picture."""
    labels = [box["label"] for entry in entries for box in entry.record.get("boxes", [])]
    colors = {label: _COLORS[index % len(_COLORS)] for index, label in enumerate(dict.fromkeys(labels))}
    written: list[Path] = []
    pictures: list[_Picture | None] = []
    for index, entry in enumerate(entries, start=1):
        picture = _picture(index, entry, colors, thumbnail_width)
        pictures.append(picture)
        if picture is not None:
            written.append(atomic_write_bytes(folder / _IMAGES_DIR / picture.file_name, picture.boxed))
    shown = list(zip(entries, pictures, strict=True))
    markdown = atomic_write_text(folder / MARKDOWN_NAME, _markdown(header, shown))
    page = atomic_write_text(folder / HTML_NAME, _html(header, shown, colors, thumbnail_width))
    return [markdown, page, *written]


def _picture(index: int, entry: Entry, colors: Mapping[str, str], width: int) -> _Picture | None:
    # Imported here: NumPy and Pillow are not needed to read a configuration.
    from llm_perf_opt.workloads.datasets.images import load_image

    if entry.path is None:
        return None
    try:
        page = load_image(entry.path)
    except InputError as error:
        LOGGER.warning("no picture in the gallery for %s: %s", entry.record["id"], error.message)
        return None
    scale = min(1.0, width / page.width)
    size = (max(1, round(page.width * scale)), max(1, round(page.height * scale)))
    thumbnail = page.resize(size, reducing_gap=2.0) if scale < 1.0 else page
    stem = _UNSAFE.sub("_", Path(str(entry.record["id"])).stem)[:60] or "page"
    return _Picture(
        file_name=f"{index:03d}-{stem}.jpg",
        plain=_jpeg(thumbnail),
        boxed=_jpeg(_with_boxes(thumbnail, entry.record.get("boxes", []), colors, scale)),
        width=thumbnail.width,
        height=thumbnail.height,
        page_width=page.width,
        page_height=page.height,
    )


def _with_boxes(
    image: Image.Image, boxes: Sequence[Mapping[str, Any]], colors: Mapping[str, str], scale: float
) -> Image.Image:
    from PIL import ImageDraw

    drawn = image.copy()
    pen = ImageDraw.Draw(drawn)
    for box in boxes:
        corners = [value * scale for value in box["box_px"]]
        pen.rectangle(corners, outline=colors[box["label"]], width=1)
    return drawn


def _jpeg(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format="JPEG", quality=_JPEG_QUALITY, optimize=True)
    return stream.getvalue()


def measures(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the numbers shown with a page, as text."""
    tokens, timings = record.get("tokens") or {}, record.get("timings") or {}
    shown = [
        (f"{name} tokens", str(tokens[name]))
        for name in ("prompt", "image", "new")
        if tokens.get(name) is not None
    ]
    named = (("time to first token", "ttft_s"), ("per token", "tpot_s"), ("decode", "decode_s"))
    shown += [(label, seconds(timings[key])) for label, key in named if timings.get(key) is not None]
    if record.get("edit_distance_ratio") is not None:
        shown.append(("edit distance", f"{record['edit_distance_ratio']:.3f}"))
    return shown


def _remainder(header: GalleryHeader, shown: int) -> str | None:
    if shown >= header.total:
        return None
    where = f"; all are in {header.predictions_file}" if header.predictions_file else ""
    return f"{shown} of {header.total} predictions are shown{where}."


def _markdown(header: GalleryHeader, shown: Sequence[tuple[Entry, _Picture | None]]) -> str:
    lines = [f"# {md_text(header.title)}", ""]
    lines += [line for text in header.warnings for line in (f"> **{md_text(text)}**", "")]
    if header.facts:
        lines += ["| | |", "|---|---|"]
        lines += [f"| {md_cell(key)} | {md_cell(value)} |" for key, value in header.facts.items()] + [""]
    remainder = _remainder(header, len(shown))
    if remainder:
        lines += [md_text(remainder), ""]
    for entry, picture in shown:
        record = entry.record
        lines += [f"## {md_text(record['id'])}", ""]
        if picture is not None:
            lines += [f"![page with boxes]({md_target(f'{_IMAGES_DIR}/{picture.file_name}')})", ""]
        numbers = measures(record)
        if numbers:
            lines += [
                "| " + " | ".join(md_cell(name) for name, _ in numbers) + " |",
                "|---" * len(numbers) + "|",
            ]
            lines += ["| " + " | ".join(md_cell(value) for _, value in numbers) + " |", ""]
        if record.get("boxes"):
            labels = dict.fromkeys(md_code(box["label"]) or "(no label)" for box in record["boxes"])
            lines += [f"Boxes: {len(record['boxes'])} ({', '.join(labels)})", ""]
        lines += [md_block(str(record["clean_text"]) or "(empty)"), ""]
    return "\n".join(lines)


def _html(
    header: GalleryHeader,
    shown: Sequence[tuple[Entry, _Picture | None]],
    colors: Mapping[str, str],
    thumbnail_width: int,
) -> str:
    pages = [_html_page(entry, picture, colors) for entry, picture in shown]
    return _template().render(
        title=one_line(header.title),
        facts={one_line(key): one_line(value) for key, value in header.facts.items()},
        warnings=[one_line(text) for text in header.warnings],
        remainder=_remainder(header, len(shown)),
        legend=[(visible(label), color) for label, color in colors.items()],
        thumbnail_width=thumbnail_width,
        pages=pages,
    )


def _html_page(entry: Entry, picture: _Picture | None, colors: Mapping[str, str]) -> dict[str, Any]:
    record = entry.record
    boxes = [
        {
            "label": visible(box["label"]),
            "color": colors[box["label"]],
            "x": x1,
            "y": y1,
            "w": x2 - x1,
            "h": y2 - y1,
        }
        for box in record.get("boxes", [])
        for x1, y1, x2, y2 in [box["box_px"]]
    ]
    image = None
    if picture is not None:
        image = {
            "uri": "data:image/jpeg;base64," + base64.b64encode(picture.plain).decode("ascii"),
            "width": picture.width,
            "height": picture.height,
            "page_width": picture.page_width,
            "page_height": picture.page_height,
        }
    return {
        "id": one_line(str(record["id"])),
        "image": image,
        "boxes": boxes,
        "measures": measures(record),
        "prompt": visible(str(record.get("prompt") or "")),
        "text": visible(str(record["clean_text"])),
        "raw": visible(str(record["raw_text"])),
        "reference": visible(entry.reference) if entry.reference is not None else None,
        "malformed": record.get("malformed_boxes", 0),
    }


@functools.cache
def _template() -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("llm_perf_opt.workloads.outputs"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("gallery.html.j2")
