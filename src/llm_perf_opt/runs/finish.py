"""After the stages: one summary, the reports made from it, and the console output."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.analysis.facts import Facts
from llm_perf_opt.analysis.validation import beaten_ceilings
from llm_perf_opt.core import layout
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.console.signals import acknowledge_interruption, defer_signals
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.reporting.console import console_summary, terminal_width
from llm_perf_opt.reporting.render import write_documents, write_pages
from llm_perf_opt.runs.assemble import assemble_run, stage_facts
from llm_perf_opt.runs.heartbeat import own_manifest
from llm_perf_opt.runs.lock import hold
from llm_perf_opt.runs.manifest import list_files, read_manifest, write_manifest
from llm_perf_opt.summary import Summary
from llm_perf_opt.summary.codec import to_plain
from llm_perf_opt.summary.file import load_summary, save_summary

if TYPE_CHECKING:
    from llm_perf_opt.runs.execute import Outcome

LOGGER = logging.getLogger("llm_perf_opt.run")


def save_and_render(
    summary: Summary, facts: Sequence[Facts], out_dir: Path, *, perfetto: bool = False
) -> Path:
    """Write ``summary.json``, every report, and the pages and tables of the facts; return the page to open first."""
    save_summary(summary, out_dir)
    return render(summary, facts, out_dir, perfetto=perfetto)[0]


def render(summary: Summary, facts: Sequence[Facts], out_dir: Path, *, perfetto: bool = False) -> list[Path]:
    """Write every report, and the pages and tables of the facts; return the files, starting with the page to open."""
    pages = write_pages(summary, facts, out_dir, perfetto=perfetto)
    return [*write_documents(summary, out_dir), *pages]


def finish_run(
    outcome: Outcome, *, quiet: bool, as_json: bool, sinks: Sequence[str] = (), silent: bool = False
) -> int:
    """Summarise and report a run, also one that failed or was interrupted; then send it to the sinks.

    ``silent``: nothing is printed.
    """
    from llm_perf_opt.runs.execute import FAILED_EXIT

    assembled = assemble_run(outcome.run_dir)
    summary = assembled.summary
    save_summary(summary, outcome.run_dir)
    files = render(summary, assembled.facts, outcome.run_dir)
    _list_in_manifest(outcome.run_dir, files)
    if sinks:
        _send(sinks, summary, assembled.facts, outcome.run_dir)
    _distrust_beaten_ceilings(summary)
    if not silent:
        print_result(summary, files[0], quiet=quiet, as_json=as_json)
    # Ranks are silent: whoever joins them speaks, and ends, for all.
    if not silent and outcome.exit_code == 0 and summary.workload.tokens_verified is False:
        LOGGER.error(
            "the first tokens differ from generate(), see the notes of the report "
            "(infer.verify_tokens=false skips the check)"
        )
        return FAILED_EXIT
    return outcome.exit_code


def _send(sinks: Sequence[str], summary: Summary, facts: Sequence[Facts], run_dir: Path) -> None:
    """Send a run to its sinks; one that fails is noted in manifest, summary and reports."""
    from llm_perf_opt.runs.sinks import send_to_sinks

    notes = send_to_sinks(sinks, summary, run_dir)
    if not notes:
        return
    manifest = read_manifest(run_dir)
    manifest.notes.extend(notes)
    write_manifest(Artifacts.for_run(run_dir), manifest)
    summary.notes.extend(notes)
    save_and_render(summary, facts, run_dir)


def _list_in_manifest(run_dir: Path, files: Sequence[Path]) -> None:
    """Add derived files to the manifest; a manifest of an older release, which lists no files, is unchanged."""
    if not (run_dir / layout.MANIFEST).is_file():
        return
    manifest, artifacts = read_manifest(run_dir), Artifacts.for_run(run_dir)
    before = list(manifest.files)
    if before:
        list_files(artifacts, manifest, files)
    if manifest.files != before:
        write_manifest(artifacts, manifest)


def finish_interrupted(artifacts: Artifacts) -> None:
    """Write a manifest and a report for a run that was interrupted before its first stage, or while it was reported.

    A manifest that another process wrote belongs to an earlier run that was not moved aside yet, and is kept.
    SIGTERM, SIGHUP and SIGUSR2 are deferred, since they are not sent again; a second Ctrl-C aborts.
    """
    acknowledge_interruption()
    with defer_signals(signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
        manifest = own_manifest(artifacts.root)
        if manifest is None:
            return
        manifest.status = "interrupted"
        write_manifest(artifacts, manifest)
        assembled = assemble_run(artifacts.root)
        save_and_render(assembled.summary, assembled.facts, artifacts.root)


def _distrust_beaten_ceilings(summary: Summary) -> None:
    """Invalidate probed ceilings that a phase exceeded, so that they are measured again."""
    if summary.hardware.source == "probe" and beaten_ceilings(summary):
        from llm_perf_opt.hardware.probe import distrust_measurements

        distrust_measurements()


def report_run(run_dir: Path, *, reanalyse: bool, as_json: bool) -> int:
    """Render the reports of a finished run again, from its files alone."""
    run_dir = run_dir.expanduser().resolve()
    if not run_dir.is_dir():
        raise InputError(f"{run_dir} is not a directory", hint="give the directory of a finished run")
    with hold(run_dir):
        if reanalyse or not (run_dir / layout.SUMMARY).is_file():
            assembled = assemble_run(run_dir)
            summary, facts = assembled.summary, assembled.facts
            save_summary(summary, run_dir)
        else:
            summary, facts = load_summary(run_dir), _facts_with_pages(run_dir)
        files = render(summary, facts, run_dir)
        _list_in_manifest(run_dir, files)
    print_result(summary, files[0], quiet=False, as_json=as_json)
    return 0


def _facts_with_pages(run_dir: Path) -> list[Facts]:
    """Read the facts that pages need; the output of ``ingest`` has no manifest, its captures are elsewhere."""
    if not (run_dir / layout.MANIFEST).is_file():
        return []
    manifest = read_manifest(run_dir)
    if manifest.ranks:  # pages come from the first rank with data
        there = [one for one in manifest.ranks if one.status != "missing"]
        folder = run_dir / there[0].directory if there else None
        return (
            [] if folder is None else stage_facts(folder, read_manifest(folder).stages, with_pages_only=True)
        )
    return stage_facts(run_dir, manifest.stages, with_pages_only=True)


def print_result(summary: Summary, report: Path, *, quiet: bool, as_json: bool) -> None:
    """End with JSON for scripts, the path alone when quiet, or the console summary."""
    if as_json:
        print(json.dumps(to_plain(summary)))
    elif quiet:
        print(report)
    else:
        print(console_summary(summary, report, width=terminal_width()))
