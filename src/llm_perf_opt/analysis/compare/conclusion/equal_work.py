"""Put what B measured at A's work: a side that did less, or captured less, is not faster for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llm_perf_opt.analysis.compare.conclusion.work import Scaling, captured_work
from llm_perf_opt.analysis.compare.kernels import compare_kernels
from llm_perf_opt.analysis.compare.metrics import side_series, summary_scalars, timing_scalars
from llm_perf_opt.analysis.compare.origin import Side
from llm_perf_opt.analysis.compare.series import Series
from llm_perf_opt.model.comparison import Comparison
from llm_perf_opt.model.summary import Summary

CAPTURED = ("kernel_time", "copy_time", "launches")
"""Metrics that grow with the length of a capture."""
CAPTURED_PART = "captured time: "
"""How rows of phases begin that grow with the length of a capture."""

Document = Mapping[str, Any]


def captured_scalars(summary: Summary, reference: Summary) -> tuple[dict[str, float], str | None]:
    """Return what captures say about a run, at the work of another; and why not, where that is not known.

    What cannot be put at equal work is returned as it was captured.
    """
    plain = summary_scalars(summary)
    if summary is reference or not summary.kernels or not reference.kernels:
        return plain, None
    work = captured_work(reference, summary, compare_kernels(reference.kernels, summary.kernels))
    if work.basis is None or not work.sure:
        return plain, work.text
    scaling = Scaling(work)
    factors = {kernel.phase: scaling.factor(kernel.phase) for kernel in summary.kernels}
    if any(factor is None for factor in factors.values()):
        return plain, f"the work of some kernels is not known. {work.text}"
    if "kernel_time" in plain:
        plain["kernel_time"] = math.fsum(
            (k.total_s or 0.0) * (factors[k.phase] or 1.0) for k in summary.kernels
        )
    if "launches" in plain:
        plain["launches"] = math.fsum((k.launches or 0) * (factors[k.phase] or 1.0) for k in summary.kernels)
    whole = scaling.factor(None)
    if whole is None:
        plain.pop("copy_time", None)  # copies belong to no phase
    elif "copy_time" in plain:
        plain["copy_time"] *= whole
    return plain, None


def at_equal_steps(document: Document | None, reference: Document | None) -> Document | None:
    """Return a timings document whose samples decode as many tokens as those of another, at their own speed."""
    if not document or not reference or "samples" not in document or "samples" not in reference:
        return document
    wanted = {str(sample["id"]): sample.get("new_tokens") for sample in reference["samples"]}
    samples = [_at_steps(sample, wanted.get(str(sample["id"]))) for sample in document["samples"]]
    return {**document, "samples": samples}


def _at_steps(sample: Document, tokens: float | None) -> Document:
    own = sample.get("new_tokens")
    if not tokens or not own or tokens == own or tokens < 2 or own < 2:
        return sample
    factor = (tokens - 1) / (own - 1)
    repeats = [
        {**repeat, "decode_s": repeat["decode_s"] * factor} if repeat.get("decode_s") is not None else repeat
        for repeat in sample["repeats"]
    ]
    return {**sample, "new_tokens": tokens, "repeats": repeats}


def timed_scalars(summary: Summary, reference: Summary) -> dict[str, float]:
    """Return the medians a summary keeps, decode at as many tokens as another summary's."""
    values = timing_scalars(summary)
    own, wanted = summary.workload.new_tokens, reference.workload.new_tokens
    if own and wanted and own > 1 and wanted > 1 and "decode" in values:
        values["decode"] *= (wanted - 1) / (own - 1)
        if "total" in values:
            values["total"] = values["ttft"] + values["decode"]
    return values


def series_at_work(
    side: Side, reference: Side, *, by_repeat: bool
) -> tuple[dict[str, Series], dict[str, str]]:
    """Return every metric of a side at the work of another's first run, and metric → why it could not be put there."""
    unlike: dict[str, str] = {}
    first, timings = reference.first, next(iter(reference.documents), None)

    def captured(summary: Summary) -> dict[str, float]:
        values, why = captured_scalars(summary, first)
        if why is not None:
            unlike.update({name: why for name in CAPTURED if name in values})
        return values

    series = side_series(
        side.summaries,
        [at_equal_steps(document, timings) for document in side.documents],
        by_repeat=by_repeat,
        captured=captured,
        timed=lambda summary: timed_scalars(summary, first),
    )
    return series, unlike


def put_rows_at_equal_work(result: Comparison, scaling: Scaling) -> None:
    """Make the ratios of captured times those at equal work; without a known factor there is none."""
    for family in result.families:
        family.ratio = scaling.at_equal_work(family.ratio, family.phase)
    for kernel in result.kernels:
        kernel.ratio = scaling.at_equal_work(kernel.ratio, kernel.phase)
    for row in result.phases if result.kernels else []:
        if row.what.startswith(CAPTURED_PART):
            row.ratio = scaling.at_equal_work(row.ratio, row.phase)
