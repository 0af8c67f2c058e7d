"""What holds for any timeline: parts sum to the span, on every device and in the mean, and no share is above one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.analysis.intervals import intersect, union
from llm_perf_opt.analysis.timeline.attribution import attribute
from llm_perf_opt.analysis.timeline.budget import (
    PARTS,
    budget_on,
    device_activities,
    phase_windows,
    whole_window,
    windows_on,
)
from llm_perf_opt.analysis.timeline.summary import summarise_timeline
from llm_perf_opt.captures.timeline import Timeline
from tests.unit.timelines import ALL_REDUCE, COPY, LAUNCH, MALLOC, SYNC, make_timeline

SCALES = (1, 1_000, 40_000)
"""One unit is a nanosecond, so that everything is short, up to 40 µs, so that gaps are long and queues are held."""


def times(longest: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, 80), st.integers(0, longest)).map(lambda one: (one[0], one[0] + one[1]))


def rows(names: list[str], longest: int = 25, **sizes: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.tuples(times(longest), st.sampled_from(names), st.integers(1, 3)), **sizes)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    calls = draw(rows([LAUNCH, SYNC, MALLOC, "cudaEventRecord"], max_size=10))
    ops = draw(rows(["gemm", "norm", COPY, ALL_REDUCE], min_size=1, max_size=15))
    ranges = draw(
        rows(["prefill", "decode", "vision", "layer.0", "load_batch", "gloo:barrier"], 60, max_size=10)
    )
    operators = draw(rows(["aten::mm", "c10d::barrier", "DataLoader.__next__"], max_size=6))
    frames = draw(rows(["torch/utils/data/dataloader.py(7): __next__", "a.py(1): f"], 60, max_size=4))
    launches = draw(st.lists(st.integers(-1, len(calls) - 1), min_size=len(ops), max_size=len(ops)))
    spans = [
        [(start, end, name) for (start, end), name, _ in group]
        for group in (calls, ranges, operators, frames)
    ]
    where = [[thread for _, _, thread in group] for group in (calls, ranges, operators, frames)]
    return make_timeline(
        [(start, end, name, row) for ((start, end), name, _), row in zip(ops, launches, strict=True)],
        spans[0], spans[1], operators=spans[2], frames=spans[3],
        threads=where[0], range_threads=where[1], operator_threads=where[2], frame_threads=where[3],
        devices=[device - 1 for _, _, device in ops],
        streams=draw(st.lists(st.integers(7, 9), min_size=len(ops), max_size=len(ops))),
        unit=draw(st.sampled_from(SCALES)),
    )  # fmt: skip


@given(timelines())
def test_parts_of_every_device_sum_to_its_window(timeline: Timeline) -> None:
    attribution = attribute(timeline)
    base = phase_windows(timeline, attribution)
    for activity in device_activities(timeline):
        mine = timeline.ops.device == activity.device
        busy = union(timeline.ops.start_ns[mine], timeline.ops.end_ns[mine])
        assert activity.busy == busy
        windows = {**windows_on(activity, timeline, attribution, base), "all": whole_window(timeline)}
        for window in windows.values():
            budget = budget_on(activity, window)
            assert set(budget.parts_ns) == set(PARTS)
            assert sum(budget.parts_ns.values()) == budget.span_ns == window.length_ns
            assert min(budget.parts_ns.values()) >= 0
            waited = activity.idle.parts["communication"].length_within(window)
            working = sum(budget.parts_ns[name] for name in ("compute", "copy", "communication"))
            assert working - waited == busy.length_within(window)


@given(timelines())
def test_idle_parts_never_overlap_one_another_or_the_work(timeline: Timeline) -> None:
    for activity in device_activities(timeline):
        parts = [*activity.idle.parts.values(), activity.busy]
        for number, one in enumerate(parts):
            assert all(not len(intersect(one, other)) for other in parts[:number])
        queue, held = activity.idle.parts["queue"], activity.idle.held
        assert intersect(queue, held) == held


@given(timelines())
def test_the_mean_of_all_devices_sums_to_its_span_and_no_share_is_above_one(timeline: Timeline) -> None:
    facts = summarise_timeline(timeline)
    assert facts.axis is not None
    for budget in facts.budget.values():
        assert sum(part.seconds for part in budget.parts) == pytest.approx(budget.span_s, abs=1e-15)
        assert sum(part.share_ratio for part in budget.parts) == pytest.approx(1.0)
        assert all(0 <= part.share_ratio <= 1 for part in budget.parts)
        owners = [part.owner for part in budget.parts if part.owner is not None]
        assert all(owner.share_ratio is None or 0 < owner.share_ratio <= 1 for owner in owners)
    for ratios in facts.busy_by_device.values():
        assert all(0 <= ratio <= 1 for ratio in ratios.values())
    for device in facts.axis.devices:
        assert device.span_s is not None and device.busy_s is not None and device.idle_s is not None
        assert device.busy_s + device.idle_s == pytest.approx(device.span_s, abs=1e-15)
        assert 0 <= (device.exposed_communication_s or 0) <= (device.communication_s or 0) + 1e-15
        assert 0 <= (device.queued_s or 0) <= device.idle_s + 1e-15
    talk = facts.axis.communication
    if talk is not None:
        assert 0 <= talk.exposed_s <= talk.total_s + 1e-15
        assert talk.share_ratio is None or 0 <= talk.share_ratio <= 1


@given(timelines())
def test_the_order_of_gaps_and_notes_is_that_of_the_timeline(timeline: Timeline) -> None:
    left, right = summarise_timeline(timeline).axis, summarise_timeline(timeline).axis
    assert left is not None and right is not None
    assert (left.gaps, left.notes, left.devices) == (right.gaps, right.notes, right.devices)
    for gap in left.gaps:
        assert gap.seconds >= 50e-6
        assert gap.start_s >= 0
    assert np.all(np.diff([gap.seconds for gap in left.gaps]) <= 0)
