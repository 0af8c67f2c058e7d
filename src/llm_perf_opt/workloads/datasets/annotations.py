"""``OmniDocBench.json``: the text of a page in reading order.

The file is a list of pages ``{layout_dets, page_info, extra}``. Its traps: ``image_path`` is a bare name
(with dots in it, such as ``x.pdf_12.jpg``), ``width`` and ``height`` are swapped on many pages (so they are
not used), and ``order`` may be null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

JSON_NAME = "OmniDocBench.json"
_IGNORED_CATEGORIES = frozenset(
    {
        # Read by the evaluator but not scored.
        "figure_caption", "figure_footnote", "table_caption", "table_footnote", "code_algorithm",
        "code_algorithm_caption", "equation_caption", "header", "footer", "page_footnote", "page_number",
        # No text of the page, or text that another block already holds.
        "figure", "abandon", "list", "list_merge_group", "need_mask", "text_mask", "table_mask",
        "equation_ignore", "equation_inline", "equation_semantic", "footnote_mark",
    }
)  # fmt: skip
"""Layout categories that are not part of a page's reference text."""


def find_annotations(root: Path) -> Path | None:
    """Return the annotation file of a data set: its usual name, or the only ``OmniDocBench*.json``."""
    usual = root / JSON_NAME
    if usual.is_file():
        return usual
    others = sorted(root.glob("OmniDocBench*.json"))
    return others[0] if len(others) == 1 else None


class Annotations:
    """References by image name."""

    def __init__(self, pages: list[Any]) -> None:
        self._by_name: dict[str, str] = {}
        self._by_stem: dict[str, str | None] = {}
        self.unusable = 0
        """Pages whose entry has not the documented form."""
        for page in pages:
            name = _image_name(page)
            if name is None:
                self.unusable += 1
                continue
            text = page_text(page)
            self._by_name[name] = text
            stem = PurePosixPath(name).stem
            # The same page is a .jpg in one release and a .png in another; ambiguous stems are dropped.
            self._by_stem[stem] = None if stem in self._by_stem else text

    @classmethod
    def load(cls, path: Path) -> Annotations:
        """Read the file; a :class:`ValueError` or :class:`OSError` describes the problem."""
        pages = json.loads(path.read_bytes())
        if not isinstance(pages, list):
            raise ValueError("it is not a list of pages")
        return cls(pages)

    def reference(self, image_name: str) -> str | None:
        """Return the text of the page with this image, if it is annotated."""
        if image_name in self._by_name:
            return self._by_name[image_name]
        return self._by_stem.get(PurePosixPath(image_name).stem)


def page_text(page: Mapping[str, Any]) -> str:
    """Join the scored blocks of a page in reading order; a block that continues another is joined to it."""
    blocks = [
        block for block in _list(page.get("layout_dets")) if isinstance(block, Mapping) and _scored(block)
    ]
    # Blocks without an order come last, in the order they are listed (the sort is stable).
    blocks.sort(key=lambda block: (_order(block) is None, _order(block) or 0.0))
    continues = _continued_blocks(page)
    text = ""
    previous: object = None
    for block in blocks:
        content = _content(block)
        if not content:
            continue
        anchor = block.get("anno_id") if isinstance(block.get("anno_id"), int | str) else None
        if text:
            text += " " if (previous, anchor) in continues else "\n\n"
        text += content
        previous = anchor
    return text


def _image_name(page: object) -> str | None:
    info = page.get("page_info") if isinstance(page, Mapping) else None
    name = info.get("image_path") if isinstance(info, Mapping) else None
    return PurePosixPath(name).name or None if isinstance(name, str) else None


def _scored(block: Mapping[str, Any]) -> bool:
    return block.get("ignore") is not True and block.get("category_type") not in _IGNORED_CATEGORIES


def _order(block: Mapping[str, Any]) -> float | None:
    order = block.get("order")
    return float(order) if isinstance(order, int | float) and not isinstance(order, bool) else None


def _content(block: Mapping[str, Any]) -> str:
    for key in ("text", "html", "latex"):
        value = block.get(key)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return ""


def _continued_blocks(page: Mapping[str, Any]) -> set[tuple[object, object]]:
    extra = page.get("extra")
    relations = _list(extra.get("relation")) if isinstance(extra, Mapping) else []
    return {
        (relation.get("source_anno_id"), relation.get("target_anno_id"))
        for relation in relations
        if isinstance(relation, Mapping)
        and relation.get("relation_type") == "truncated"
        and isinstance(relation.get("source_anno_id"), int | str)
        and isinstance(relation.get("target_anno_id"), int | str)
    }


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
