"""Experiment hints in a run's report: the command that tries a finding's remedies, and their track record here."""

from __future__ import annotations

import dataclasses
import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.core.errors import LlmPerfError
from llm_perf_opt.history.rows import indexed_records
from llm_perf_opt.remedies.base import Remedy, Situation, key_of, situation_facts, this_machine
from llm_perf_opt.remedies.data import METRICS, Metric, holds_phase
from llm_perf_opt.remedies.registry import check_remedy, load_remedies
from llm_perf_opt.remedies.track_record import HELPED, NOT_SHOWN, Record, describe_record, read_records
from llm_perf_opt.summary import Finding, Summary

# Findings without a setting as remedy, and why: they need changes of code, of another program, or of the measurement.


_CODE = (
    "its remedy is a change of code, which no setting makes (from Python: llm_perf_opt.try_remedy(patch=…))"
)
_MEASURING = "it concerns the measurement, not the speed"
UNANSWERED: dict[str, str] = {
    "exposed-communication": "experiments run in one process, and this takes several",
    "straggler": "experiments run in one process, and this takes several",
    "host-sync": _CODE,
    "host-idle": _CODE,
    "full-precision-kernels": _CODE,
    "more-work-than-needed": "its remedy is another engine, or a change of code",
    "input-pipeline": "inputs are prepared before an experiment's clock starts",
    "queued-work": "the cause of the idle device is unknown",
    "one-off-costs": "these costs do not recur; capture after warm-up",
    "slow-kernels": "no setting chooses the kernel for a shape",
    "dominant-kernels": "the device does not wait, and no setting makes these kernels faster",
    "recompilation": _CODE,
    "graph-breaks": _CODE,
    "noisy-timings": _MEASURING,
    "profiler-pollution": _MEASURING,
    "warm-up-pollution": _MEASURING,
}
"""Finding → reason; ids that remedies answer in some phases only are here for the others."""
UNKNOWN = "no remedy is known"


def _reason_unanswered(finding_id: str) -> str:
    """Return why a finding has no remedy."""
    return UNANSWERED.get(finding_id, UNKNOWN)


# The part of a run's command line that defines its workload, so that it can be run again.


_RUN = ["llm-perf-opt", "run"]
_OWN_KEYS = ("artifacts.runs_dir", "hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir")
"""Where a run went is its own affair."""


def is_run(command: Sequence[str]) -> bool:
    """Return whether a command line is one of ``llm-perf-opt run``."""
    return list(command[:2]) == _RUN


def own_presets(command: Sequence[str]) -> str | None:
    """Return the option for the user's own presets, which is not among the overrides; ``None``: there is none."""
    return next((word for word in command[2:] if word.startswith("--config")), None)


def run_overrides(command: Sequence[str]) -> list[str]:
    """Return the overrides of a run, without those for output paths."""
    given = [word for word in command[2:] if not word.startswith("-")]
    return [word for word in given if key_of(word) not in _OWN_KEYS]


LOGGER = logging.getLogger("llm_perf_opt.improve")
_STAGES = "pipeline."
"""How a run is profiled does not matter to an experiment, which only times."""
_MOST_REASONS = 3
_METRICS_TRIED: tuple[Metric, ...] = ("total", "tokens_per_s")
"""What is asked for in a command: a larger batch is for throughput alone."""


def add_experiments(summary: Summary, run_dir: Path | None = None) -> None:
    """Add to every finding the command that tries its remedies, or the reason why there is none, and its track record."""
    if not summary.findings:
        return
    remedies, unusable = load_remedies()
    left_out = {item.name: item.reason for item in unusable}
    records = read_records(summary.hardware.name, indexed_records(run_dir) if run_dir is not None else None)
    overrides = _repeatable_overrides(summary.run.command)
    not_again = _reason_not_repeatable(summary, overrides)
    situation = _situation(summary, overrides) if overrides is not None and not_again is None else None
    for finding in summary.findings:
        answering = [remedy for remedy in remedies if remedy.answers_finding(finding)]
        metric, reason = (
            (None, not_again) if not_again is not None else _metric(finding, answering, situation, left_out)
        )
        finding.no_experiment = reason
        finding.improve_command = None if metric is None else _command(finding, overrides or [], metric)
        finding.track_record = _track_record(finding, records, metric or _METRICS_TRIED[0])
    for name, reason in left_out.items():
        summary.notes.append(f"The remedy {name} was left out: {reason}")
        LOGGER.warning("the remedy %s was left out: %s", name, reason)


def _repeatable_overrides(command: Sequence[str]) -> list[str] | None:
    """Return the overrides of a run that define its workload; ``None``: it cannot be repeated."""
    if not is_run(command) or own_presets(command) is not None:
        return None
    return [word for word in run_overrides(command) if not key_of(word).startswith(_STAGES)]


def _command(finding: Finding, overrides: Sequence[str], metric: Metric) -> str:
    name = f"{finding.id}:{finding.phase}" if finding.phase else finding.id
    options = [] if metric == _METRICS_TRIED[0] else ["--metric", metric]
    return shlex.join(["llm-perf-opt", "improve", *overrides, "--only", name, *options])


def _reason_not_repeatable(summary: Summary, overrides: Sequence[str] | None) -> str | None:
    """Return why this run cannot be the baseline of an experiment."""
    if overrides is None:
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
    """Return the metric by which a remedy of the finding can be tried, or why there is none.

    ``left_out`` gets the remedies whose packages fail.
    """
    if not answering:
        return None, _reason_unanswered(finding.id)
    if situation is None:
        return _METRICS_TRIED[0], None
    reasons = [
        _reason_not_applicable(answering, dataclasses.replace(situation, metric=metric), left_out)
        for metric in _METRICS_TRIED
    ]
    found = next(
        (metric for metric, reason in zip(_METRICS_TRIED, reasons, strict=True) if reason is None), None
    )
    return found, reasons[0] if found is None else None


def _reason_not_applicable(
    answering: Sequence[Remedy], situation: Situation, left_out: dict[str, str]
) -> str | None:
    """Return why no remedy can be tried; ``None``: one can."""
    reasons: dict[str, str] = {}
    for remedy in answering:
        applicable = check_remedy(remedy, situation)
        if applicable.reason is None:
            return None
        reasons[remedy.name] = applicable.reason
        if applicable.failed:
            left_out[remedy.name] = applicable.reason
    listed = "; ".join(f"{name}: {reason}" for name, reason in list(reasons.items())[:_MOST_REASONS])
    more = f"; {len(reasons) - _MOST_REASONS} more" if len(reasons) > _MOST_REASONS else ""
    return f"none of its remedies applies here ({listed}{more})"


def _situation(summary: Summary, overrides: Sequence[str]) -> Situation | None:
    """Return the situation of this run for remedies; ``None``: its configuration is not valid on this machine."""
    # They import Hydra: only for a run of ours, not for ingest.
    from llm_perf_opt.config.compose import typed_config
    from llm_perf_opt.config.hydra_bridge.compose import compose_raw

    try:
        config = typed_config(compose_raw(overrides), overrides, cwd=Path.cwd(), here=False)
    except LlmPerfError:
        return None
    device = summary.workload.device or config.resolved_device
    cores = (summary.environment.get("cpu") or {}).get("cores")
    machine = this_machine()
    if isinstance(cores, int):
        machine = dataclasses.replace(machine, cpus=cores)
    settled = dataclasses.replace(config, resolved_device=device)
    return Situation(config=settled, metric="total", machine=machine, **situation_facts(summary))


def _track_record(finding: Finding, records: Sequence[Record], wanted: Metric) -> str | None:
    """Describe how often it helped the given metric, then others; inconclusive searches are not counted."""
    parts = []
    for metric in (wanted, *(each for each in METRICS if each != wanted)):
        grades = [
            grade.grade
            for record in records
            for grade in record.grades
            if record.metric == metric
            and (grade.finding, grade.phase) == (finding.id, finding.phase)
            and holds_phase(metric, grade.phase)
            and grade.grade != NOT_SHOWN
        ]
        where = "on this machine" if metric == _METRICS_TRIED[0] else f"for {metric} on this machine"
        text = describe_record(sum(grade in HELPED for grade in grades), len(grades), where=where)
        parts += [text] if text is not None else []
    return f"this advice {', '.join(parts)}" if parts else None
