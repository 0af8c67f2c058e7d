"""What a plain run says of experiments: the command that tries a finding's remedies, and how often they helped here before."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.analysis.history.record import HELPED, NOT_SHOWN, record_words
from llm_perf_opt.config.compose import typed_config
from llm_perf_opt.config.hydra_bridge.compose import compose_raw
from llm_perf_opt.core.errors import LlmPerfError
from llm_perf_opt.model.improve import Metric
from llm_perf_opt.model.summary import Finding, Summary
from llm_perf_opt.runs.remedies.base import Remedy, Situation, key_of, situation_facts, this_machine
from llm_perf_opt.runs.remedies.registry import all_remedies
from llm_perf_opt.runs.remedies.unanswered import why_unanswered
from llm_perf_opt.runs.track_record import Record, read_records

_OWN_KEYS = ("artifacts.runs_dir", "hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir")
_STAGES = "pipeline."
"""How a run is profiled does not matter to an experiment, which only times."""
_MOST_REASONS = 3
_METRICS: tuple[Metric, ...] = ("total", "tokens_per_s")
"""What is asked for in a command: a larger batch is for throughput alone."""


def add_experiments(summary: Summary, run_dir: Path | None = None) -> None:
    """Give every finding the command that tries its remedies, or the reason why there is none, and its track record."""
    if not summary.findings:
        return
    remedies = all_remedies()
    records = read_records(summary.hardware.name, run_dir)
    words = repeatable_overrides(summary.run.command)
    not_again = _why_not_again(summary, words)
    situation = _situation(summary, words) if words is not None and not_again is None else None
    for finding in summary.findings:
        answering = [remedy for remedy in remedies if remedy.answers_finding(finding)]
        metric, reason = (
            (None, not_again) if not_again is not None else _metric(finding, answering, situation)
        )
        finding.no_experiment = reason
        finding.improve_command = None if metric is None else _command(finding, words or [], metric)
        finding.track_record = _words(finding, records)


def repeatable_overrides(command: Sequence[str]) -> list[str] | None:
    """Return the overrides of a run that make its workload; ``None``: it is no run that can be made again."""
    if list(command[:2]) != ["llm-perf-opt", "run"] or any(word.startswith("--config") for word in command):
        return None
    given = [word for word in command[2:] if not word.startswith("-")]
    return [word for word in given if key_of(word) not in _OWN_KEYS and not key_of(word).startswith(_STAGES)]


def _command(finding: Finding, words: Sequence[str], metric: Metric) -> str:
    name = f"{finding.id}:{finding.phase}" if finding.phase else finding.id
    asked = [] if metric == _METRICS[0] else ["--metric", metric]
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
    finding: Finding, answering: Sequence[Remedy], situation: Situation | None
) -> tuple[Metric | None, str | None]:
    """Return the metric by which a remedy of the finding can be tried, or why none can."""
    if not answering:
        return None, why_unanswered(finding.id)
    if situation is None:
        return _METRICS[0], None
    reasons = [_why_not(answering, dataclasses.replace(situation, metric=metric)) for metric in _METRICS]
    found = next((metric for metric, reason in zip(_METRICS, reasons, strict=True) if reason is None), None)
    return found, reasons[0] if found is None else None


def _why_not(answering: Sequence[Remedy], situation: Situation) -> str | None:
    """Say why none of the remedies can be tried; ``None``: one can."""
    reasons: dict[str, str] = {}
    for remedy in answering:
        reason = remedy.why_not(situation)
        if reason is None and remedy.options(situation):
            return None
        reasons[remedy.name] = reason or "nothing else to choose here"
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


def _words(finding: Finding, records: Sequence[Record]) -> str | None:
    """Say how often it helped; searches that could not tell are not counted."""
    grades = [
        grade
        for record in records
        for grade in record.grades
        if grade.finding == finding.id and grade.phase == finding.phase and grade.grade != NOT_SHOWN
    ]
    words = record_words(sum(grade.grade in HELPED for grade in grades), len(grades), where="on this machine")
    return None if words is None else f"this advice {words}"
