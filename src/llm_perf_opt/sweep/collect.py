"""Read the jobs of a sweep from their own directories; anything else is reported and left out.

One job is read at a time and only its row is kept, so that ten thousand take no more memory than their table.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from llm_perf_opt.core import layout
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import atomic_write_text
from llm_perf_opt.runs.heartbeat import Watch
from llm_perf_opt.runs.manifest import Manifest, is_reported, read_manifest
from llm_perf_opt.summary.codec import decode_file, save_json
from llm_perf_opt.sweep.analysis import complete
from llm_perf_opt.sweep.data import BAD, UNFINISHED, LeftOut, Sweep, SweepJob
from llm_perf_opt.sweep.metrics import Measured, job_metrics
from llm_perf_opt.sweep.plan import PlannedJob, SweepPlan, read_plan

MOST_NAMED = 100
"""So much of what is left out is named; the rest is counted."""


@dataclass(slots=True)
class Collected:
    """The contents of a sweep directory."""

    directory: Path
    plan: SweepPlan | None
    id: str = ""
    jobs: list[SweepJob] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    left_out_count: int = 0
    notes: list[str] = field(default_factory=list)
    versions: set[str | None] = field(default_factory=set)
    """Of this tool, as the manifests of the jobs have them."""

    def leave_out(self, path: str, reason: str) -> None:
        """Count something that is not a job of this sweep, and name the first few."""
        self.left_out_count += 1
        if len(self.left_out) < MOST_NAMED:
            self.left_out.append(LeftOut(path, reason))


def collect(directory: Path) -> Collected:
    """Read every job below a directory, also while jobs run."""
    found = Collected(directory, _plan(directory))
    watch = Watch(directory)
    if found.plan is not None and found.plan.jobs:
        found.id = found.plan.id
        _planned_jobs(found, found.plan, watch)
    else:
        _found_jobs(found, watch)
    if found.plan is None and not found.jobs:
        raise InputError(
            f"{directory} contains no sweep: no {layout.SWEEP_PLAN}, and no job's {layout.MANIFEST} that can be read",
            hint="give the directory of a --multirun (hydra.sweep.dir)",
            path=str(directory),
        )
    _add_details(found, watch)
    return found


def _plan(directory: Path) -> SweepPlan | None:
    if not directory.is_dir():
        raise InputError(f"{directory} is not a directory", hint="give the directory of a sweep")
    return read_plan(directory)


def _planned_jobs(found: Collected, plan: SweepPlan, watch: Watch) -> None:
    # A job's own directory may lie deeper (hydra.sweep.subdir=a/b): then only its first part is known.
    known = {job.directory.partition("/")[0] for job in plan.jobs}
    for planned in plan.jobs:
        found.jobs.append(_job(found, planned, watch))
    for name in _folders(found.directory):
        if name not in known:
            manifest = found.directory / name / layout.MANIFEST
            what = "a run that this sweep did not plan" if manifest.is_file() else "not a job of this sweep"
            found.leave_out(name, what)


def _found_jobs(found: Collected, watch: Watch) -> None:
    """Collect all jobs of a sweep without a plan, or with jobs chosen by the sweeper as it ran."""
    names = _folders(found.directory)
    marks: dict[str, str | None] = {}
    for name in names:
        with contextlib.suppress(InputError):
            manifest = read_manifest(found.directory / name)
            marks[name] = manifest.sweep.id if manifest.sweep is not None else None
    known = Counter(mark for mark in marks.values() if mark is not None)
    chosen = (
        found.plan.id if found.plan is not None else max(known, key=lambda mark: known[mark], default=None)
    )
    found.id = chosen or found.directory.name
    for number, name in enumerate(name for name in names if marks.get(name, "") == chosen):
        found.jobs.append(_job(found, PlannedJob(number, name, []), watch))
    for name in names:
        if name not in marks:
            found.leave_out(name, _reason_unreadable(found.directory / name))
        elif marks[name] != chosen:
            found.leave_out(
                name, "a job of another sweep" if marks[name] else "a run that is not part of a sweep"
            )


def _folders(directory: Path) -> list[str]:
    """Names of the folders in a directory, numbers by their value; hidden ones belong to launchers."""
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    return sorted(names, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name))


def _reason_unreadable(folder: Path) -> str:
    try:
        read_manifest(folder)
    except InputError as error:
        return error.message
    return "not a job"


def _job(found: Collected, planned: PlannedJob, watch: Watch) -> SweepJob:
    folder = found.directory / planned.directory
    path = folder / layout.MANIFEST
    job = SweepJob(planned.number, planned.overrides, "pending", planned.directory)
    if not path.is_file():
        job.reason = "it has not begun" if not folder.is_dir() else "it has not begun, or left no manifest"
        return job
    try:
        manifest = read_manifest(folder)
    except InputError as error:
        job.status, job.reason = "failed", error.message
        return job
    if manifest.sweep is not None and found.plan is not None and manifest.sweep.id != found.plan.id:
        found.leave_out(planned.directory, "a job of another sweep")
        job.reason = "its directory contains a job of another sweep"
        return job
    found.versions.add(manifest.version)
    _fill(job, manifest, folder, watch)
    return job


def _fill(job: SweepJob, manifest: Manifest, folder: Path, watch: Watch) -> None:
    job.overrides = job.overrides or _overrides(manifest)
    job.seconds, job.started, job.config_hash = manifest.seconds, manifest.started, manifest.config_hash
    if manifest.heartbeat is not None:
        job.host, job.pid = manifest.heartbeat.host, manifest.heartbeat.pid
    if manifest.lease is not None:
        job.shared = manifest.lease.shared
    job.status, job.reason = manifest.status, _reason(manifest)
    unreported = manifest.status == "ok" and not is_reported(folder)
    if manifest.status == "running" or unreported:
        liveness = watch.judge(manifest.heartbeat, folder / layout.MANIFEST)
        job.status, job.reason = ("running" if liveness.alive else "killed"), liveness.why
        if unreported and not liveness.alive:
            job.reason = f"it ended before its report was written: {liveness.why}"
    if (folder / layout.REPORT_HTML).is_file():
        job.report = f"{job.run_dir}/{layout.REPORT_HTML}"
    if is_reported(folder) and job.status != "running":
        try:
            job.metrics = job_metrics(decode_file(folder / layout.SUMMARY, Measured))
        except InputError as error:
            job.reason = job.reason or error.message


def _overrides(manifest: Manifest) -> list[str]:
    """Return the overrides in the command of a manifest: everything with a value that is not an option."""
    return [word for word in manifest.command if "=" in word and not word.startswith("-")]


def _reason(manifest: Manifest) -> str | None:
    if manifest.status == "ok":
        return None
    failed = [
        f"{name}: {stage.reason}"
        for name, stage in manifest.stages.items()
        if stage.status == "failed" and stage.reason
    ]
    return "; ".join(dict.fromkeys([*([manifest.reason] if manifest.reason else []), *failed])) or None


def _add_details(found: Collected, watch: Watch) -> None:
    for host, ahead in sorted(watch.skewed.items()):
        text = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the file system's"
        found.notes.append(
            f"The clock of {host} is {text}: times of its jobs are its own, and whether they live was determined by the "
            "file system's clock."
        )
    versions = {version for version in found.versions if version is not None}
    if len(versions) > 1:
        found.notes.append(
            f"The jobs were made by different versions of llm-perf-opt ({', '.join(sorted(versions))}): their numbers "
            "may not be comparable."
        )
    shared = [job.number for job in found.jobs if job.shared]
    if shared:
        numbers = ", ".join(map(str, shared[:20])) + (" …" if len(shared) > 20 else "")
        found.notes.append(
            f"The device was shared in {'1 job' if len(shared) == 1 else f'{len(shared)} jobs'} ({numbers}): their times are less reliable."
        )


# Make ``sweep.json``, ``sweep.html`` and ``sweep.md`` from a sweep's directory.


def read_sweep(directory: Path) -> Sweep:
    """Read and analyse every job; writes nothing."""
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
    from llm_perf_opt.sweep.page import sweep_html, sweep_markdown

    save_json(directory / layout.SWEEP_JSON, sweep)
    atomic_write_text(directory / layout.SWEEP_MD, sweep_markdown(sweep))
    return atomic_write_text(directory / layout.SWEEP_HTML, sweep_html(sweep))


def exit_code(sweep: Sweep, *, finished: bool) -> int:
    """1 where a job failed, was interrupted or killed; with ``finished`` also if one has not finished."""
    bad = {*BAD, *(UNFINISHED if finished else ())}
    return int(any(job.status in bad for job in sweep.jobs) or (finished and not sweep.jobs))
