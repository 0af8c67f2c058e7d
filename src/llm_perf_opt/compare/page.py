"""The pages of a comparison: ``comparison.html``, ``comparison.md``, the console, a comment and JUnit XML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from xml.etree import ElementTree

from llm_perf_opt.compare import tables
from llm_perf_opt.compare.data import Comparison, Conclusion, GateResult, MetricChange, Outcome
from llm_perf_opt.compare.gates import UNDECIDED
from llm_perf_opt.compare.tables import METRIC_NAMES, scope_name
from llm_perf_opt.core import units
from llm_perf_opt.core.escape import md_text, visible
from llm_perf_opt.core.units import format_signed_percent
from llm_perf_opt.reporting.charts.axes import Kind
from llm_perf_opt.reporting.charts.dots import Dot, DotRow, dot_chart
from llm_perf_opt.reporting.charts.waterfall import Step, change_waterfall, waterfall
from llm_perf_opt.reporting.console import WIDTH, write_console
from llm_perf_opt.reporting.document import (
    Block,
    Details,
    Document,
    Heading,
    Note,
    Only,
    Points,
    Section,
    Text,
    chart,
    charts_for,
)
from llm_perf_opt.reporting.html.page import write_html
from llm_perf_opt.reporting.markdown import bullets, render_table, write_markdown
from llm_perf_opt.reporting.tables import Table, format_change, simple

# The charts of a comparison: intervals of all metrics, causes of the change, samples in pairs.


_OUTCOMES: dict[Outcome, Kind] = {
    "better": Kind("better", "circle", 2),
    "worse": Kind("worse", "circle", 5),
    "no difference shown": Kind("no significant difference", "hollow"),
    "not enough data": Kind("not enough data for a test", "square", 6),
}
_SIDE_A, _SIDE_B = Kind("A", "circle", 6), Kind("B", "diamond", 0)
_MOST_PAIRS = 40
_MOST_STEPS = 9
_SMALL_CHANGE = 0.05
"""Of the whole: a smaller change is drawn by itself, because it would be invisible next to it."""
_LEAST_STEP = 0.01
"""Of the largest step: smaller ones cannot be seen."""


def _forest_chart(metrics: Sequence[MetricChange]) -> str | None:
    """Draw the change of every metric with its interval; the dashed line is zero."""
    rows = [
        DotRow(
            METRIC_NAMES.get(row.name, row.name).partition(" (")[0],
            [Dot(row.ratio, _OUTCOMES[row.outcome], row.low_ratio, row.high_ratio)],
            format_change(row.ratio),
        )
        for row in metrics
        if row.ratio is not None and row.ratio > 0 and row.outcome in _OUTCOMES
    ]
    if not rows:
        return None
    return dot_chart(
        "Change of every metric, with its interval",
        rows,
        x_label="B ÷ A (the broken line: no change)",
        formatter=format_change,
        log=True,
        reference=1.0,
    )


def _conclusion_chart(conclusion: Conclusion) -> str | None:
    """Draw the steps from A to B at equal work; small causes and the unexplained rest are one step."""
    if not conclusion.causes or not conclusion.change_s or conclusion.a_s is None or conclusion.b_s is None:
        return None
    largest = max(abs(cause.change_s) for cause in conclusion.causes)
    shown = [c for c in conclusion.causes if abs(c.change_s) >= _LEAST_STEP * largest][:_MOST_STEPS]
    steps = [Step(cause.name, cause.change_s) for cause in shown]
    left = conclusion.change_s - sum(step.change for step in steps)
    if abs(left) >= _LEAST_STEP * largest:
        steps.append(Step("everything else", left))
    title = f"{scope_name(conclusion).capitalize()}, from A to B at equal work"
    if abs(conclusion.change_s) < _SMALL_CHANGE * conclusion.a_s:
        return change_waterfall(f"{title}: the change alone", steps, "together")
    return waterfall(title, ("A", conclusion.a_s), steps, ("B", conclusion.b_s))


def _pair_charts(comparison: Comparison) -> list[str]:
    """Draw each sample's median on both sides, one chart per metric."""
    charts = []
    names = {"total": "Whole answer", "ttft": "Time to first token", "tpot": "Time per output token"}
    for metric, title in names.items():
        pairs = [row for row in comparison.samples if row.metric == metric]
        rows = [
            DotRow(row.sample, [Dot(row.a_s, _SIDE_A), Dot(row.b_s, _SIDE_B)], format_change(row.ratio))
            for row in pairs[:_MOST_PAIRS]
        ]
        if len(rows) > 1:
            more = f" (the first {len(rows)} of {len(pairs)})" if len(pairs) > len(rows) else ""
            charts.append(
                dot_chart(
                    f"{title}, sample by sample{more}",
                    rows,
                    x_label="Median of the repeats",
                    formatter=units.seconds,
                )
            )
    return charts


MOST_ROWS = 800
_MARKDOWN_MOST_ROWS = 60
_FILE = "comparison.json"


def comparison_html(comparison: Comparison) -> str:
    """Render ``comparison.html``."""
    return write_html(_comparison_document(comparison))


def comparison_markdown(comparison: Comparison) -> str:
    """Render ``comparison.md``; long tables are cut, ``comparison.json`` holds everything."""
    return write_markdown(_comparison_document(comparison))


def _comparison_document(comparison: Comparison) -> Document:
    """Return the comparison: the conclusion, gates, sides and cautions, then the details."""
    heading = tables.heading(comparison)
    trust: list[Block] = [Note(note, level="info") for note in comparison.notes]
    gates: list[Block] = [Heading("Gates"), _placed("gates", tables.gate_table(comparison.gates))]
    opening: list[Block] = [
        Text(comparison.sentence, "answer"),
        *(gates if comparison.gates else []),
        Points(_sides(comparison)),
        Details("How far to trust this", trust, "trust"),
    ]
    return Document(f"Comparison: {heading}", heading, opening, _sections(comparison), [_FILE])


def _sides(comparison: Comparison) -> list[tuple[str, str]]:
    common = tables.format_common_settings(comparison)
    return [*tables.side_facts(comparison), *([("both", f"settings {common}")] if common else [])]


def _sections(comparison: Comparison) -> list[Section]:
    metrics, splits, samples = comparison.metrics, comparison.splits, comparison.samples
    forest = [chart(lambda: _forest_chart(metrics) or "")] if _forest_chart(metrics) else []
    concluded = {conclusion.whole for conclusion in comparison.conclusions}
    further = [split for split in splits if split.whole not in concluded]
    causes: list[Block] = [Text(tables.SPLITS_TEXT if further else "")]
    pairs = charts_for(lambda: _pair_charts(comparison))
    shown: list[tuple[str, str, Sequence[Block], Table]] = [
        ("devices", "Devices", [], tables.device_table(comparison.conclusions)),
        ("metrics", "Metrics", forest, tables.metric_table(metrics)),
        ("expected", "Predicted and measured", *_expected(comparison)),
        ("causes", "Where the change comes from", causes, tables.cause_table(further)),
        ("samples", "Sample by sample", pairs, tables.sample_table(samples)),
        ("differences", "What else differs", [], tables.difference_table(comparison)),
        ("phases", "Phases", [], tables.phase_table(comparison.phases)),
        ("modules", "Modules", [], tables.module_table(comparison.modules, MOST_ROWS)),
        ("families", "Kernel families", [], tables.family_table(comparison.families)),
        ("kernels", "Kernels", [], tables.kernel_table(comparison.kernels, MOST_ROWS)),
    ]
    return [
        *(_conclusion(number, each) for number, each in enumerate(comparison.conclusions)),
        *(Section(name, title, [*before, _placed(name, table)]) for name, title, before, table in shown),
        Section("method", "How this was made", [Text(tables.describe_method(comparison))], "Method"),
    ]


def _placed(name: str, table: Table) -> Table:
    return replace(table, name=name, filter=True, most=_MARKDOWN_MOST_ROWS, rest_in=_FILE)


def _conclusion(number: int, conclusion: Conclusion) -> Section:
    """Return the details of a conclusion; the sentence of the first is already at the top of the page."""
    name = f"why-{number}"
    title = f"Why: {tables.scope_name(conclusion)}"
    drawn = (
        [chart(lambda: _conclusion_chart(conclusion) or "")]
        if number == 0 and _conclusion_chart(conclusion)
        else []
    )
    whole = tables.conclusion_table(conclusion, MOST_ROWS)
    cut = tables.conclusion_table(conclusion, _MARKDOWN_MOST_ROWS)
    blocks: list[Block] = [
        Text(" ".join([*([conclusion.sentence] if number else []), *tables.facts(conclusion)])),
        *drawn,
        Text(tables.EQUAL_WORK_TEXT if whole else ""),
        Only("html", [replace(whole, name=name, rest_in=_FILE)]),
        Only("markdown", [replace(cut, name=name, rest_in=_FILE)]),
    ]
    return Section(name, title, blocks)


def _expected(comparison: Comparison) -> tuple[list[Block], Table]:
    found = comparison.expected
    if found is None:
        return [], simple([], [])
    return [Text(tables.describe_expected(found))], tables.expected_table(found)


def comparison_console(comparison: Comparison, *, most: int = 8, width: int = WIDTH) -> str:
    """Lay out the conclusion, sides, metrics, gates and the kernels that changed most, in plain text."""
    differs = [
        ("differs", f"{row.what}: {row.a or units.MISSING} → {row.b or units.MISSING}")
        for row in comparison.differences
    ]
    blocks: list[Block] = [Text(comparison.sentence), Points([*tables.side_facts(comparison), *differs])]
    for number, conclusion in enumerate(comparison.conclusions):
        blocks += [
            Heading(f"why: {tables.scope_name(conclusion)} at equal work"),
            Points(
                [("", fact) for fact in ([conclusion.sentence] if number else []) + tables.facts(conclusion)]
            ),
            tables.conclusion_table(conclusion, most),
        ]
    if any(conclusion.moved for conclusion in comparison.conclusions):
        blocks += [Heading("devices"), tables.device_table(comparison.conclusions)]
    shown = [row for row in comparison.metrics if not row.name.startswith("component.")]
    blocks += [
        Heading("metrics"),
        tables.metric_table(shown) if shown else Text("nothing that both sides measured"),
    ]
    if any(row.blocks for row in shown):
        blocks.append(
            Text(
                "A, B: means over the samples both share; change: robust estimate over blocks, not their quotient"
            )
        )
    if comparison.expected is not None:
        described, table = _expected(comparison)
        blocks += [Heading("predicted and measured"), *described, table]
    moved = sorted(comparison.families, key=lambda row: -abs((row.b_s or 0.0) - (row.a_s or 0.0)))[:most]
    if moved:
        blocks += [Heading("kernel families that changed most"), tables.family_table(moved)]
    if comparison.gates:
        gates = [(f"gate {gate.metric}", f"{gate.status}: {gate.reason}") for gate in comparison.gates]
        blocks += [Heading("gates"), Points(gates)]
    if comparison.notes:
        blocks += [Heading("How far to trust this"), *(Note(note) for note in comparison.notes)]
    return "\n".join(write_console(blocks, width))


# A comparison as a comment on a pull request: the conclusion, gates and metrics only.


MARK = "<!-- llm-perf-opt compare -->"
"""First line: by it a workflow finds the comment of its last run, and replaces it."""
_SIGNS = {"passed": "✅", "regression": "❌", "side failed": "❌"}
_MOST_NOTES = 8


def comparison_comment(comparison: Comparison) -> str:
    """Render the comment; far below the 65,536 characters that GitHub accepts."""
    gates = [
        f"{_SIGNS.get(gate.status, '⚠️')} **{md_text(gate.metric)}**: {md_text(gate.status)}: {md_text(gate.reason)}"
        for gate in comparison.gates
    ]
    sides = [f"**{letter}**: {md_text(line)}" for letter, line in tables.side_facts(comparison)]
    notes = [f"Note: {md_text(note)}" for note in comparison.notes[:_MOST_NOTES]]
    shown = [row for row in comparison.metrics if not row.name.startswith("component.")]
    parts = [
        MARK,
        "### Performance",
        f"**{md_text(comparison.sentence)}**" if comparison.sentence else "",
        bullets(gates) if gates else "",
        render_table(tables.metric_table(shown)) if shown else "",
        bullets(sides),
        bullets(notes) if notes else "",
    ]
    if comparison.differences:
        differences = render_table(tables.difference_table(comparison))
        parts.append(f"<details><summary>What else differs</summary>\n\n{differences}\n</details>")
    return "\n\n".join(part for part in parts if part) + "\n"


# Gates as JUnit XML, which every CI system shows: a test case per gate.


_NOT_XML = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


def comparison_junit(comparison: Comparison, *, strict: bool) -> str:
    """Return the gates as a test suite; a gate that could not be decided is skipped, with ``strict`` it fails.

    Without a gate there is one case, for the comparison itself.
    """
    cases = [_case(gate, strict=strict) for gate in comparison.gates]
    if not cases:
        cases = [
            ElementTree.Element("testcase", classname="llm-perf-opt.compare", name="compared without a gate")
        ]
    suite = ElementTree.Element(
        "testsuite",
        name=_text(f"llm-perf-opt compare: {comparison.b.name} against {comparison.a.name}"),
        tests=str(len(cases)),
        failures=str(sum(case.find("failure") is not None for case in cases)),
        skipped=str(sum(case.find("skipped") is not None for case in cases)),
        errors="0",
    )
    suite.extend(cases)
    ElementTree.SubElement(suite, "system-out").text = _text(
        "\n".join([comparison.sentence, *comparison.notes])
    )
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(gate: GateResult, *, strict: bool) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        classname="llm-perf-opt.compare",
        name=_text(f"gate {gate.metric}:{format_signed_percent(gate.limit_ratio).replace(' ', '')}"),
    )
    text = _text(f"{gate.status}: {gate.reason}")
    undecided = gate.status in UNDECIDED
    if gate.status in ("regression", "side failed") or (undecided and strict):
        ElementTree.SubElement(case, "failure", type=gate.status, message=text).text = text
    elif undecided:
        ElementTree.SubElement(case, "skipped", message=text)
    return case


def _text(value: str) -> str:
    """Remove characters that XML cannot represent, even escaped."""
    return _NOT_XML.sub("", visible(value))
