"""Generated pages on disk: generated once per (seed, pages, size) and shared by later runs.

Cached below ``dataset.generated.cache_dir``, else ``$LLM_PERF_OPT_CACHE``, else the user's cache directory.
A set is written next to its place and renamed into it, so that runs started together see all of it or nothing.
"""

from __future__ import annotations

import atexit
import hashlib
import html
import json
import logging
import os
import random
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import PIL
from PIL import Image, ImageDraw, ImageFont

from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.files import atomic_write_json
from llm_perf_opt.workloads.datasets.annotations import JSON_NAME
from llm_perf_opt.workloads.datasets.filelist import IMAGES

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import GeneratedConfig

LOGGER = logging.getLogger(__name__)
_GENERATOR_VERSION = 1
"""Raised whenever the same settings give other pages."""
MANIFEST = "manifest.json"
_SMALLEST_SIDE = 64


def user_cache_dir() -> Path:
    """Return the directory for reproducible files: ``$LLM_PERF_OPT_CACHE`` or the XDG one."""
    own = os.environ.get("LLM_PERF_OPT_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification requires ignoring relative values.
    base = Path(xdg) if xdg and Path(xdg).is_absolute() else Path("~/.cache").expanduser()
    return base / "llm-perf-opt"


def ensure_pages(config: GeneratedConfig) -> Path:
    """Return the root of a data set of generated pages, creating it if necessary."""
    _check_config(config)
    try:
        base = (
            Path(config.cache_dir).expanduser().absolute() if config.cache_dir else user_cache_dir() / "pages"
        )
        return _cached_pages(base / _cache_key(config), config)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory to expand to
        reason = error.strerror if isinstance(error, OSError) else str(error)
        temporary = Path(tempfile.mkdtemp(prefix="llm-perf-opt-pages-"))
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        LOGGER.warning("the page cache cannot be used (%s): pages are generated in %s", reason, temporary)
        return _cached_pages(temporary / _cache_key(config), config)


def _check_config(config: GeneratedConfig) -> None:
    if config.pages < 1:
        raise ConfigError(
            f"dataset.generated.pages must be at least 1, got {config.pages}",
            hint="set dataset.generated.pages=3",
            key="dataset.generated.pages",
        )
    if config.max_side < _SMALLEST_SIDE:
        raise ConfigError(
            f"dataset.generated.max_side must be at least {_SMALLEST_SIDE} pixels, got {config.max_side}",
            hint="an A4 page at 150 dpi has 1754",
            key="dataset.generated.max_side",
        )


def _cache_key(config: GeneratedConfig) -> str:
    # Pillow is part of the key: another version may render the same text differently.
    settings = (_GENERATOR_VERSION, PIL.__version__, config.pages, config.seed, config.max_side)
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
    return f"v{_GENERATOR_VERSION}-{digest}"


def _cached_pages(folder: Path, config: GeneratedConfig) -> Path:
    if _is_complete(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _write_pages(work, config)
        _move_into_place(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _write_pages(folder: Path, config: GeneratedConfig) -> None:
    # Imported here: drawing is needed only once.

    (folder / IMAGES).mkdir()
    annotations, sizes = [], {}
    for index in range(config.pages):
        page = make_page(index, config.seed, config.max_side)
        path = folder / IMAGES / page.name
        page.image.save(path, format="PNG", compress_level=3)
        annotations.append(page.annotation)
        sizes[f"{IMAGES}/{page.name}"] = path.stat().st_size
    atomic_write_json(folder / JSON_NAME, annotations)
    sizes[JSON_NAME] = (folder / JSON_NAME).stat().st_size
    atomic_write_json(folder / MANIFEST, {"generator_version": _GENERATOR_VERSION, "bytes": sizes})
    folder.chmod(0o755)


def _move_into_place(work: Path, folder: Path) -> None:
    for _ in range(3):
        try:
            work.rename(folder)
            return
        except OSError:
            # Another run was faster, or the existing set is damaged: then it is moved aside.
            if _is_complete(folder):
                return
            if not folder.exists():
                raise
            aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.damaged.", dir=folder.parent))
            folder.rename(aside / folder.name)
            shutil.rmtree(aside, ignore_errors=True)
    work.rename(folder)


def _is_complete(folder: Path) -> bool:
    """Whether every file of the set exists with its size."""
    try:
        sizes = json.loads((folder / MANIFEST).read_bytes())["bytes"]
        return bool(sizes) and all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


# Synthetic pages in OmniDocBench format: drawn text whose every position is known.
#
# A page depends on its seed, its place in the set and the longest side, and nothing else. The font is the one
# included in Pillow, so nothing has to be installed.


LAYOUTS = ("portrait", "landscape_table", "small", "two_columns")
"""Layouts in the order pages take them, over and over."""
_WORDS = """
attention kernel memory token cache latency matrix bandwidth decode prefill layer expert router vector
page image window stride block thread warp tile batch queue stream event range model weight gradient norm
softmax projection encoder column row table figure result measure sample median ratio share total bound
roof peak the a of in on with without under over between each every most least first last next same other
while until
""".split()  # noqa: SIM905
_INK = (20, 24, 32)
_PAPER = (255, 255, 255)
_RULE = (120, 126, 138)
_SMALL_SIDE = 640
_Box = tuple[float, float, float, float]


@dataclass
class Page:
    """One finished page."""

    name: str
    image: Image.Image
    annotation: dict[str, Any]


def make_page(index: int, seed: int, max_side: int) -> Page:
    """Draw page ``index`` of a set."""
    layout = LAYOUTS[index % len(LAYOUTS)]
    rng = random.Random(f"page-{seed}-{index}")
    width, height = page_size(layout, max_side)
    sheet = _Sheet(width, height, rng)
    if layout == "landscape_table":
        _table_page(sheet)
    elif layout == "two_columns":
        _two_column_page(sheet)
    else:
        _text_page(sheet)
    name = f"generated_{seed}_{index:03d}_{layout}.png"
    return Page(name, sheet.image, _annotation(name, index, layout, sheet))


def page_size(layout: str, max_side: int) -> tuple[int, int]:
    """Return width and height in pixels; ``small`` pages stay below the size at which tiling starts."""
    if layout == "landscape_table":
        return max_side, round(max_side * 3 / 4)
    if layout == "small":
        side = min(_SMALL_SIDE, max_side)
        return round(side * 3 / 4), side
    return round(max_side / 2**0.5), max_side


@dataclass
class _Sheet:
    """A page being drawn, with its recorded blocks."""

    width: int
    height: int
    rng: random.Random
    blocks: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.image = Image.new("RGB", (self.width, self.height), _PAPER)
        self.draw = ImageDraw.Draw(self.image)
        self.margin = max(4, round(self.width * 0.08))
        self.body_size = max(8, round(min(self.width, self.height) / 58))
        self.column: _Box = (self.margin, self.margin, self.width - self.margin, self.height - self.margin)

    def font(self, size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
        return ImageFont.load_default(size=size)

    def words(self, count: int) -> str:
        text = " ".join(self.rng.choice(_WORDS) for _ in range(count))
        return text[0].upper() + text[1:]

    def text_block(self, category: str, text: str, y: float, size: float) -> float:
        """Draw wrapped text at ``y``; return where the next block starts. Text that does not fit is omitted."""
        font = self.font(size)
        left, _, right, bottom = self.column
        lines: list[str] = []
        spans: list[dict[str, Any]] = []
        for line in _wrap(self.draw, text, font, right - left):
            box = self.draw.textbbox((left, y), line, font=font)
            if box[3] > bottom:
                break
            self.draw.text((left, y), line, font=font, fill=_INK)
            lines.append(line)
            spans.append({"category_type": "text_span", "poly": _polygon(box), "text": line})
            y += size * 1.35
        if lines:
            self.add(
                category,
                _bounding_polygon([span["poly"] for span in spans]),
                text=" ".join(lines),
                line_with_spans=spans,
            )
        return y + size * 0.9

    def add(self, category: str, poly: list[float], *, order: bool = True, **content: Any) -> None:
        """Record one layout block."""
        place = sum(block["order"] is not None for block in self.blocks) if order else None
        block = {"category_type": category, "poly": poly, "ignore": False, "order": place}
        self.blocks.append({**block, "anno_id": len(self.blocks), "attribute": {}, **content})


def _text_page(sheet: _Sheet) -> None:
    y = sheet.text_block("title", sheet.words(5), sheet.column[1], sheet.body_size * 1.8)
    _fill_column(sheet, y, section_every=3)
    _page_number(sheet)


def _fill_column(sheet: _Sheet, y: float, section_every: int | None = None) -> None:
    """Write paragraphs down to the end of the column."""
    number = 0
    while y < sheet.column[3] - 3 * sheet.body_size:
        if section_every and number and number % section_every == 0:
            y = sheet.text_block("title", sheet.words(3), y, sheet.body_size * 1.3)
        y = sheet.text_block("text_block", sheet.words(sheet.rng.randint(35, 75)) + ".", y, sheet.body_size)
        number += 1


def _two_column_page(sheet: _Sheet) -> None:
    left, top, right, bottom = sheet.column
    top = sheet.text_block("title", sheet.words(6), top, sheet.body_size * 1.8)
    middle, gap = (left + right) / 2, sheet.body_size
    for x1, x2 in ((left, middle - gap), (middle + gap, right)):
        sheet.column = (x1, top, x2, bottom)
        _fill_column(sheet, top)
    _page_number(sheet)


def _table_page(sheet: _Sheet) -> None:
    y = sheet.text_block("title", sheet.words(4), sheet.column[1], sheet.body_size * 1.8)
    y = sheet.text_block("text_block", sheet.words(45) + ".", y, sheet.body_size)
    y = sheet.text_block("table_caption", "Table 1: " + sheet.words(5), y, sheet.body_size * 0.9)
    y = _table(sheet, y, rows=6, columns=4)
    _fill_column(sheet, y)
    _page_number(sheet)


def _table(sheet: _Sheet, y: float, rows: int, columns: int) -> float:
    left, _, right, _ = sheet.column
    line_height, width = sheet.body_size * 2, (right - left) / columns
    cells = [[sheet.words(1) for _ in range(columns)]]
    for _ in range(rows - 1):
        numbers = [f"{sheet.rng.uniform(0, 100):.1f}" for _ in range(columns - 1)]
        cells.append([sheet.rng.choice(_WORDS), *numbers])
    font = sheet.font(sheet.body_size)
    for row, values in enumerate(cells):
        for column, value in enumerate(values):
            x, top = left + column * width, y + row * line_height
            sheet.draw.rectangle((x, top, x + width, top + line_height), outline=_RULE)
            sheet.draw.text((x + sheet.body_size * 0.5, top + line_height * 0.2), value, font=font, fill=_INK)
    end = y + rows * line_height
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(value)}</td>" for value in values) + "</tr>" for values in cells
    )
    sheet.add("table", _polygon((left, y, right, end)), html=f"<table>{body}</table>")
    return end + sheet.body_size * 1.5


def _page_number(sheet: _Sheet) -> None:
    font = sheet.font(sheet.body_size * 0.8)
    text = str(sheet.rng.randint(1, 400))
    at = (sheet.width / 2, sheet.height - sheet.margin * 0.6)
    sheet.draw.text(at, text, font=font, fill=_INK)
    sheet.add("page_number", _polygon(sheet.draw.textbbox(at, text, font=font)), order=False, text=text)


def _wrap(
    draw: ImageDraw.ImageDraw, text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: float
) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        if lines and draw.textlength(f"{lines[-1]} {word}", font=font) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _polygon(box: _Box) -> list[float]:
    """Corners clockwise from the top left, as OmniDocBench has them."""
    x1, y1, x2, y2 = (round(value, 1) for value in box)
    return [x1, y1, x2, y1, x2, y2, x1, y2]


def _bounding_polygon(polys: list[list[float]]) -> list[float]:
    xs = [x for poly in polys for x in poly[0::2]]
    ys = [y for poly in polys for y in poly[1::2]]
    return _polygon((min(xs), min(ys), max(xs), max(ys)))


def _annotation(name: str, index: int, layout: str, sheet: _Sheet) -> dict[str, Any]:
    attribute: dict[str, Any] = {
        "data_source": "generated",
        "language": "english",
        "layout": "double_column" if layout == "two_columns" else "single_column",
        "special_issue": [],
    }
    info = {"page_no": index, "height": sheet.height, "width": sheet.width, "image_path": name}
    return {
        "layout_dets": sheet.blocks,
        "extra": {"relation": []},
        "page_info": {**info, "page_attribute": attribute},
    }
