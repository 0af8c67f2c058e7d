"""What a plain run says of experiments: the command that tries a finding's remedies, and how often they helped here before."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from llm_perf_opt.model.summary import Finding, Summary
from llm_perf_opt.runs.remedies.base import key_of
from llm_perf_opt.runs.remedies.registry import all_remedies
from llm_perf_opt.runs.track_record import Record, read_records

_OWN_KEYS = ("artifacts.runs_dir", "hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir")
_STAGES = "pipeline."
"""How a run is profiled does not matter to an experiment, which only times."""


def add_experiments(summary: Summary) -> None:
    """Give every finding that has a remedy its command, and its track record on this machine."""
    answered = {answer for remedy in all_remedies() for answer in remedy.answers}
    words = repeatable_overrides(summary.run.command)
    records = read_records(summary.hardware.name) if summary.findings else []
    for finding in summary.findings:
        if words is not None and {finding.id, f"{finding.id}:{finding.phase}"} & answered:
            name = f"{finding.id}:{finding.phase}" if finding.phase else finding.id
            finding.improve_command = shlex.join(["llm-perf-opt", "improve", *words, "--only", name])
        finding.track_record = _words(finding, records)


def repeatable_overrides(command: Sequence[str]) -> list[str] | None:
    """Return the overrides of a run that make its workload; ``None``: it is no run that can be made again."""
    if list(command[:2]) != ["llm-perf-opt", "run"] or any(word.startswith("--config") for word in command):
        return None
    given = [word for word in command[2:] if not word.startswith("-")]
    return [word for word in given if key_of(word) not in _OWN_KEYS and not key_of(word).startswith(_STAGES)]


def _words(finding: Finding, records: Sequence[Record]) -> str | None:
    """Say how often it helped; searches that could not tell are not counted."""
    grades = [
        grade
        for record in records
        for grade in record.grades
        if grade.finding == finding.id and grade.phase == finding.phase and grade.grade != "not shown"
    ]
    if not grades:
        return None
    helped = sum(grade.grade in ("confirmed", "partly") for grade in grades)
    trials = "trial" if len(grades) == 1 else "trials"
    return f"this advice helped in {helped} of {len(grades)} {trials} on this machine"
