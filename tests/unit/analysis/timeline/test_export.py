"""The timeline as a trace for Perfetto and as tables: exact times, the right lanes, arrows, sums."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_perf_opt.analysis.timeline.attribution import attribute
from llm_perf_opt.analysis.timeline.drawing import draw_step
from llm_perf_opt.analysis.timeline.export import (
    RankTimeline,
    kernel_columns,
    perfetto_events,
    perfetto_ranks,
    range_columns,
)
from llm_perf_opt.captures.timeline import Timeline
from tests.unit.timelines import Call, Op, Range, make_timeline

LAUNCH, SYNC, COPY = "cudaLaunchKernel_v7000", "cudaStreamSynchronize_v3020", "[CUDA memcpy Device-to-Host]"
DEVICE = 1 << 24


def small() -> Timeline:
    """Two kernels and a copy, launched from two of three calls inside ranges of a decode step."""
    timeline = make_timeline(
        ops=[(5100, 5400, "k", 0), (5500, 5600, "k", 0), (6000, 7501, COPY, 1)],
        calls=[(5010, 5020, LAUNCH), (5030, 5040, "cudaMemcpyAsync"), (5050, 9000, SYNC)],
        ranges=[(5000, 9000, "decode"), (5005, 5025, "module:layers.0")],
    )
    timeline.devices[0] = "GPU"
    timeline.ops.bytes[2] = 64
    return timeline


def events(timeline: Timeline) -> list[dict[str, Any]]:
    text = "".join(perfetto_events(timeline))
    return list(json.loads(text)["traceEvents"])


def test_a_trace_starts_at_zero_and_keeps_nanoseconds() -> None:
    text = "".join(perfetto_events(small()))
    assert '"ts":0.000,"dur":4.000' in text  # decode, in microseconds
    assert '"ts":1.000,"dur":1.501' in text  # the copy
    found = {
        (e["cat"], e["name"]): e for e in events(small()) if e["ph"] == "X" and e["cat"] in ("range", "call")
    }
    assert set(found) == {
        ("range", "decode"),
        ("range", "module:layers.0"),
        ("call", LAUNCH),
        ("call", "cudaMemcpyAsync"),
        ("call", SYNC),
    }
    assert found["range", "decode"]["args"] == {"phase": "decode"}
    assert found["range", "module:layers.0"]["args"] == {"phase": "decode", "module": "layers.0"}
    assert (found["call", SYNC]["ts"], found["call", SYNC]["dur"]) == (0.05, 3.95)


def test_operations_lie_on_the_lane_of_their_stream_with_what_they_belong_to() -> None:
    shown = [e for e in events(small()) if e["ph"] == "X" and e["pid"] == DEVICE]
    assert [(e["ts"], e["dur"], e["tid"]) for e in shown] == [(0.1, 0.3, 7), (0.5, 0.1, 7), (1.0, 1.501, 7)]
    assert shown[0]["args"] == {
        "kernel": "k",
        "phase": "decode",
        "module": "layers.0",
        "range": "module:layers.0",
    }
    assert shown[2]["args"] == {"kernel": COPY, "phase": "decode", "range": "decode", "bytes": 64}
    names = {(e["pid"], e["tid"], e["args"]["name"]) for e in events(small()) if e["ph"] == "M"}
    assert names == {(0, 0, "host"), (DEVICE, 0, "device 0: GPU"), (DEVICE, 7, "stream 7")}


def test_arrows_lead_from_launching_calls_to_what_they_launched() -> None:
    starts = [(e["id"], e["ts"]) for e in events(small()) if e["ph"] == "s"]
    ends = [(e["id"], e["ts"]) for e in events(small()) if e["ph"] == "f"]
    assert starts == [(0, 0.01), (1, 0.03)]
    assert ends == [(0, 0.1), (0, 0.5), (1, 1.0)]


def test_threads_of_several_processes_are_distinguished() -> None:
    thread = (42 << 24) + 7
    timeline = make_timeline(
        calls=[(0, 1, LAUNCH)], ranges=[(0, 5, "decode")], threads=[thread], range_threads=[thread]
    )
    timeline.facts["processes"] = {"42": "python"}
    found = events(timeline)
    assert [(e["pid"], e["tid"]) for e in found if e["ph"] == "X"] == [(42, 7), (42, 7)]
    assert "host: python 42" in [e["args"]["name"] for e in found if e["ph"] == "M"]
    plain = make_timeline(calls=[(0, 1, LAUNCH)], threads=[DEVICE - 1])
    assert [(e["pid"], e["tid"]) for e in events(plain) if e["ph"] == "X"] == [(0, DEVICE - 1)]
    assert [e["ph"] for e in events(make_timeline())] == ["M"]


def test_kernels_as_a_table() -> None:
    table = kernel_columns(small())
    assert table["name"] == [COPY, "k"]  # most time first
    assert table["kind"] == ["copy", "kernel"]
    assert table["launches"] == [1, 2]
    assert table["total_ns"] == [1501, 400]
    assert (table["mean_ns"][1], table["median_ns"][1]) == (200.0, 200.0)
    assert (table["min_ns"][1], table["max_ns"][1]) == (100, 300)
    assert table["std_ns"] == [None, pytest.approx(141.42, abs=0.01)]
    assert table["range_path"] == ["decode", "decode/module:layers.0"]
    assert (table["phase"], table["module"]) == (["decode", "decode"], [None, "layers.0"])
    outside = kernel_columns(make_timeline([(0, 5, "k", -1)]))
    assert (outside["phase"], outside["module"], outside["range_path"]) == ([None], [None], [None])
    assert kernel_columns(make_timeline())["launches"] == []


def test_ranges_as_a_table_hold_what_was_launched_inside_them() -> None:
    table = range_columns(small())
    assert table["range_path"] == ["decode", "decode/module:layers.0"]
    assert table["depth"] == [0, 1]
    assert table["instances"] == [1, 1]
    assert table["host_ns"] == [4000, 20]
    assert table["device_ns"] == [1901, 400]
    assert table["launches"] == [3, 2]
    assert table["phase"] == ["decode", "decode"]
    assert range_columns(make_timeline())["range_path"] == []


# the drawing of one step


def drawn(timeline: Timeline) -> dict[str, Any]:
    return draw_step(timeline, attribute(timeline))


def test_a_step_is_drawn_from_its_beginning_to_the_end_of_its_work() -> None:
    timeline = make_timeline(
        ops=[(50, 130, "k", 0), (140, 150, COPY, 1)],
        calls=[(10, 20, LAUNCH), (95, 105, SYNC)],
        ranges=[(0, 100, "decode"), (5, 25, "aten::mm"), (5, 30, "module:mlp")],
    )
    found = drawn(timeline)
    assert (found["phase"], found["start_ns"], found["span_s"]) == ("decode", 0, pytest.approx(150e-9))
    lanes = {lane["name"]: lane["events"] for lane in found["lanes"]}
    assert list(lanes) == ["ranges", "CUDA calls", "kernels, stream 7", "copies, stream 7"]
    assert [e["name"] for e in lanes["ranges"]] == ["decode", "module:mlp"]  # operators would hide the rest
    assert [(e["name"], e["family"]) for e in lanes["CUDA calls"]] == [
        ("cudaLaunchKernel", "call"),
        ("cudaStreamSynchronize", "sync"),
    ]
    kernel = lanes["kernels, stream 7"][0]
    assert (kernel["start_s"], kernel["end_s"]) == (pytest.approx(50e-9), pytest.approx(130e-9))


def test_the_typical_step_is_the_one_of_median_length() -> None:
    lengths = (10, 90, 30)
    ranges: list[Range] = [(1000 * n, 1000 * n + length, "decode_step") for n, length in enumerate(lengths)]
    timeline = make_timeline([(1, 2, "k", 0)], [(0, 1, LAUNCH)], ranges)
    assert drawn(timeline)["start_ns"] == 2000
    both = make_timeline([(1, 2, "k", 0)], [(0, 1, LAUNCH)], [(0, 10, "prefill"), (20, 30, "decode")])
    assert (drawn(both)["phase"], drawn(both)["start_ns"]) == ("decode", 20)


def test_a_loop_of_many_operations_is_cut_at_the_waits_of_the_host() -> None:
    ops: list[Op] = [(10 * n, 10 * n + 5, "k", 0) for n in range(500)]
    calls: list[Call] = [
        (0, 1, LAUNCH),
        (990, 1000, SYNC),
        (1990, 2000, SYNC),
        (3990, 4000, SYNC),
        (4490, 4500, SYNC),
    ]
    timeline = make_timeline(ops, calls, [(0, 5000, "decode")])
    found = drawn(timeline)
    assert (found["start_ns"], found["span_s"]) == (
        1000,
        pytest.approx(1000e-9),
    )  # 1000, 2000 and 500: the middle one
    few = make_timeline(ops, calls[:3], [(0, 5000, "decode")])
    assert (drawn(few)["start_ns"], drawn(few)["span_s"]) == (0, pytest.approx(5000e-9))


def test_events_on_the_edge_are_cut_and_others_left_out() -> None:
    timeline = make_timeline(
        ops=[(0, 100, "early", -1), (100, 110, "a", 0), (150, 260, "late", -1), (300, 310, "after", -1)],
        calls=[(101, 102, LAUNCH)],
        ranges=[(100, 200, "decode")],
    )
    found = drawn(timeline)
    (lane,) = [lane for lane in found["lanes"] if lane["name"].startswith("kernels")]
    assert [(e["name"], round(e["start_s"] * 1e9), round(e["end_s"] * 1e9)) for e in lane["events"]] == [
        ("a", 0, 10),
        ("late", 50, 100),
    ]


def test_several_devices_are_named_and_without_phases_the_middle_is_drawn() -> None:
    timeline = make_timeline(
        [(0, 10, "a", 0), (10, 20, "b", 0), (12, 25, "c", 1), (30, 40, "d", 1)],
        [(0, 1, LAUNCH), (2, 3, LAUNCH)],
        devices=[0, 0, 1, 0],
    )
    found = drawn(timeline)
    assert (found["phase"], found["start_ns"], found["span_s"]) == (None, 12, pytest.approx(28e-9))
    names = [lane["name"] for lane in found["lanes"]]
    assert names == ["device 0: kernels, stream 7", "device 1: kernels, stream 7"]
    assert drawn(make_timeline()) == {}


def test_a_drawing_holds_at_most_fifteen_hundred_events() -> None:
    ops: list[Op] = [(10 * n, 10 * n + 5, "k", 0) for n in range(2000)]
    found = drawn(make_timeline(ops, [(0, 1, LAUNCH)], [(0, 20000, "decode")]))
    assert (found["shown_events"], found["all_events"]) == (1500, 2002)
    assert 1490 < sum(len(lane["events"]) for lane in found["lanes"]) <= 1500
    assert all(lane["events"] for lane in found["lanes"])


def test_a_long_loop_without_waits_is_drawn_from_its_middle() -> None:
    ops: list[Op] = [(10 * n, 10 * n + 5, "k", 0) for n in range(4500)]
    found = drawn(make_timeline(ops, [(0, 1, LAUNCH)], [(0, 45000, "decode")]))
    assert (found["start_ns"], found["span_s"]) == (22500, pytest.approx(4000e-9))  # four hundred operations


def test_a_short_step_is_drawn_whole_wherever_it_is() -> None:
    """How much ran before it, and what begins when it ends, does not matter."""
    ops: list[Op] = [(10 * n, 10 * n + 5, "k", 0) for n in range(450)]
    calls: list[Call] = [(1, 2, LAUNCH), (3100, 3200, SYNC), (3300, 3500, SYNC), (3600, 3900, SYNC)]
    timeline = make_timeline(ops, calls, [(3000, 4600, "decode"), (4600, 4700, "module:after")])
    found = drawn(timeline)
    assert (found["start_ns"], found["span_s"]) == (3000, pytest.approx(1600e-9))
    assert [e["name"] for e in found["lanes"][0]["events"]] == ["decode"]


def test_ranks_in_one_trace_have_processes_and_arrows_of_their_own() -> None:
    text = "".join(perfetto_ranks([RankTimeline(0, small()), RankTimeline(3, small())]))
    found = json.loads(text)["traceEvents"]
    names = {e["args"]["name"] for e in found if e["ph"] == "M" and e["name"] == "process_name"}
    assert {"rank 0 device 0: GPU", "rank 3 device 0: GPU"} <= names
    lanes = {(e["pid"], e["tid"]) for e in found if e["ph"] == "X" and e["cat"] not in ("range", "call")}
    assert len(lanes) == 2
    arrows = [e["id"] for e in found if e["ph"] == "s"]
    assert len(set(arrows)) == len(arrows) == 4
    shown = [e for e in found if e["ph"] == "X"]
    assert len(shown) == 2 * len([e for e in events(small()) if e["ph"] == "X"])
