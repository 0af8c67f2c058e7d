"""Charts in a real browser: real glyph boxes do not collide, colours can be told and read, keys work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from llm_perf_opt.analysis.roofline.what_if import on_other_devices
from llm_perf_opt.core import units
from llm_perf_opt.reporting.charts import figures as charts
from llm_perf_opt.reporting.charts.axes import Kind
from llm_perf_opt.reporting.charts.bars import Bar, bars
from llm_perf_opt.reporting.charts.dots import Dot, DotRow, dot_chart
from llm_perf_opt.reporting.charts.lines import histogram
from llm_perf_opt.reporting.charts.waterfall import Step, waterfall

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.needs("chromium")

FAMILIES = list(charts.FAMILY_COLOURS)

OVERLAPS = """() => [...document.querySelectorAll('svg')].flatMap(svg => {
  const frame = svg.getBoundingClientRect();
  const boxes = [...svg.querySelectorAll('text')].filter(t => !t.getAttribute('transform') && t.textContent)
    .map(t => ({text: t.textContent, r: t.getBoundingClientRect()}));
  const bad = [];
  boxes.forEach((a, i) => {
    if (a.r.left < frame.left - 1 || a.r.right > frame.right + 1 || a.r.bottom > frame.bottom + 1)
      bad.push('outside: ' + a.text);
    boxes.slice(i + 1).forEach(b => {
      const w = Math.min(a.r.right, b.r.right) - Math.max(a.r.left, b.r.left);
      const h = Math.min(a.r.bottom, b.r.bottom) - Math.max(a.r.top, b.r.top);
      // Line boxes are taller than glyphs: rows may touch by a few pixels without the letters doing so.
      if (w > 0.5 && h > 4.5) bad.push(a.text + ' / ' + b.text);
    });
  });
  return bad;
})"""

CONTRASTS = """() => {
  const parse = c => c.match(/[\\d.]+/g).slice(0, 3).map(Number).map(v => {
    v /= 255; return v <= 0.03928 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4);
  });
  const light = c => { const [r, g, b] = parse(c); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const svg = document.querySelector('svg');
  const fill = node => getComputedStyle(node).fill;
  const probe = (tag, name) => {
    const n = document.createElementNS('http://www.w3.org/2000/svg', tag);
    n.setAttribute('class', name); svg.appendChild(n); const c = fill(n); n.remove(); return c;
  };
  const surface = fill(svg.querySelector('.lpo-surface'));
  const out = {text: ratio(probe('text', 'lpo-text'), surface), muted: ratio(probe('text', 'lpo-muted'), surface)};
  for (let i = 1; i <= 8; i++) out['ink' + i] = ratio(probe('text', 'lpo-ink-' + i), probe('rect', 'lpo-fill-' + i));
  return out;
}"""


def usual_charts() -> list[str]:
    """Data as runs have it: skewed shares, close ceilings, long names, many events."""
    parts = ("compute", "launch", "sync", "copy", "host")
    rows = [
        charts.StackedRow(
            phase, [charts.Segment(name, 0.7 / (3**i) + 1e-4 * j) for i, name in enumerate(parts)]
        )
        for j, phase in enumerate(("vision", "prefill", "decode"))
    ]
    points = [
        charts.RooflinePoint(
            f"{FAMILIES[i % 8]} kernel {i}",
            10 ** ((i * 7 % 24) / 6 - 1),
            10 ** (11 + (i * 5 % 11) / 5),
            weight=1 / (i + 1),
            group=FAMILIES[i % 8],
        )
        for i in range(30)
    ]
    roofs = [
        charts.Roof("bfloat16", 209.5e12),
        charts.Roof("float16", 209.5e12),
        charts.Roof("float32", 104.8e12),
    ]
    memory = [charts.Roof("memory", 1.792e12), charts.Roof("measured", 1.55e12)]
    curves = {
        f"batch {b}": [(c, 6.7e9 + 61440.0 * c * b) for c in (1024, 4096, 8192, 32768)] for b in (1, 8, 16)
    }
    sizes = {"L4": 22.5 * 2.0**30, "RTX 4090": 24 * 2.0**30, "RTX 5090": 32 * 2.0**30, "A100": 40 * 2.0**30}
    durations = [2e-6 * 1.03**i for i in range(250)]
    events = [
        charts.Event(f"kernel {i}", i * 4e-5, i * 4e-5 + 1e-5 * (1 + i % 3), FAMILIES[i % 6])
        for i in range(270)
    ]
    lanes = [
        charts.Lane("stream 7", events),
        charts.Lane(
            "host thread 4711 (python3)", [charts.Event("cudaStreamSynchronize", 0.002, 0.009, "sync")]
        ),
    ]
    long_names = [
        Bar("void cutlass::Kernel2<" + "cutlass_80_tensorop_" * 6 + f"{i}>", 2.0**-i) for i in range(9)
    ]
    return [
        charts.stacked_bars("Where the wall-clock goes", rows, colours=charts.BUDGET_COLOURS),
        charts.stacked_bars("Bytes", rows, as_share=False, formatter=units.seconds),
        charts.roofline("Roofline by kernel", points, compute=roofs, memory=memory, focusable=True),
        charts.memory_chart(curves, sizes),
        histogram("Kernel durations", durations, x_label="Duration", x_log=True),
        histogram("Time per token", [0.011 + 1e-5 * (i % 9) for i in range(64)], x_label="Duration"),
        charts.timeline("One decode step", lanes, span_s=0.011),
        bars("Kernels", long_names),
        *_what_if_charts(),
        *_comparison_charts(),
    ]


def _comparison_charts() -> list[str]:
    steps = [Step(f"decode: a cause with a long name {i}", 0.1 * (-1) ** i) for i in range(6)]
    kinds = [Kind("shown to be better", "circle", 2), Kind("no difference shown", "hollow")]
    rows = [
        DotRow(
            f"component.language_model_part_{i}",
            [Dot(1 + i / 9, kinds[i % 2], 0.9 + i / 9, 1.2 + i / 9)],
            f"+{i} %",
        )
        for i in range(9)
    ]
    return [
        waterfall("Wall-clock of a sample, from A to B", ("A", 2.0), steps, ("B", 2.0)),
        dot_chart("Change of every metric", rows, x_label="B ÷ A", log=True, reference=1.0),
    ]


def _what_if_charts() -> list[str]:
    from tests.unit.analysis.roofline.test_elsewhere import priced

    shown = on_other_devices(priced())
    return [charts.other_device_chart(shown), charts.other_device_chart(shown, first_token=True)]


def open_page(browser: Browser, folder: Path, **options: Any) -> Any:
    path = folder / "charts.html"
    body = "".join(f"<div>{markup}</div>" for markup in usual_charts())
    path.write_text(f"<!doctype html><meta charset=utf-8><body>{body}", encoding="utf-8")
    page = browser.new_page(**options)
    page.goto(path.as_uri())
    return page


def test_no_text_covers_another_or_leaves_its_chart(browser: Browser, tmp_path: Path) -> None:
    page = open_page(browser, tmp_path, viewport={"width": 820, "height": 900})
    assert page.evaluate(OVERLAPS) == []
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_both_themes(browser: Browser, tmp_path: Path, scheme: str) -> None:
    page = open_page(browser, tmp_path, color_scheme=scheme)
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) == 10
    assert {name: ratio for name, ratio in contrasts.items() if ratio < 4.5} == {}
    page.close()


def test_page_theme_wins_over_the_charts_own(browser: Browser, tmp_path: Path) -> None:
    page = open_page(browser, tmp_path)
    page.add_style_tag(content=":root{--chart-surface:rgb(1, 2, 3)}")
    assert page.evaluate("getComputedStyle(document.querySelector('.lpo-surface')).fill") == "rgb(1, 2, 3)"
    page.close()


def test_charts_shrink_to_a_phone(browser: Browser, tmp_path: Path) -> None:
    page = open_page(browser, tmp_path, viewport={"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


def test_roofline_points_can_be_reached_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    page = open_page(browser, tmp_path)
    page.keyboard.press("Tab")
    assert "FLOP/byte" in page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.close()


def test_a_chart_alone_is_a_valid_document(browser: Browser, tmp_path: Path) -> None:
    for place, markup in enumerate(usual_charts()):
        path = tmp_path / f"{place}.svg"
        path.write_text(markup, encoding="utf-8")
        page = browser.new_page()
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.nodeName") == "svg"
        assert page.evaluate("document.querySelector('parsererror') === null")
        page.close()
