"""What a plain run says of experiments: the command that tries a finding's remedies, and how often they helped here before."""

from __future__ import annotations

import dataclasses
import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.analysis.history.record import HELPED, NOT_SHOWN, record_words
from llm_perf_opt.analysis.improve.costs import METRICS
from llm_perf_opt.analysis.improve.judge import holds_phase
from llm_perf_opt.config.compose import typed_config
from llm_perf_opt.config.hydra_bridge.compose import compose_raw
from llm_perf_opt.core.errors import LlmPerfError
from llm_perf_opt.model.improve import Metric
from llm_perf_opt.model.summary import Finding, Summary
from llm_perf_opt.runs.remedies.base import Remedy, Situation, key_of, situation_facts, this_machine
from llm_perf_opt.runs.remedies.registry import ask, load_remedies
from llm_perf_opt.runs.remedies.unanswered import why_unanswered
from llm_perf_opt.runs.repeat import is_run, own_presets, run_overrides
from llm_perf_opt.runs.track_record import Record, read_records

LOGGER = logging.getLogger("llm_perf_opt.improve")
_STAGES = "pipeline."
"""How a run is profiled does not matter to an experiment, which only times."""
_MOST_REASONS = 3
_ASKED_FOR: tuple[Metric, ...] = ("total", "tokens_per_s")
"""What is asked for in a command: a larger batch is for throughput alone."""


def add_experiments(summary: Summary, run_dir: Path | None = None) -> None:
    """Give every finding the command that tries its remedies, or the reason why there is none, and its track record."""
    if not summary.findings:
        return
    remedies, unusable = load_remedies()
    left_out = {item.name: item.reason for item in unusable}
    records = read_records(summary.hardware.name, run_dir)
    words = repeatable_overrides(summary.run.command)
    not_again = _why_not_again(summary, words)
    situation = _situation(summary, words) if words is not None and not_again is None else None
    for finding in summary.findings:
        answering = [remedy for remedy in remedies if remedy.answers_finding(finding)]
        metric, reason = (
            (None, not_again) if not_again is not None else _metric(finding, answering, situation, left_out)
        )
        finding.no_experiment = reason
        finding.improve_command = None if metric is None else _command(finding, words or [], metric)
        finding.track_record = _words(finding, records, metric or _ASKED_FOR[0])
    for name, reason in left_out.items():
        summary.notes.append(f"The remedy {name} was left out: {reason}")
        LOGGER.warning("the remedy %s was left out: %s", name, reason)


def repeatable_overrides(command: Sequence[str]) -> list[str] | None:
    """Return the overrides of a run that make its workload; ``None``: it is no run that can be made again."""
    if not is_run(command) or own_presets(command) is not None:
        return None
    return [word for word in run_overrides(command) if not key_of(word).startswith(_STAGES)]


def _command(finding: Finding, words: Sequence[str], metric: Metric) -> str:
    name = f"{finding.id}:{finding.phase}" if finding.phase else finding.id
    asked = [] if metric == _ASKED_FOR[0] else ["--metric", metric]
    return shlex.join(["llm-perf-opt", "improve", *words, "--only", name, *asked])


def _why_not_again(summary: Summary, words: Sequence[str] | None) -> str | None:
    """Say why this run cannot be the baseline of an experiment."""
    if words is None:
        return "its settings are not on its command line, so it cannot be run again from here"
    if summary.workload.program is not None:
        return "experiments change settings of the built-in workload, not of your own program"
    if len(summary.ranks) > 1:
        return f"experiments run in one process, and this run had {len(summary.ranks)} ranks"
    return None


def _metric(
    finding: Finding,
    answering: Sequence[Remedy],
    situation: Situation | None,
    left_out: dict[str, str],
) -> tuple[Metric | None, str | None]:
    """Return the metric by which a remedy of the finding can be tried, or why none can.

    ``left_out`` gets the remedies whose packages fail.
    """
    if not answering:
        return None, why_unanswered(finding.id)
    if situation is None:
        return _ASKED_FOR[0], None
    reasons = [
        _why_not(answering, dataclasses.replace(situation, metric=metric), left_out) for metric in _ASKED_FOR
    ]
    found = next((metric for metric, reason in zip(_ASKED_FOR, reasons, strict=True) if reason is None), None)
    return found, reasons[0] if found is None else None


def _why_not(answering: Sequence[Remedy], situation: Situation, left_out: dict[str, str]) -> str | None:
    """Say why none of the remedies can be tried; ``None``: one can."""
    reasons: dict[str, str] = {}
    for remedy in answering:
        asked = ask(remedy, situation)
        if asked.reason is None:
            return None
        reasons[remedy.name] = asked.reason
        if asked.failed:
            left_out[remedy.name] = asked.reason
    said = "; ".join(f"{name}: {reason}" for name, reason in list(reasons.items())[:_MOST_REASONS])
    more = f"; {len(reasons) - _MOST_REASONS} more" if len(reasons) > _MOST_REASONS else ""
    return f"none of its remedies applies here ({said}{more})"


def _situation(summary: Summary, words: Sequence[str]) -> Situation | None:
    """Return what a remedy wants to know of this run; ``None``: its configuration means nothing on this machine."""
    try:
        config = typed_config(compose_raw(words), words, cwd=Path.cwd(), here=False)
    except LlmPerfError:
        return None
    device = summary.workload.device or config.resolved_device
    cores = (summary.environment.get("cpu") or {}).get("cores")
    machine = this_machine()
    if isinstance(cores, int):
        machine = dataclasses.replace(machine, cpus=cores)
    settled = dataclasses.replace(config, resolved_device=device)
    return Situation(config=settled, metric="total", machine=machine, **situation_facts(summary))


def _words(finding: Finding, records: Sequence[Record], asked: Metric) -> str | None:
    """Say how often it helped the metric that is asked for, then any other; searches that could not tell are not counted."""
    said = []
    for metric in (asked, *(each for each in METRICS if each != asked)):
        grades = [
            grade.grade
            for record in records
            for grade in record.grades
            if record.metric == metric
            and (grade.finding, grade.phase) == (finding.id, finding.phase)
            and holds_phase(metric, grade.phase)
            and grade.grade != NOT_SHOWN
        ]
        where = "on this machine" if metric == _ASKED_FOR[0] else f"for {metric} on this machine"
        words = record_words(sum(grade in HELPED for grade in grades), len(grades), where=where)
        said += [words] if words is not None else []
    return f"this advice {', '.join(said)}" if said else None
