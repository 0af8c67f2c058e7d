"""Make ``sweep.json``, ``sweep.html`` and ``sweep.md`` from what lies in a sweep's directory."""

from __future__ import annotations

from pathlib import Path

from llm_perf_opt.analysis.sweep.summarise import complete
from llm_perf_opt.core.files import atomic_write_text
from llm_perf_opt.core.run_directory import layout
from llm_perf_opt.model.codec import save_json
from llm_perf_opt.model.sweep import BAD, UNFINISHED, Sweep
from llm_perf_opt.runs.sweep.collect import collect


def read_sweep(directory: Path) -> Sweep:
    """Read every job and work out what they say together; writes nothing."""
    found = collect(directory)
    plan = found.plan
    return complete(
        Sweep(
            id=found.id,
            directory=str(directory),
            launcher=plan.launcher if plan is not None else None,
            command=plan.command if plan is not None else [],
            jobs=found.jobs,
            left_out=found.left_out,
            left_out_count=found.left_out_count,
            notes=found.notes,
        )
    )


def write_sweep(sweep: Sweep, directory: Path) -> Path:
    """Write the three documents; return the page."""
    from llm_perf_opt.reporting.sweep.html import sweep_html
    from llm_perf_opt.reporting.sweep.markdown import sweep_markdown

    save_json(directory / layout.SWEEP_JSON, sweep)
    atomic_write_text(directory / layout.SWEEP_MD, sweep_markdown(sweep))
    return atomic_write_text(directory / layout.SWEEP_HTML, sweep_html(sweep))


def exit_code(sweep: Sweep, *, finished: bool) -> int:
    """1 where a job failed, was interrupted or killed; with ``finished`` also where one has not come to its end."""
    bad = {*BAD, *(UNFINISHED if finished else ())}
    return int(any(job.status in bad for job in sweep.jobs) or (finished and not sweep.jobs))
