"""``inputs.yaml``: the samples a run really used, with hashes, so that it can be repeated and compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from llm_perf_opt.core.files import atomic_write_text
from llm_perf_opt.workloads.base import Sample
from llm_perf_opt.workloads.datasets.filelist import printable


def inputs_document(samples: Iterable[Sample], problems: Sequence[str] = ()) -> dict[str, Any]:
    """Return what ``inputs.yaml`` holds: plain values, one entry per sample in the order they run."""
    listed = list(samples)
    return {
        "count": len(listed),
        "distinct": len({sample.sha256 or sample.id for sample in listed}),
        "left_out": list(problems),
        "samples": [_entry(sample) for sample in listed],
    }


def write_inputs(path: Path, samples: Iterable[Sample], problems: Sequence[str] = ()) -> Path:
    """Write ``inputs.yaml``."""
    document = inputs_document(samples, problems)
    return atomic_write_text(path, yaml.safe_dump(document, allow_unicode=True, sort_keys=False, width=110))


def _entry(sample: Sample) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": sample.id,
        "path": printable(sample.path) if sample.path is not None else None,
        "sha256": sample.sha256,
        "prompt": sample.prompt,
        "synthetic_tokens": sample.synthetic_tokens,
        "has_reference": sample.reference is not None,
    }
    for key in ("width", "height", "epoch"):
        if key in sample.extra:
            entry[key] = sample.extra[key]
    return {key: value for key, value in entry.items() if value is not None}
