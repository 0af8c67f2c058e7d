"""``run.ranks=N``: start the ranks with ``torchrun``, wait for them, and report them as one run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.console.logs import Verbosity
from llm_perf_opt.core.console.progress import make_progress
from llm_perf_opt.core.console.signals import held, settle_interruption
from llm_perf_opt.core.ranks import ROOT_VARIABLE
from llm_perf_opt.core.run_directory import layout
from llm_perf_opt.core.run_directory.artifacts import Artifacts
from llm_perf_opt.process.launch import run_process
from llm_perf_opt.runs.lease import lease_of_ranks
from llm_perf_opt.runs.ranks.join import JoinedRun, begin_run, finish_run_of_ranks
from llm_perf_opt.runs.records.heartbeat import beating
from llm_perf_opt.runs.records.manifest import SweepMark

_GRACE_S = 40.0
"""Ranks that are asked to stop write their reports first; torchrun gives them half a minute."""


@dataclass(frozen=True, slots=True)
class RankJob:
    """What the ranks are told."""

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
    """Return the command line that starts the ranks on this machine."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"),
        *(f"--nproc-per-node={job.ranks}", "-m", "llm_perf_opt", "run", "-q"),
        *job.switches,
        *job.overrides,
    ]


def environment_of_ranks(job: RankJob, root: Path, given: Mapping[str, str], cores: int) -> dict[str, str]:
    """Return the variables the ranks get beside this process's own: the cores are shared out, not used by each."""
    threads = (
        {}
        if "OMP_NUM_THREADS" in given
        else {"OMP_NUM_THREADS": str(job.threads or max(1, cores // job.ranks))}
    )
    return {ROOT_VARIABLE: str(root), **threads}


def run_ranks(
    job: RankJob, config: AppConfig, artifacts: Artifacts, *, verbosity: Verbosity, as_json: bool
) -> int:
    """Run all ranks in a directory that is held; write the joined summary; return the exit code of all of them."""
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
    artifacts, cores, said = run.artifacts, len(os.sched_getaffinity(0)), ""
    try:
        with (
            lease,  # before there is a group, in which no rank waits longer for another than its limit
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
            said = "" if ended.ok else _last_error(ended.stderr)
            task.advance()
    except KeyboardInterrupt:
        settle_interruption()
        with held():
            finish_run_of_ranks(run, interrupted=True, quiet=True, as_json=False)
        raise
    return finish_run_of_ranks(run, said=said, quiet=verbosity is Verbosity.quiet, as_json=as_json)


def _last_error(text: str) -> str:
    """Return what a rank said last about an error, for ranks that left no manifest."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if line.lower().startswith("error")), "")[:300]
