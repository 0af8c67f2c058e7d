"""One prediction as data: what the model was asked, what it wrote, how long that took, how right it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from llm_perf_opt.workloads.datasets.filelist import printable
from llm_perf_opt.workloads.outputs.grounding import clean_text, parse_grounding, strip_special_tokens
from llm_perf_opt.workloads.outputs.scoring import edit_distance_ratio

if TYPE_CHECKING:
    from llm_perf_opt.workloads.base import Sample, WorkloadConfig
    from llm_perf_opt.workloads.engine.results import SampleResult


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one request, in the words of the outputs."""

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
    """Return an answer of the engine in the words of the outputs."""
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
    """Identify what decides the text and the timings of a request, so that resuming never mixes two."""
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
    # Special tokens of an unusual spelling are gone from the stripped text only; marks need the raw one.
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
