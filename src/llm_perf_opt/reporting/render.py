"""Write every report of a summary."""

from __future__ import annotations

from pathlib import Path

from llm_perf_opt.core.files import atomic_write_text
from llm_perf_opt.core.run_directory import layout
from llm_perf_opt.model.summary import Summary
from llm_perf_opt.reporting.html.page import report_html
from llm_perf_opt.reporting.markdown.kernels import kernels_markdown
from llm_perf_opt.reporting.markdown.operators import operators_markdown
from llm_perf_opt.reporting.markdown.report import report_markdown
from llm_perf_opt.reporting.markdown.stakeholder import stakeholder_markdown


def render_all(summary: Summary, out_dir: Path) -> Path:
    """Render all documents into ``out_dir``; return the one to open first."""
    return write_documents(summary, out_dir)[0]


def write_documents(summary: Summary, out_dir: Path) -> list[Path]:
    """Render all documents into ``out_dir``; return their paths, the one to open first before the others."""
    texts = {
        layout.REPORT_HTML: report_html,
        layout.REPORT_MD: report_markdown,
        layout.STAKEHOLDER_MD: stakeholder_markdown,
        layout.KERNELS_MD: kernels_markdown,
        **({layout.OPERATORS_MD: operators_markdown} if summary.operators else {}),
    }
    return [atomic_write_text(out_dir / name, render(summary)) for name, render in texts.items()]
