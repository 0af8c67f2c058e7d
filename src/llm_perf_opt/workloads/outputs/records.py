"""One prediction as data: prompt, output, time and accuracy."""

from __future__ import annotations

import hashlib
import html
import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from llm_perf_opt.workloads.datasets.filelist import printable

if TYPE_CHECKING:
    from llm_perf_opt.workloads.base import Sample, WorkloadConfig
    from llm_perf_opt.workloads.engine.results import SampleResult


# Grounding marks: ``<|ref|>LABEL<|/ref|><|det|>[[x1,y1,x2,y2], …]<|/det|>``.
#
# Robust against untrusted text: a linear scan, numbers matched by pattern, nothing evaluated, no nesting
# followed. Anything else stays text and is counted.


REF, REF_END, DET, DET_END = "<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>"
_COORDINATE_MAX = 999
"""Coordinates run from 0 to 999 on both sides, whatever the size of the page."""
_LONGEST_LABEL = 200
_NUMBER = r"\s{0,8}([-+]?\d{1,9}(?:\.\d{0,9})?)\s{0,8}"
_BOX = re.compile(rf"\[{_NUMBER},{_NUMBER},{_NUMBER},{_NUMBER}\]")
_LEFTOVER = re.compile(r"[^\[\],\s]")
_SPECIAL = re.compile(r"<\|/?[A-Za-z_][A-Za-z_ ]{0,30}\|>|<｜[^｜<>\n]{1,40}｜>|<image>")
_BLANK_LINES = re.compile(r"\n{3,}")


@dataclass(frozen=True, slots=True)
class Region:
    """One box of the model's output, in its own coordinates (0 to 999)."""

    label: str
    x1: float
    y1: float
    x2: float
    y2: float

    def pixels(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Return left, top, right, bottom on a page of this size: ordered, and clamped to it."""
        left, right = sorted(_scale(value, width) for value in (self.x1, self.x2))
        top, bottom = sorted(_scale(value, height) for value in (self.y1, self.y2))
        return left, top, right, bottom


@dataclass(frozen=True, slots=True)
class Grounding:
    """Result of the scan."""

    regions: tuple[Region, ...]
    text: str
    """The output without the markup, special tokens kept."""
    malformed: int
    """Marked places whose boxes could not be read, wholly or in part."""


def _scale(value: float, side: int) -> int:
    return int(min(max(value, 0.0), _COORDINATE_MAX) / _COORDINATE_MAX * side)


def parse_grounding(text: str) -> Grounding:
    """Find the boxes in a model's output. Never fails; takes time linear in the text."""
    regions: list[Region] = []
    kept: list[str] = []
    malformed = 0
    position = 0
    while (found := _next_mark(text, position)) is not None:
        start, label, boxes, end = found
        kept.append(text[position:start])
        matches = list(_BOX.finditer(boxes))
        if not matches or _LEFTOVER.search(_BOX.sub("", boxes)):
            malformed += 1
        for match in matches:
            x1, y1, x2, y2 = (float(number) for number in match.groups())
            regions.append(Region(label, x1, y1, x2, y2))
        position = end
    kept.append(text[position:])
    return Grounding(tuple(regions), "".join(kept), malformed)


def _next_mark(text: str, position: int) -> tuple[int, str, str, int] | None:
    """Return start, label, box text and end of the next complete mark at or after ``position``."""
    while (det := text.find(DET, position)) >= 0:
        det_end = text.find(DET_END, det)
        if det_end < 0:
            return None
        inner = text.rfind(DET, det + len(DET), det_end)
        det = inner if inner >= 0 else det  # an unfinished mark precedes it: the last opening is used
        head = text[max(position, det - _LONGEST_LABEL - 32) : det].rstrip()
        ref = head.rfind(REF)
        if ref >= 0 and head.endswith(REF_END):
            label = head[ref + len(REF) : -len(REF_END)]
            start = max(position, det - _LONGEST_LABEL - 32) + ref
            return start, label.strip(), text[det + len(DET) : det_end], det_end + len(DET_END)
        position = det_end + len(DET_END)
    return None


def strip_special_tokens(text: str) -> str:
    """Remove control tokens (``<|…|>``, ``<｜…｜>``, ``<image>``); the text between them stays."""
    return _SPECIAL.sub("", text)


def clean_text(text: str) -> str:
    """Return the output for reading and scoring: no grounding marks, no special tokens, no gaps."""
    readable = strip_special_tokens(parse_grounding(text).text)
    lines = "\n".join(line.rstrip() for line in readable.splitlines())
    return _BLANK_LINES.sub("\n\n", lines).strip()


# How far a prediction is from its reference: page-level normalised edit distance.
#
# ``edit_distance_ratio = Levenshtein(a, b) / max(len(a), len(b))`` over the normalised texts: 0 is equal, 1 is
# nothing in common. Simpler than OmniDocBench's own score (which first matches blocks, and scores tables and
# formulas by other metrics), and comparable between runs of this tool only.


_TAG = re.compile(r"</?[A-Za-z][^<>]{0,200}>")
_IMAGE = re.compile(r"!\[[^\[\]]{0,200}\]\([^()\n]{0,500}\)")
_HEADING = re.compile(r"^[ \t]{0,3}#{1,6}[ \t]+", re.MULTILINE)
_EMPHASIS = re.compile(r"\*\*|__")


def normalise(text: str) -> str:
    """Reduce a text to its words: no tags, heading marks, emphasis or images; NFKC; single blanks."""
    text = _IMAGE.sub(" ", text)
    text = html.unescape(_TAG.sub(" ", text))
    text = _EMPHASIS.sub("", _HEADING.sub("", text))
    return " ".join(unicodedata.normalize("NFKC", text).split())


def levenshtein(a: str, b: str) -> int:
    """Count the fewest insertions, deletions and substitutions that turn ``a`` into ``b``.

    Bit-parallel (Myers 1999, in Hyyrö's 2003 form for the edit distance): one column of the table is two big
    integers, so a page of 5,000 characters takes milliseconds without a compiled dependency.
    """
    if len(a) > len(b):
        a, b = b, a
    a, b = _without_common_ends(a, b)
    if not a:
        return len(b)
    positions: dict[str, int] = {}
    for index, character in enumerate(a):
        positions[character] = positions.get(character, 0) | (1 << index)
    all_ones = (1 << len(a)) - 1
    last = 1 << (len(a) - 1)
    plus, minus, distance = all_ones, 0, len(a)
    for character in b:
        match = positions.get(character, 0)
        diagonal = ((((match & plus) + plus) ^ plus) | match | minus) & all_ones
        grows = minus | (all_ones & ~(diagonal | plus))
        shrinks = plus & diagonal
        if grows & last:
            distance += 1
        elif shrinks & last:
            distance -= 1
        grows = ((grows << 1) | 1) & all_ones
        plus = ((shrinks << 1) | (all_ones & ~(diagonal | grows))) & all_ones
        minus = grows & diagonal
    return distance


def _without_common_ends(a: str, b: str) -> tuple[str, str]:
    start = 0
    while start < len(a) and a[start] == b[start]:
        start += 1
    end = 0
    while end < len(a) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    return a[start : len(a) - end], b[start : len(b) - end]


def edit_distance_ratio(prediction: str, reference: str) -> float:
    """Return the normalised distance of two texts after :func:`normalise`; two empty texts are equal."""
    left, right = normalise(prediction), normalise(reference)
    longest = max(len(left), len(right))
    return levenshtein(left, right) / longest if longest else 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one request for the outputs."""

    sample: Sample
    raw_text: str
    """Everything the model wrote, control tokens included."""
    prompt: str | None = None
    stripped_text: str | None = None
    """The same without the tokenizer's special tokens; ``None``: they are recognised by their form."""
    prompt_tokens: int | None = None
    image_tokens: int | None = None
    new_tokens: int | None = None
    timings: Mapping[str, float | None] = field(default_factory=dict)
    """Seconds, with the unit in the name (``ttft_s``)."""
    batch_size: int | None = None
    """Requests that ran together and share these timings."""


def outcome_of(result: SampleResult, stripped_text: str | None = None) -> Outcome:
    """Convert an answer of the engine to an outcome."""
    times = result.timings
    return Outcome(
        sample=result.sample,
        raw_text=result.text,
        stripped_text=stripped_text,
        prompt_tokens=result.prompt_tokens,
        image_tokens=result.image_tokens,
        new_tokens=len(result.token_ids),
        timings={
            "preprocess_s": times.preprocess_s,
            "vision_s": times.vision_s,
            "encode_s": times.encode_s,
            "prefill_s": times.prefill_s,
            "ttft_s": times.first_token_s(),
            "decode_s": times.decode_s,
            "tpot_s": fmean(times.token_s) if times.token_s else None,
        },
        batch_size=result.batch_size,
    )


def workload_fingerprint(workload: WorkloadConfig) -> str:
    """Return a hash of everything that affects text and timings, so that resuming never mixes two workloads."""
    decisive = {
        "model": asdict(workload.model),
        "infer": asdict(workload.infer),
        "device": workload.device,
        "max_new_tokens": workload.max_new_tokens,
    }
    return hashlib.sha256(json.dumps(decisive, sort_keys=True, default=str).encode()).hexdigest()[:16]


def make_record(outcome: Outcome, workload: str, *, strip_tokens: bool) -> dict[str, Any]:
    """Return the line of ``predictions.jsonl``. Unknown is null, never 0."""
    sample, raw = outcome.sample, outcome.raw_text
    stripped = outcome.stripped_text if outcome.stripped_text is not None else strip_special_tokens(raw)
    # Unusual special tokens are removed only in the stripped text; marks need the raw one.
    grounding = parse_grounding(raw)
    clean = clean_text(raw) if grounding.regions or grounding.malformed else clean_text(stripped)
    size = _page_size(sample)
    return {
        "id": sample.id,
        "image": printable(sample.path) if sample.path is not None else None,
        "sha256": sample.sha256,
        "workload": workload,
        "prompt": outcome.prompt if outcome.prompt is not None else sample.prompt,
        "raw_text": raw,
        "text": stripped if strip_tokens else raw,
        "clean_text": clean,
        "tokens": {"prompt": outcome.prompt_tokens, "image": outcome.image_tokens, "new": outcome.new_tokens},
        "timings": dict(outcome.timings),
        "batch_size": outcome.batch_size,
        "edit_distance_ratio": edit_distance_ratio(clean, sample.reference)
        if sample.reference is not None
        else None,
        "boxes": [
            {"label": region.label, "box_px": list(region.pixels(*size))}
            for region in grounding.regions
            if size
        ],
        "malformed_boxes": grounding.malformed,
    }


def _page_size(sample: Sample) -> tuple[int, int] | None:
    """Return the size of the upright page, from the data set or the image's own header."""
    width, height = sample.extra.get("width"), sample.extra.get("height")
    if isinstance(width, int) and isinstance(height, int):
        return width, height
    if sample.path is None:
        return None
    from llm_perf_opt.workloads.datasets.images import check_image

    facts = check_image(sample.path)
    return None if isinstance(facts, str) else (facts.width, facts.height)
