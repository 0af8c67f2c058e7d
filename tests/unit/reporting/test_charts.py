"""Every chart is well-formed, escaped, deterministic, accessible, and truthful to its data."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.analysis.roofline.what_if import OtherDevices
from llm_perf_opt.core import units
from llm_perf_opt.reporting.charts import figures as charts
from llm_perf_opt.reporting.charts import svg as charts_svg
from llm_perf_opt.reporting.charts.axes import Kind, LabelSpace, Plot, linear_scale, log_scale, tidy
from llm_perf_opt.reporting.charts.bars import Bar, bars
from llm_perf_opt.reporting.charts.dots import Dot, DotRow, dot_chart
from llm_perf_opt.reporting.charts.lines import histogram
from llm_perf_opt.reporting.charts.waterfall import Step, change_waterfall, waterfall
from llm_perf_opt.summary import (
    Budget,
    BudgetPart,
    Coverage,
    Hardware,
    Kernel,
    Params,
    Peak,
    Prediction,
    SampleTimes,
    Static,
    StaticPhase,
)
from llm_perf_opt.summary.kernels import KernelTarget

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</title><script>alert(1)</script>\x00\x1b&\"'\ud800 a::b<c>\u202e"


def parse(markup: str) -> ET.Element:
    root = ET.fromstring(markup)
    assert root.tag == f"{SVG}svg"
    labelled = (root.get("aria-labelledby") or "").split()
    assert [root.find(f"{SVG}title").get("id"), root.find(f"{SVG}desc").get("id")] == labelled  # type: ignore[union-attr]
    assert root.find(f"{SVG}desc").text  # type: ignore[union-attr]
    assert not list(root.iter(f"{SVG}script"))
    width, height = (float(root.get(side) or "nan") for side in ("width", "height"))
    assert root.get("viewBox") == f"0 0 {charts_svg.number(width)} {charts_svg.number(height)}"
    for node in root.iter():
        for name, value in node.attrib.items():
            assert not name.startswith("on")
            if name.startswith(("data-", "aria-")):
                continue
            assert "nan" not in value.lower().split() and "inf" not in value.lower().split(), (node.tag, name)
    return root


def marks(root: ET.Element, tag: str, name: str) -> list[ET.Element]:
    return [node for node in root.iter(f"{SVG}{tag}") if name in (node.get("class") or "")]


def boxes_of_text(root: ET.Element) -> list[tuple[float, float, float, float]]:
    boxes = []
    for node in root.iter(f"{SVG}text"):
        if node.get("transform"):
            continue
        size = 14.0 if "lpo-head" in (node.get("class") or "") else float(node.get("font-size") or 12)
        # Glyphs are a little narrower than the estimate that layout uses, which errs on the wide side.
        width = charts_svg.text_width(node.text or "", size) * 0.9
        x, y = float(node.get("x") or 0), float(node.get("y") or 0)
        left = {"middle": x - width / 2, "end": x - width}.get(node.get("text-anchor") or "", x)
        boxes.append((left, y - size * 0.75, left + width, y + 2))
    return boxes


def assert_no_overlap(root: ET.Element) -> None:
    boxes = boxes_of_text(root)
    width = float(root.get("width") or 0)
    for place, a in enumerate(boxes):
        assert a[0] >= -1 and a[2] <= width + 1
        for b in boxes[place + 1 :]:
            assert not (a[0] < b[2] and a[2] > b[0] and a[1] < b[3] and a[3] > b[1]), (a, b)


def every_chart(name: str = "name") -> dict[str, str]:
    """One of each chart, with ``name`` wherever a name can be."""
    part = charts.Segment(name, 1.0, name)
    point = charts.RooflinePoint(name, 10.0, 1e12, group=name, detail=name, data={name: name})
    roofs = [charts.Roof(name, 1e14)]
    return {
        "stacked": charts.stacked_bars(name, [charts.StackedRow(name, [part])]),
        "bars": bars(name, [Bar(name, 1.0, detail=name, group=name, data={name: name})]),
        "roofline": charts.roofline(name, [point], compute=roofs, memory=[charts.Roof(name, 1e12)]),
        "lines": charts.line_chart(
            name,
            [charts.Line(name, [(1, 2.0), (2, 3.0)])],
            x_label=name,
            y_label=name,
            levels=[charts.Level(name, 2.5)],
        ),
        "histogram": histogram(name, [1.0, 2.0, 2.5], x_label=name),
        "timeline": charts.timeline(name, [charts.Lane(name, [charts.Event(name, 0.0, 1.0, name, name)])]),
    }


@pytest.mark.parametrize("kind", list(every_chart()))
def test_hostile_names_are_text(kind: str) -> None:
    markup = every_chart(HOSTILE)[kind]
    root = parse(markup)
    assert "<script" not in markup
    assert "<script>" in "".join(node.text or "" for node in root.iter(f"{SVG}title"))


@pytest.mark.parametrize("kind", list(every_chart()))
def test_same_data_same_bytes(kind: str) -> None:
    assert every_chart()[kind] == every_chart()[kind]


@pytest.mark.parametrize("kind", list(every_chart()))
def test_theme_is_overridable_and_follows_the_reader(kind: str) -> None:
    markup = every_chart()[kind]
    assert "prefers-color-scheme:dark" in markup
    assert "var(--chart-surface," in markup and "var(--chart-1," in markup


def test_two_charts_of_one_page_have_different_ids() -> None:
    ids = [
        node.get("id")
        for markup in every_chart().values()
        for node in ET.fromstring(markup).iter()
        if node.get("id")
    ]
    assert len(ids) == len(set(ids)) == 12


@given(st.text(max_size=60), st.floats(allow_nan=True, allow_infinity=True))
def test_any_text_and_number_gives_well_formed_xml(name: str, value: float) -> None:
    for markup in (
        charts.stacked_bars(name, [charts.StackedRow(name, [charts.Segment(name, value)])]),
        bars(name, [Bar(name, value), Bar("x", 1.0)]),
        charts.roofline(
            name,
            [charts.RooflinePoint(name, value, value), charts.RooflinePoint("x", 3.0, None)],
            compute=[charts.Roof("c", 1e12)],
            memory=[charts.Roof("m", 1e11)],
        ),
        charts.line_chart(name, [charts.Line(name, [(1.0, 1.0), (2.0, value)])], x_label="x", y_label="y"),
        histogram(name, [1.0, value, 3.0], x_label="x", x_log=True),
        charts.timeline(name, [charts.Lane(name, [charts.Event(name, 0.0, value), charts.Event("x", 0, 1)])]),
    ):
        parse(markup)


def test_stacked_parts_fill_the_bar_in_proportion() -> None:
    rows = [
        charts.StackedRow("a", [charts.Segment("x", 3.0), charts.Segment("y", 1.0)]),
        charts.StackedRow("b", [charts.Segment("y", 2.0)]),
    ]
    rects = marks(parse(charts.stacked_bars("t", rows)), "rect", "lpo-edge")
    widths = [float(rect.get("width") or 0) for rect in rects]
    assert widths[0] == pytest.approx(3 * widths[1], rel=1e-3)
    assert widths[2] == pytest.approx(widths[0] + widths[1], rel=1e-3)
    # The same part has the same colour in both bars.
    assert rects[1].get("class") == rects[2].get("class") != rects[0].get("class")
    lengths = marks(parse(charts.stacked_bars("t", rows, as_share=False)), "rect", "lpo-edge")
    assert float(lengths[2].get("width") or 0) == pytest.approx(
        float(lengths[0].get("width") or 0) * 2 / 3, rel=1e-3
    )


def test_missing_bar_prints_a_dash_and_draws_nothing() -> None:
    root = parse(bars("t", [Bar("known", 1.0), Bar("absent", None)]))
    assert len(marks(root, "rect", "lpo-fill")) == 1
    assert units.MISSING in [node.text for node in root.iter(f"{SVG}text")]


def test_roofline_geometry() -> None:
    points = [charts.RooflinePoint("at ridge", 100.0, 1e14), charts.RooflinePoint("half", 100.0, 5e13)]
    root = parse(
        charts.roofline("t", points, compute=[charts.Roof("c", 1e14)], memory=[charts.Roof("m", 1e12)])
    )
    circles = {node.get("data-name"): node for node in root.iter(f"{SVG}circle")}
    ridge, half = circles["at ridge"], circles["half"]
    assert ridge.get("cx") == half.get("cx")
    assert float(ridge.get("cy") or 0) < float(half.get("cy") or 0)
    paths = [node.get("d") or "" for node in marks(root, "path", "lpo-roof")]
    corner = f"{ridge.get('cx')} {ridge.get('cy')}"
    assert any(path.endswith(f"L{corner}") for path in paths), "the slanted roof ends in the ridge"
    assert any(path.startswith(f"M{corner}") for path in paths), "the flat roof starts in the ridge"
    assert ridge.find(f"{SVG}title").text == "at ridge: 100 FLOP/byte, reaches 100 TFLOP/s"  # type: ignore[union-attr]


def points(root: ET.Element) -> list[ET.Element]:
    """Return the marks of a chart, those of its legend left out."""
    return [node for node in root.iter(f"{SVG}circle") if node.get("data-name") is not None]


def legend_of(root: ET.Element) -> list[str]:
    """Return the names of the kinds of marks in a legend."""
    return [name for node in root.iter() if (name := node.get("data-legend")) is not None]


def legend_shapes(root: ET.Element) -> list[str]:
    """Return the shapes that a legend explains, as they are drawn in it: every one has a name."""
    found = []
    for node in root.iter():
        if (name := node.get("data-legend")) is None:
            continue
        assert name
        role = (node.get("class") or "").split()
        if node.tag == f"{SVG}path":
            found.append("dashed" if "lpo-dash" in role else "diamond")
        elif "lpo-hollow" in role:
            found.append("hollow")
        else:
            found.append("circle" if "lpo-edge" in role else "large")
    return found


def test_roofline_legend_names_every_kind_of_mark() -> None:
    compute, memory = [charts.Roof("a", 1e14), charts.Roof("b", 5e13)], [charts.Roof("m", 1e12)]
    seen = [charts.RooflinePoint("p", 10.0, 1e12, weight=2.0), charts.RooflinePoint("q", 20.0, 1e12)]
    root = parse(charts.roofline("t", seen, compute=compute, memory=memory))
    assert legend_shapes(root) == ["circle", "large", "dashed"]
    root = parse(
        charts.roofline("t", [charts.RooflinePoint("p", 10.0, None)], compute=compute[:1], memory=memory)
    )
    assert legend_shapes(root) == ["hollow"]


def test_a_phase_has_one_colour_in_every_chart() -> None:
    hardware = Hardware("X", "gpu", {"bfloat16": Peak(1e14, "sheet")}, 1e12, "catalogue")
    split = {"one sample": Budget(1.0, [BudgetPart(name, 0.25, 0.25) for name in charts.PHASE_COLOURS])}
    samples = [SampleTimes("s", 1, 1, 1, 1, 1.0, 1.0, 1.0, 1.0), SampleTimes("t", 1, decode_s=1.0)]
    measured = {
        "decode": Prediction(1e-3, "memory", 10.0, "", 1e9, 1e9),
        "vision": Prediction(1.0, "compute", 2.0, "", 1e9, 1e6),
    }
    found: dict[str, set[str]] = {}
    for markup in (
        charts.budget_chart(split),
        charts.sample_chart(samples),
        charts.phase_roofline(_static(), hardware, "bfloat16", measured),
    ):
        for node in parse(markup).iter():
            colour = re.search(r"lpo-(?:fill|line)-(\d)", node.get("class") or "")
            if node.get("data-name") in charts.PHASE_COLOURS and colour:
                found.setdefault(str(node.get("data-name")), set()).add(colour.group(1))
    assert {name: {str(index + 1)} for name, index in charts.PHASE_COLOURS.items()} == found
    assert not set(charts.component_colours(["a", "b", "c", "d"]).values()) & set(
        charts.PHASE_COLOURS.values()
    )


def test_waterfall_steps_start_where_the_one_before_ended() -> None:
    root = parse(waterfall("t", ("A", 4.0), [Step("more", 1.0), Step("less", -2.0)], ("B", 3.0)))
    bars = {node.get("data-name"): node for node in root.iter(f"{SVG}rect") if node.get("data-name")}
    end = {name: float(node.get("x") or 0) + float(node.get("width") or 0) for name, node in bars.items()}
    assert float(bars["more"].get("x") or 0) == pytest.approx(end["A"], abs=0.02)
    assert end["less"] == pytest.approx(end["more"], abs=0.02)
    assert float(bars["less"].get("x") or 0) == pytest.approx(end["B"], abs=0.02)
    assert legend_of(root) == ["whole", "adds", "saves"]
    assert "No data" in waterfall("t", ("A", 0.0), [], ("B", float("nan")))


def test_a_waterfall_of_changes_ends_at_their_sum_also_below_zero() -> None:
    drawn = change_waterfall("t", [Step("more", 1.0), Step("less", -3.0)], "together")
    bars = {
        r.get("data-name"): float(r.get("data-value") or 0) for r in parse(drawn).iter() if r.get("data-name")
    }
    assert bars == {"more": 1.0, "less": -3.0, "together": -2.0}
    assert "−2.00 s" in drawn
    assert "No data" in change_waterfall("t", [Step("none", 0.0)], "together")


def test_dots_show_intervals_and_their_reference() -> None:
    rows = [
        DotRow("x", [Dot(1.2, Kind("worse", "circle", 5), 1.1, 1.3)]),
        DotRow("broken", [Dot(math.nan, Kind("n", "square"))]),
    ]
    root = parse(dot_chart("t", rows, x_label="B ÷ A", log=True, reference=1.0))
    (dot,) = points(root)
    assert (dot.get("tabindex"), dot.get("data-value")) == ("0", "1.2")
    assert legend_of(root) == ["worse"]
    assert len(marks(root, "path", "lpo-roof")) == 2
    assert "No data" in dot_chart("t", rows[1:], x_label="")


def test_roofline_unmeasured_point_sits_hollow_on_the_roof() -> None:
    point = charts.RooflinePoint("p", 10.0, None)
    full = charts.RooflinePoint("q", 10.0, 1e13)
    root = parse(
        charts.roofline("t", [point, full], compute=[charts.Roof("c", 1e14)], memory=[charts.Roof("m", 1e12)])
    )
    a, b = points(root)
    assert a.get("cy") == b.get("cy")
    assert "lpo-hollow" in (a.get("class") or "") and "lpo-hollow" not in (b.get("class") or "")


def test_roofline_without_limits_is_noted() -> None:
    root = parse(charts.roofline("t", [charts.RooflinePoint("p", 1.0, 1.0)], compute=[], memory=[]))
    assert "not known" in root.find(f"{SVG}desc").text  # type: ignore[union-attr,operator]
    assert not list(root.iter(f"{SVG}circle"))


def test_roofline_focusable_points_can_be_reached_by_keyboard() -> None:
    point = charts.RooflinePoint("p", 10.0, 1e12)
    markup = charts.roofline(
        "t", [point], compute=[charts.Roof("c", 1e14)], memory=[charts.Roof("m", 1e12)], focusable=True
    )
    circle = next(parse(markup).iter(f"{SVG}circle"))
    assert circle.get("tabindex") == "0" and "10.0 FLOP/byte" in (circle.get("aria-label") or "")


def test_equal_ceilings_are_drawn_once() -> None:
    root = parse(
        charts.roofline(
            "t",
            [],
            compute=[charts.Roof("bfloat16", 1e14), charts.Roof("float16", 1e14)],
            memory=[charts.Roof("m", 1e12)],
        )
    )
    assert len(marks(root, "path", "lpo-roof")) == 2
    assert "bfloat16, float16 100 TFLOP/s" in [node.text for node in root.iter(f"{SVG}text")]


def test_labels_of_a_usual_roofline_do_not_overlap() -> None:
    points = [
        charts.RooflinePoint(
            f"kernel {i}", 10 ** (i / 5 - 1), 10 ** (11 + (i * 7 % 13) / 5), weight=1 / (i + 1)
        )
        for i in range(20)
    ]
    root = parse(
        charts.roofline(
            "Roofline",
            points,
            compute=[charts.Roof("bfloat16", 2.095e14), charts.Roof("float32", 1.048e14)],
            memory=[charts.Roof("memory", 1.792e12)],
        )
    )
    assert_no_overlap(root)


def test_labels_of_the_other_charts_do_not_overlap() -> None:
    sizes = {"RTX 4090": 24 * 2.0**30, "L4": 22.5 * 2.0**30, "RTX 5090": 32 * 2.0**30}
    curves = {
        f"batch {b}": [(c, 6.7e9 + 61440.0 * c * b) for c in (1024, 2048, 4096, 8192, 32768)]
        for b in (1, 8, 16)
    }
    assert_no_overlap(parse(charts.memory_chart(curves, sizes)))
    values = [1e-5 * 1.02**i for i in range(300)]
    assert_no_overlap(parse(histogram("h", values, x_label="Duration", x_log=True)))
    rows = [charts.StackedRow("decode", [charts.Segment(f"part {i}", 2.0**-i) for i in range(12)])]
    assert_no_overlap(parse(charts.stacked_bars("s", rows)))
    long_names = [Bar("void cutlass::Kernel2<" + "x" * 200 + f"{i}>", 1.0 / i) for i in range(1, 9)]
    assert_no_overlap(parse(bars("b", long_names)))


def test_line_chart_gap_is_a_gap() -> None:
    line = charts.Line("s", [(1, 1.0), (2, 2.0), (3, None), (4, 4.0), (5, 5.0)])
    root = parse(charts.line_chart("t", [line], x_label="x", y_label="y"))
    assert len([path for path in marks(root, "path", "lpo-line-1") if path.get("stroke-width") == "2"]) == 2
    assert len(list(root.iter(f"{SVG}circle"))) == 4


def test_histogram_counts_every_value_once() -> None:
    values = [float(i) for i in range(100)]
    root = parse(histogram("t", values, x_label="x", bins=10, x_format=units.number))
    shown = [node.find(f"{SVG}title").text for node in marks(root, "rect", "lpo-edge")]  # type: ignore[union-attr]
    assert [text.rsplit(": ", 1)[1] for text in shown] == ["10"] * 10  # type: ignore[union-attr]


def test_timeline_merges_what_cannot_be_seen_and_keeps_the_time() -> None:
    tiny = [charts.Event(f"k{i}", i * 1e-6, i * 1e-6 + 5e-7, "gemm") for i in range(5000)]
    root = parse(
        charts.timeline("t", [charts.Lane("stream", [*tiny, charts.Event("long", 0.01, 1.0, "gemm")])])
    )
    rects = marks(root, "rect", "lpo-fill")
    assert len(rects) < 50
    shown = [node.find(f"{SVG}title").text or "" for node in rects if node.find(f"{SVG}title") is not None]  # type: ignore[union-attr]
    assert any("short events" in text for text in shown)


def test_timeline_overlapping_events_do_not_cover_each_other() -> None:
    events = [
        charts.Event("outer", 0.0, 1.0),
        charts.Event("inner", 0.2, 0.5),
        charts.Event("after", 1.0, 1.5),
    ]
    rects = marks(parse(charts.timeline("t", [charts.Lane("l", events)])), "rect", "lpo-fill")
    tops = [rect.get("y") for rect in rects]
    assert len(set(tops)) == 2


@given(st.floats(1e-9, 1e15), st.floats(1.0, 1e6))
def test_log_scale_is_monotone_and_holds_its_values(low: float, ratio: float) -> None:
    scale = log_scale([low, low * ratio], 0.0, 100.0)
    assert 0 <= scale(low) <= scale(low * ratio) <= 100
    assert all(scale.low * 0.999 <= tick <= scale.high * 1.001 for tick in scale.ticks())
    assert scale.ticks()


@given(st.floats(-1e12, 1e12), st.floats(1e-3, 1e12))
def test_linear_scale_has_round_ends_around_its_values(low: float, extent: float) -> None:
    scale = linear_scale([low, low + extent], 0.0, 100.0)
    assert -1e-6 <= scale(low) <= scale(low + extent) <= 100 + 1e-6
    assert 2 <= len(scale.ticks()) <= 12


def test_binary_scale_ticks_are_whole_gibibytes() -> None:
    ticks = linear_scale([37e9], 0.0, 100.0, binary=True).ticks(6)
    assert all((tick / 2**30) % 1 == 0 for tick in ticks)


@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        ("10.0 ms", "10 ms"),
        ("2.50 GiB", "2.5 GiB"),
        ("100 k", "100 k"),
        ("1.05 s", "1.05 s"),
        ("0 B", "0 B"),
        ("10.0", "10"),
    ],
)
def test_tidy_drops_only_empty_digits(given_text: str, expected: str) -> None:
    assert tidy(given_text) == expected


@given(st.text(max_size=80), st.floats(10, 300))
def test_fitted_text_fits(text: str, width: float) -> None:
    shown = charts_svg.fit(text, width)
    assert charts_svg.text_width(shown) <= width or shown == "…"


def test_label_space_refuses_what_is_outside_or_taken() -> None:
    space = LabelSpace(Plot(0, 100, 0, 100))
    assert space.is_free(10, 10, 20, 20) and not space.is_free(-1, 10, 20, 20)
    space.reserve(15, 15, 30, 30)
    assert not space.is_free(10, 10, 20, 20)


def _static() -> Static:
    return Static(
        params=Params(10, 5, {"vision": 4, "language_model": 6}),
        kv_bytes_per_token=2.0,
        phases={
            "decode": StaticPhase(1e9, 1e9, 1e6, 1e7, 1.0),
            "vision": StaticPhase(1e12, 1e8, 1e6, 0.0, 1.0),
        },
        modules=[],
        coverage=Coverage(1.0, []),
        conventions={},
        components={"sam": {"vision": 8e11}, "clip": {"vision": 2e11}, "lm": {"decode": 1e9}},
    )


def test_summary_charts() -> None:
    hardware = Hardware("X", "gpu", {"bfloat16": Peak(1e14, "sheet")}, 1e12, "catalogue")
    budget = {"decode": Budget(1.0, [BudgetPart("compute", 0.3, 0.3), BudgetPart("launch", 0.7, 0.7)])}
    predictions = {
        "decode": Prediction(1.01e-3, "memory", 10.0, "", 1e9, 1.01e9),
        "vision": Prediction(1e-2, "compute", None),
    }
    root = parse(charts.budget_chart(budget))
    assert "decode (1.00 s): compute 30.0 %, launch 70.0 %" in root.find(f"{SVG}desc").text  # type: ignore[union-attr,operator]
    parse(charts.component_chart(_static()))
    parse(charts.bytes_chart(_static()))
    drawn = {
        node.get("data-name"): node
        for node in parse(charts.phase_roofline(_static(), hardware, "bfloat16", predictions)).iter(
            f"{SVG}circle"
        )
    }
    # A tenth of the roof at 1e9 / 1.01e9 FLOP per byte under 1 TB/s.
    assert float(drawn["decode"].get("data-flops-per-s") or 0) == pytest.approx(1e12 * (1e9 / 1.01e9) / 10)
    assert drawn["vision"].get("data-flops-per-s") == ""
    # A prefill that was measured with the vision encoder inside it stands at the intensity of both.
    both = {"decode": Prediction(1.0, "compute", 2.0, "", 3e12, 1e9)}
    circles = parse(charts.phase_roofline(_static(), hardware, "bfloat16", both)).iter(f"{SVG}circle")
    (mark,) = [node for node in circles if node.get("data-name") == "decode"]
    assert float(mark.get("data-flops-per-s") or 0) == pytest.approx(1.5e12)
    assert float(mark.get("data-intensity") or 0) == pytest.approx(3e3)
    devices = [
        OtherDevices("A", 0.1, 0.01, True),
        OtherDevices("B", 0.2, 0.02, False),
        OtherDevices("C", 0.3, 0.03, None, is_own=True, tpot_measured_s=0.09),
    ]
    root = parse(charts.other_device_chart(devices))
    # Floors, one of a device that is too small, and what was measured on the run's own.
    assert legend_shapes(root) == ["circle", "hollow", "diamond"]
    drawn_rows = [
        (
            str(node.get("data-name"))[:1],
            node.get("data-value"),
            node.tag == f"{SVG}path",
            "hollow" in (node.get("class") or ""),
        )
        for node in root.iter()
        if node.get("data-value")
    ]
    assert drawn_rows == [
        ("A", "0.01", False, False),
        ("B", "0.02", False, True),
        ("C", "0.03", False, False),
        ("C", "0.09", True, False),
    ]
    shown = (root.find(f"{SVG}desc").text or "").split("; ")  # type: ignore[union-attr]
    assert [re.findall(r"[\d.]+ ms", row) for row in shown] == [
        ["10.0 ms"],
        ["20.0 ms"],
        ["30.0 ms", "90.0 ms"],
    ]
    assert legend_of(root)[0] in shown[2] and legend_of(root)[2] in shown[2]
    parse(charts.other_device_chart(devices, first_token=True))
    lane = {"name": "stream 7", "events": [{"name": "k", "start_s": 0.0, "end_s": 1e-3, "family": "gemm"}]}
    parse(charts.timeline_chart({"phase": "decode", "span_s": 2e-3, "lanes": [lane]}))


def test_kernel_roofline_leaves_out_kernels_without_counters() -> None:
    counted = Kernel("full", "short", "gemm", "decode", None, 1, 1.0, 0.5)
    counted.counters = {"intensity_flops_per_byte": 5.0, "achieved_flops_per_s": 1e12}
    bare = Kernel("bare", "bare", "gemm", None, None, 1, 1.0, 0.5)
    root = parse(
        charts.kernel_roofline(
            [bare, counted], compute=[charts.Roof("c", 1e14)], memory=[charts.Roof("m", 1e12)]
        )
    )
    (circle,) = points(root)
    assert (circle.get("data-kernel"), circle.get("data-full-name")) == ("1", "full")


def test_kernels_of_known_shape_are_drawn_with_the_best_measured() -> None:
    roofs: dict[str, list[charts.Roof]] = {
        "compute": [charts.Roof("c", 1e14)],
        "memory": [charts.Roof("m", 1e12)],
    }
    shaped = Kernel("full", "short", "gemm", "decode", None, 1, 1.0, 0.5)
    shaped.target = KernelTarget(
        1e-5, 2e-5, 2.5, "vLLM 0.24, cuBLAS", 2.5e-5, 4, "measured", flops=5e8, moved_bytes=1e7
    )
    root = parse(charts.kernel_roofline([shaped], **roofs))
    (circle,) = points(root)
    assert float(circle.get("data-intensity") or 0) == pytest.approx(50.0)
    assert float(circle.get("data-flops-per-s") or 0) == pytest.approx(2e13)
    (best,) = [node for node in root.iter(f"{SVG}path") if node.get("data-best")]
    assert float(best.get("data-best") or 0) == pytest.approx(5e13)
    assert legend_shapes(root) == ["circle", "diamond"]
    shown = root.find(f"{SVG}desc").text or ""  # type: ignore[union-attr]
    assert "× 2.50" in shown and "vLLM 0.24, cuBLAS" in shown
    # Counters are nearer to the truth than shapes; the best keeps its distance to them.
    shaped.counters = {"intensity_flops_per_byte": 5.0, "achieved_flops_per_s": 1e12}
    root = parse(charts.kernel_roofline([shaped], **roofs))
    (best,) = [node for node in root.iter(f"{SVG}path") if node.get("data-best")]
    assert float(best.get("data-best") or 0) == pytest.approx(2.5e12)
    shaped.target = None
    root = parse(charts.kernel_roofline([shaped], **roofs))
    assert legend_shapes(root) == ["circle"] and not [n for n in root.iter() if n.get("data-best")]


def test_empty_timeline_and_unset_summary_values() -> None:
    assert "No events" in charts.timeline_chart({})
    assert "No data" in charts.budget_chart({})
    assert math.isfinite(charts_svg.text_width(HOSTILE))
