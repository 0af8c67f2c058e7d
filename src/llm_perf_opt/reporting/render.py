"""Write every report of a summary."""

from __future__ import annotations

from pathlib import Path

from llm_perf_opt.core import layout
from llm_perf_opt.core.files import atomic_write_text
from llm_perf_opt.model.summary import Summary
from llm_perf_opt.reporting.html.page import report_html
from llm_perf_opt.reporting.markdown.kernels import kernels_markdown
from llm_perf_opt.reporting.markdown.operators import operators_markdown
from llm_perf_opt.reporting.markdown.report import report_markdown
from llm_perf_opt.reporting.markdown.stakeholder import stakeholder_markdown


def render_all(summary: Summary, out_dir: Path) -> Path:
    """Render all documents into ``out_dir``; return the one to open first."""
    atomic_write_text(out_dir / layout.REPORT_MD, report_markdown(summary))
    atomic_write_text(out_dir / layout.STAKEHOLDER_MD, stakeholder_markdown(summary))
    atomic_write_text(out_dir / layout.KERNELS_MD, kernels_markdown(summary))
    if summary.operators:
        atomic_write_text(out_dir / layout.OPERATORS_MD, operators_markdown(summary))
    atomic_write_text(out_dir / layout.REPORT_HTML, report_html(summary))
    return out_dir / layout.REPORT_HTML
