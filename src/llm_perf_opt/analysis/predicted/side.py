"""A finished run as one side of a change: its operators, its sizes, its device and how it launches."""

from __future__ import annotations

import re
from collections.abc import Mapping

from llm_perf_opt.analysis.expected.compose import Target
from llm_perf_opt.analysis.expected.estimate import Tables
from llm_perf_opt.analysis.expected.gains import Side
from llm_perf_opt.analysis.expected.sharing import why_not_shared
from llm_perf_opt.analysis.roofline.asked import at_point, target_of
from llm_perf_opt.analysis.roofline.demand import own_point
from llm_perf_opt.analysis.roofline.host_cost import started_in
from llm_perf_opt.core.phases import ENCODE
from llm_perf_opt.hardware.silicon.locate import absent_words
from llm_perf_opt.model.summary import Summary

_SLICE = re.compile(r"\bMIG\b", re.IGNORECASE)

Limits = Mapping[str, Target]
"""Devices by name, for runs whose own limits are not known."""


def side_of(
    summary: Summary, tables: Tables | None, *, stored_dtype: str | None = None, limits: Limits | None = None
) -> tuple[Side | None, str | None]:
    """Return a run as a side, or why the tables cannot say anything about it.

    ``stored_dtype``: what its weights were quantised to when they were loaded.
    """
    if tables is None:
        return None, absent_words()
    static = summary.static
    if static is None or static.operators is None:
        return None, "the operators of its model were not counted by shape (pipeline.static_analysis)"
    if ENCODE in static.phases:
        return None, "encoder-decoders are not estimated"
    name = device_name(summary)
    if name is None:
        return None, "its device is not known by name"
    if _SLICE.search(name) or not tables.knows(name):
        return None, f"no operator was measured on {name}"
    point = own_point(static, stored_dtype or summary.workload.dtype)
    if point is None:
        return None, "it has no decode step, or no data type"
    started = started_in(summary, tables)
    passes = tuple(phase for phase in ("vision", "prefill") if phase in static.phases)
    at = at_point(static, point, summary.workload.ranks)
    unshared = why_not_shared(static.operators, at.tensor_parallel)
    if unshared is not None:
        return None, unshared
    return Side(
        static.operators,
        passes,
        at,
        _target(name, summary, limits or {}, tables),
        tuple(launches.eager_s for launches in started.before(len(passes))),
        started.step.eager_s,
        bool(summary.workload.compiled or summary.workload.cuda_graphs),
    ), None


def device_name(summary: Summary) -> str | None:
    """Return the name of a run's device; a run of several ranks has it in its environment."""
    own, place = summary.hardware.name, summary.workload.device or "cpu"
    if own is not None and own != place:
        return own
    names = summary.environment.get("devices")
    known = {str(name) for name in names} if isinstance(names, list) else set()
    return known.pop() if len(known) == 1 and not place.startswith("cpu") else own


def _target(name: str, summary: Summary, limits: Limits, tables: Tables) -> Target:
    own, listed = summary.hardware, limits.get(name)
    peaks, bandwidth, link = own.peak_flops_per_s, own.bandwidth_bytes_per_s, own.link_bytes_per_s
    if listed is not None:
        if not peaks or bandwidth is None:
            peaks, bandwidth = dict(listed.peaks), listed.bandwidth_bytes_per_s
        link = link if link is not None else listed.link_bytes_per_s
    return target_of(name, peaks, bandwidth, link, tables)
