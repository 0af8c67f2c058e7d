"""One run of several ranks: wait for them, record the outcome of each, and write the joint summary."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core import layout
from llm_perf_opt.core.artifacts import Artifacts
from llm_perf_opt.core.console.logs import Verbosity
from llm_perf_opt.core.console.progress import make_progress
from llm_perf_opt.core.console.signals import acknowledge_interruption, defer_signals, interrupted_exit_code
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import atomic_write_text
from llm_perf_opt.core.ranks import ROOT_VARIABLE
from llm_perf_opt.process.launch import run_process
from llm_perf_opt.runs.directory import find_earlier
from llm_perf_opt.runs.execute import FAILED_EXIT, INTERRUPTED_EXIT, Outcome
from llm_perf_opt.runs.finish import finish_run
from llm_perf_opt.runs.heartbeat import Watch, beating, new_heartbeat
from llm_perf_opt.runs.lease import joined_lease, lease_of_ranks, shared_note
from llm_perf_opt.runs.manifest import (
    DeviceLease,
    Manifest,
    RankRecord,
    StageRecord,
    SweepMark,
    list_files,
    new_manifest,
    read_manifest,
    write_manifest,
)

_POLL_S = 0.1
_WORST_FIRST = ("failed", "degraded", "running", "pending", "ok", "skipped")


@dataclass(slots=True)
class JoinedRun:
    """A run of several ranks, held by the process that joins them."""

    artifacts: Artifacts
    ranks: int
    command: list[str]
    config_hash: str | None = None
    sweep: SweepMark | None = None
    sinks: Sequence[str] = ()
    """Who gets the summary of all ranks; single ranks are sent nowhere."""
    began: float = field(default_factory=time.monotonic)

    def folder(self, rank: int) -> Path:
        """Return the run directory of one rank."""
        return rank_directory(self.artifacts.root, rank)


def rank_directory(root: Path, rank: int) -> Path:
    """Return the run directory of one rank below that of all."""
    return root / layout.RANKS / str(rank)


def begin_run(run: JoinedRun) -> Manifest:
    """Move aside an earlier run, and write the manifest of a run that has begun."""
    earlier = find_earlier(run.artifacts.root)
    if earlier is not None:
        earlier.set_aside()
    manifest = new_manifest(run.artifacts, run.command)
    manifest.config_hash, manifest.sweep, manifest.heartbeat = run.config_hash, run.sweep, new_heartbeat()
    manifest.notes += [earlier.note()] if earlier is not None else []
    write_manifest(run.artifacts, manifest)
    return manifest


def wait_for_ranks(run: JoinedRun, timeout_s: float) -> None:
    """Wait until every rank has recorded its end, or is known to be dead, or the time is up."""
    limit = time.monotonic() + timeout_s
    while time.monotonic() < limit:
        if all(_is_over(run.folder(rank)) for rank in range(run.ranks)):
            return
        time.sleep(_POLL_S)


def _is_over(folder: Path) -> bool:
    """Whether a rank has recorded the end of its stages, whose files are joined; its own report may follow."""
    try:
        manifest = read_manifest(folder)
    except InputError:
        return False  # not started, or dead before its first heartbeat: the time limit decides
    if manifest.status == "running":
        return not Watch(folder).judge(manifest.heartbeat, folder / layout.MANIFEST).alive
    return True


def finish_run_of_ranks(
    run: JoinedRun, *, quiet: bool, as_json: bool, last_error: str = "", interrupted: bool = False
) -> int:
    """Write manifest, summary and reports of all ranks; return the exit code of the run."""
    manifest = read_manifest(run.artifacts.root)
    first: Manifest | None = None
    first_rank = 0
    leases: list[DeviceLease] = []
    for rank in range(run.ranks):
        entry, own = _rank_record(run, rank, last_error)
        manifest.ranks.append(entry)
        if own is None:
            continue
        if own.lease is not None:
            leases.append(own.lease)
            if first is not None and own.lease.shared is not None:
                manifest.notes.append(f"rank {rank}: {shared_note(own.lease)}")
        first, first_rank = (own, rank) if first is None else (first, first_rank)
        _add_stages(manifest, own, entry)
    if first is not None:
        manifest.facts = {**first.facts, "ranks": run.ranks}
        # Held by the process that started the ranks, or on each machine by its first rank.
        manifest.lease = manifest.lease or joined_lease(leases)
        manifest.config_hash = manifest.config_hash or first.config_hash
        manifest.notes += [f"rank {first_rank}: {note}" for note in first.notes]
    wrong = [one for one in manifest.ranks if one.status != "ok"]
    ended_early = interrupted or (wrong and all(one.status == "interrupted" for one in wrong))
    manifest.status = "interrupted" if ended_early else "failed" if wrong else "ok"
    manifest.reason = (
        "; ".join(f"rank {one.rank} {one.status}{': ' + one.reason if one.reason else ''}" for one in wrong)
        or None
    )
    if wrong:
        manifest.notes.append(f"Not every rank came to its end: {manifest.reason}.")
    manifest.notes.append(
        f"The model was split over {run.ranks} ranks (tensor parallel). Wall-clock and memory are those of rank "
        f"{manifest.ranks[0].rank}; every rank by itself: {layout.RANKS}/."
    )
    manifest.seconds = time.monotonic() - run.began
    _copy_documents(run, manifest)
    list_files(run.artifacts, manifest)
    write_manifest(run.artifacts, manifest)
    code = {
        "interrupted": interrupted_exit_code() or INTERRUPTED_EXIT,
        "failed": FAILED_EXIT,
    }.get(manifest.status, 0)
    outcome = Outcome(run.artifacts.root, manifest, code)
    return finish_run(outcome, quiet=quiet, as_json=as_json, sinks=run.sinks)


def _rank_record(run: JoinedRun, rank: int, last_error: str) -> tuple[RankRecord, Manifest | None]:
    folder = run.folder(rank)
    directory = run.artifacts.relative(folder)
    try:
        own = read_manifest(folder)
    except InputError:
        reason = f"it left no {layout.MANIFEST}{' (' + last_error + ')' if last_error else ''}"
        return RankRecord(rank, directory, "missing", reason), None
    if own.status != "running":
        failed = [f"{name}: {entry.reason}" for name, entry in own.stages.items() if entry.status == "failed"]
        return RankRecord(rank, directory, own.status, own.reason or "; ".join(failed) or None), own
    liveness = Watch(folder).judge(own.heartbeat, folder / layout.MANIFEST)
    if liveness.alive:
        return RankRecord(rank, directory, "running", "it had not ended when the time was up"), own
    return RankRecord(rank, directory, "died", liveness.why), own


def _add_stages(manifest: Manifest, own: Manifest, entry: RankRecord) -> None:
    """Add a rank's stages: a stage has the worst state over ranks, and the reasons of each."""
    for name, record in own.stages.items():
        unsettled = record.status in ("running", "pending")
        status = "failed" if unsettled else record.status
        reason = (
            f"rank {entry.rank}: {record.reason or 'it ended in this stage'}"
            if record.reason or unsettled
            else None
        )
        artifacts = [f"{entry.directory}/{path}" for path in record.artifacts if not Path(path).is_absolute()]
        there = manifest.stages.get(name)
        if there is None:
            manifest.stages[name] = StageRecord(
                status, reason, record.fix, record.seconds, dict(record.exit_codes), artifacts
            )
            continue
        there.artifacts += artifacts
        there.exit_codes = {**record.exit_codes, **there.exit_codes}
        there.seconds = max(there.seconds or 0.0, record.seconds or 0.0)
        there.reason = "; ".join(filter(None, [there.reason, reason])) or None
        there.fix = there.fix or record.fix
        if _WORST_FIRST.index(status) < _WORST_FIRST.index(there.status):
            there.status = status


def _copy_documents(run: JoinedRun, manifest: Manifest) -> None:
    """Copy configuration and environment, equal for all ranks, from the first rank to the run directory."""
    there = [one.rank for one in manifest.ranks if one.status != "missing"]
    if not there:
        return
    folder = run.folder(there[0])
    for name in (layout.CONFIG, layout.ENVIRONMENT, layout.INPUTS):
        if (folder / name).is_file():
            text = (folder / name).read_text(encoding="utf-8")
            atomic_write_text(run.artifacts.path(name), text.replace(str(folder), str(run.artifacts.root)))


# ``run.ranks=N``: start the ranks with ``torchrun``, wait for them, and report them as one run.


_GRACE_S = 40.0
"""Ranks that are asked to stop write their reports first; torchrun gives them half a minute."""


@dataclass(frozen=True, slots=True)
class RankJob:
    """What the ranks receive."""

    ranks: int
    threads: int | None
    overrides: tuple[str, ...]
    switches: tuple[str, ...]
    directory: Path
    """Where the user started: relative paths of the command line mean this."""
    config_hash: str | None = None
    sweep: SweepMark | None = None
    sinks: tuple[str, ...] = ()


def command_of_ranks(job: RankJob) -> list[str]:
    """Return the command line for the ranks on this machine."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"),
        *(f"--nproc-per-node={job.ranks}", "-m", "llm_perf_opt", "run", "-q"),
        *job.switches,
        *job.overrides,
    ]


def environment_of_ranks(job: RankJob, root: Path, given: Mapping[str, str], cores: int) -> dict[str, str]:
    """Return the variables the ranks get in addition to this process's own: the cores are divided among them."""
    threads = (
        {}
        if "OMP_NUM_THREADS" in given
        else {"OMP_NUM_THREADS": str(job.threads or max(1, cores // job.ranks))}
    )
    return {ROOT_VARIABLE: str(root), **threads}


def run_ranks(
    job: RankJob, config: AppConfig, artifacts: Artifacts, *, verbosity: Verbosity, as_json: bool
) -> int:
    """Run all ranks in a locked directory; write the joined summary; return the exit code of all of them."""
    run = JoinedRun(
        artifacts,
        job.ranks,
        command=["llm-perf-opt", "run", *job.switches, *job.overrides],
        config_hash=job.config_hash,
        sweep=job.sweep,
        sinks=job.sinks,
    )
    with beating(artifacts):
        manifest = begin_run(run)
        lease = lease_of_ranks(config, job.ranks, artifacts, manifest)
        return _run_and_join(job, run, lease, verbosity=verbosity, as_json=as_json)


def _run_and_join(
    job: RankJob,
    run: JoinedRun,
    lease: contextlib.AbstractContextManager[None],
    *,
    verbosity: Verbosity,
    as_json: bool,
) -> int:
    artifacts, cores, last_error = run.artifacts, len(os.sched_getaffinity(0)), ""
    try:
        with (
            lease,  # before the process group exists; afterwards no rank waits longer for another than its limit
            make_progress(verbosity) as progress,
            progress.task(f"running {job.ranks} ranks") as task,
        ):
            ended = run_process(
                command_of_ranks(job),
                log_dir=artifacts.path(f"{layout.RANKS}/torchrun.stdout.log").parent,
                name="torchrun",
                timeout_s=None,
                cwd=job.directory,
                env=environment_of_ranks(job, artifacts.root, os.environ, cores),
                grace_s=_GRACE_S,
            )
            last_error = "" if ended.ok else _last_error(ended.stderr)
            task.advance()
    except KeyboardInterrupt:
        acknowledge_interruption()
        with defer_signals():
            finish_run_of_ranks(run, interrupted=True, quiet=True, as_json=False)
        raise
    return finish_run_of_ranks(
        run, last_error=last_error, quiet=verbosity is Verbosity.quiet, as_json=as_json
    )


def _last_error(text: str) -> str:
    """Return the last error message of a rank, for ranks that left no manifest."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if line.lower().startswith("error")), "")[:300]
