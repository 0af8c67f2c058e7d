"""The pages of a run as documents: ``report``, ``kernels`` and ``operators``."""

from __future__ import annotations

from llm_perf_opt.core import units
from llm_perf_opt.reporting.detail_tables import operator_table
from llm_perf_opt.reporting.document import Block, Document, Points, Section, Text
from llm_perf_opt.reporting.html.page import write_html
from llm_perf_opt.reporting.kernel_tables import family_table, kernel_table, vendor_rule_table
from llm_perf_opt.reporting.markdown import write_markdown
from llm_perf_opt.reporting.opening import opening
from llm_perf_opt.reporting.sections import report_sections
from llm_perf_opt.reporting.wording import TIMELINE_NEED, phase_rank, shorten_files, title_of
from llm_perf_opt.summary import Summary

MOST_ROWS = 100
"""Kernels of ``kernels.md``; the rest is in ``summary.json`` and sorted and filtered better in ``report.html``."""
_MOST_RULES = 20
_OPERATORS_MOST_ROWS = 40
"""Operators per phase; all are in ``summary.json`` and ``report.html``."""
_SUMMARY = ("summary.json",)


def _report_document(summary: Summary) -> Document:
    ranks = max(len(summary.ranks), summary.workload.ranks or 1)
    title = f"{title_of(summary)} on {ranks} ranks" if ranks > 1 else title_of(summary)
    return Document(
        f"Performance report: {title}", title, opening(summary), report_sections(summary), _SUMMARY
    )


def report_texts(summary: Summary) -> tuple[str, str]:
    """Render ``report.html`` and ``report.md`` of one document: its drawings are made once."""
    document = _report_document(summary)
    return write_html(document), write_markdown(document)


def report_html(summary: Summary) -> str:
    """Render ``report.html``."""
    return write_html(_report_document(summary))


def report_markdown(summary: Summary) -> str:
    """Render ``report.md``."""
    return write_markdown(_report_document(summary))


def kernels_markdown(summary: Summary) -> str:
    """Render ``kernels.md``; without kernels it explains how to get them."""
    if not summary.kernels:
        absent = Text(f"No kernels were captured. This page needs {TIMELINE_NEED}.")
        return write_markdown(Document("Kernels", "Kernels", [absent], [], _SUMMARY))
    shown = summary.kernels[:MOST_ROWS]
    by_time = kernel_table(shown, left_out=len(summary.kernels) - len(shown))
    rules = vendor_rule_table(summary)
    bounds = Text("Upper bounds; the gains of one kernel do not add up." if summary.vendor_rules else "")
    names = [(str(place), f"`{kernel.name}`") for place, kernel in enumerate(shown, 1)]
    sections = [
        Section("families", "By family", [family_table(summary)]),
        Section(
            "time", "By time", [Text("Numbers in the first column lead to the full names below."), by_time]
        ),
        Section("vendor", "Verdicts of NVIDIA's rules", _vendor(summary)),
        Section(
            "rules",
            "NVIDIA's rules, by what each could gain",
            [rules.named("rules", most=_MOST_RULES), bounds],
        ),
        Section("names", "Full names", [Points(names)]),
    ]
    return write_markdown(
        Document("Kernels", "Kernels", [Text(_describe_kernels(summary))], sections, _SUMMARY)
    )


def _describe_kernels(summary: Summary) -> str:
    count = len(summary.kernels)
    text = f"{count} kernel{'s' if count != 1 else ''}"
    total, launches = summary.metrics.get("kernel_time_s"), summary.metrics.get("kernel_launches")
    if total is not None:
        text += f", {units.seconds(total)} of device time"
    if launches is not None:
        text += f" in {units.count(launches)} launches"
    classified = summary.coverage.kernel_time_classified_ratio
    if classified is not None:
        text += f"; the family of {units.percent(classified)} of the time is known"
    files = ", ".join(
        f"`{shorten_files(summary.sources[kind])}`"
        for kind in ("nsys", "trace", "ncu")
        if kind in summary.sources
    )
    return f"{text}." + (f" From {files}." if files else "")


def _vendor(summary: Summary) -> list[Block]:
    items = []
    for place, kernel in enumerate(summary.kernels[:MOST_ROWS], 1):
        if not kernel.vendor_verdict:
            continue
        line = f"`{kernel.short_name}`: our class is {kernel.bound or 'unknown'}"
        line += f" ({kernel.agreement})" if kernel.agreement else ""
        line += f". NVIDIA: {kernel.vendor_verdict}"
        if kernel.estimated_speedup_ratio is not None:
            line += f" Its best estimate saves {units.percent(kernel.estimated_speedup_ratio)} of the kernel's time."
        items.append((str(place), line))
    return [Points(items)]


def operators_markdown(summary: Summary) -> str:
    """Render ``torch_profiler/operators.md``: one table per phase."""
    phases = sorted(
        {op.phase for op in summary.operators}, key=lambda p: (p is None, phase_rank(p or ""), p or "")
    )
    about = Text(
        "From one profiled pass; the profiler adds time of its own, so compare shares, not seconds. Self leaves out what "
        "an operator called; total includes it, nested calls of the same operator once. Share is of the self time of the "
        "phase: device time where there is any, else host time."
    )
    sections: list[Section] = []
    for phase in phases:
        found = [op for op in summary.operators if op.phase == phase]
        title = phase or ("Outside the phases" if len(phases) > 1 else "All")
        table = operator_table(found, phased=False).named("operators", most=_OPERATORS_MOST_ROWS)
        sections.append(Section(f"phase-{len(sections)}", title, [table]))
    return write_markdown(Document("Operators", "Operators", [about], sections, _SUMMARY))
