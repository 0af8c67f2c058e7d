"""One rank of a run that ``torchrun`` (or ``run.ranks``) started: a run directory of its own below that of all.

Without a parent of ours rank 0 also holds the directory of all, and joins the ranks when they have ended; where rank 0 is killed,
one of the others does.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from llm_perf_opt.config.hydra_bridge.values import override
from llm_perf_opt.config.legacy import explicit_keys, translate_overrides
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core import layout
from llm_perf_opt.core.artifacts import Artifacts, reserve_directory
from llm_perf_opt.core.console.logs import Verbosity
from llm_perf_opt.core.console.signals import acknowledge_interruption, defer_signals
from llm_perf_opt.core.errors import ConfigError, InputError, LlmPerfError, ToolError
from llm_perf_opt.core.ranks import ROOT_VARIABLE, Rank
from llm_perf_opt.process.environment import prepare_process
from llm_perf_opt.runs import app
from llm_perf_opt.runs.heartbeat import Watch, beating
from llm_perf_opt.runs.lock import hold
from llm_perf_opt.runs.manifest import read_manifest
from llm_perf_opt.runs.ranks import JoinedRun, begin_run, finish_run_of_ranks, rank_directory, wait_for_ranks
from llm_perf_opt.workloads.engine.nvtx import mark
from llm_perf_opt.workloads.rank_group import agreed, enter_group, leave_group, require_equal_settings

_POLL_S = 0.1
_STOPPED_WAIT_S = 20.0
"""For ranks that were asked to stop; torchrun kills them after half a minute."""


def run_member(
    job: app.Prepared,
    rank: Rank,
    hydra_flags: Sequence[str],
    *,
    switches: Sequence[str],
    verbosity: Verbosity,
    as_json: bool,
) -> int:
    """Run this rank; return the exit code: its own; for rank 0 without a parent, that of all ranks."""
    limit, began = job.config.run.ranks_timeout_s, time.monotonic()
    prepare_process()
    mark(rank.mark)
    enter_group(rank, job.config.resolved_device, limit)
    parent = os.environ.get(ROOT_VARIABLE)

    def launch(root: Path) -> int:
        return app.launch(
            [
                *hydra_flags,
                *translate_overrides(job.overrides),
                *_overrides_of_rank(job, rank),
                *(override(key, str(rank_directory(root, rank.rank))) for key in app.RUN_DIRECTORY_KEYS),
            ],
            app.RunOptions(
                overrides=(*job.overrides, *_overrides_of_rank(job, rank)),
                switches=tuple(switches),
                verbosity=verbosity if rank.rank == 0 and parent is None and not as_json else Verbosity.quiet,
                silent=True,
            ),
        )

    with _leaving():
        require_equal_settings(rank, _common_settings(job.config))
        if parent is not None:
            return launch(Path(parent))
        if rank.rank == 0:
            return _first_rank(
                job, rank, launch, switches=switches, quiet=verbosity is Verbosity.quiet, as_json=as_json
            )
        root = _shared(rank, agreed(None))
        try:
            code = launch(root)
            _wait_for_report(root, limit)
        except KeyboardInterrupt:
            # torchrun stops the others when rank 0 dies, so they cannot report their state.
            acknowledge_interruption()
            with defer_signals():
                _report_for_first(root, rank, job, began)
            raise
        with defer_signals():
            _report_for_first(root, rank, job, began)
        return code


def _common_settings(config: AppConfig) -> dict[str, str]:
    """Return the settings that determine what a rank computes, as text by key."""
    found: dict[str, str] = {}

    def add(place: str, value: object) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                add(f"{place}.{key}", item)
        else:
            found[place] = str(value)

    add("model", asdict(config.model))
    add("infer", asdict(config.infer))
    add("dataset", asdict(config.dataset))
    for name, stage in config.pipeline.items():
        add(f"pipeline.{name}.enable", stage.enable)
    add("run.mode", config.run.mode)
    add("run.repeats", config.run.repeats)
    add("run.representative_max_new_tokens", config.run.representative_max_new_tokens)
    return found


def _overrides_of_rank(job: app.Prepared, rank: Rank) -> list[str]:
    """Return the overrides that differ between ranks: the device, and work that only one rank does."""
    on_gpu = job.config.resolved_device.startswith("cuda")
    device = [override("run.device", f"cuda:{rank.local_rank}")] if on_gpu else []
    if rank.rank == 0:
        return device
    return [*device, "pipeline.static_analysis.enable=false", "hardware.probe=false"]


def _first_rank(
    job: app.Prepared,
    rank: Rank,
    launch: Callable[[Path], int],
    *,
    switches: Sequence[str],
    quiet: bool,
    as_json: bool,
) -> int:
    """Lock the directory of all ranks, run rank 0 in its own, and join them."""
    with contextlib.ExitStack() as stack:
        try:
            root = _reserved(job)
            stack.enter_context(hold(root))
            command = ["llm-perf-opt", "run", *switches, *job.overrides]
            run = JoinedRun(Artifacts.for_run(root), rank.size, command, sinks=job.config.run.sinks)
            stack.enter_context(beating(run.artifacts))
            begin_run(run)
        except LlmPerfError:
            agreed(None)  # do not let the others wait for a directory that will not exist
            raise
        agreed(str(root))
        try:
            launch(root)
            wait_for_ranks(run, job.config.run.ranks_timeout_s)
        except KeyboardInterrupt:
            # torchrun stops the others when one of them dies, with a single signal.
            acknowledge_interruption()
            with defer_signals():
                wait_for_ranks(run, _STOPPED_WAIT_S)
                finish_run_of_ranks(run, quiet=True, as_json=False)
            raise
        with defer_signals():
            return finish_run_of_ranks(run, quiet=quiet, as_json=as_json)


def _reserved(job: app.Prepared) -> Path:
    if explicit_keys(job.overrides).intersection(app.RUN_DIRECTORY_KEYS):
        return Artifacts.for_run(job.run_dir).root
    return reserve_directory(job.run_dir)


def _shared(rank: Rank, root: str | None) -> Path:
    """Return the directory that rank 0 chose; every rank writes below it."""
    if root is None:
        raise ToolError("rank 0 could not begin, and so does not this one", hint="see what rank 0 printed")
    if not (Path(root) / layout.MANIFEST).is_file():
        raise ToolError(
            f"rank {rank.rank} does not see {root}, where rank 0 writes",
            hint="give a directory that all machines share: artifacts.runs_dir=DIR",
            path=root,
        )
    return Path(root)


def _wait_for_report(root: Path, timeout_s: float) -> None:
    """Wait until rank 0 has reported all ranks: torchrun would stop it if a failed rank exits first."""
    limit = time.monotonic() + timeout_s
    watch_every = 0
    while time.monotonic() < limit:
        with contextlib.suppress(InputError):
            manifest = read_manifest(root)
            if manifest.status != "running":
                return
            watch_every += 1
            if (
                watch_every % 20 == 0
                and not Watch(root).judge(manifest.heartbeat, root / layout.MANIFEST).alive
            ):
                return
        time.sleep(_POLL_S)


def _report_for_first(root: Path, rank: Rank, job: app.Prepared, began: float) -> None:
    """Join the ranks in place of rank 0 if it was killed; only one of the remaining ranks does so."""
    manifest = read_manifest(root)
    if manifest.status != "running":
        return
    if Watch(root).judge(manifest.heartbeat, root / layout.MANIFEST).alive:
        return
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hold(root))
        except ConfigError:
            return  # another rank is doing it
        if read_manifest(root).status != "running":
            return
        run = JoinedRun(
            Artifacts.for_run(root), rank.size, manifest.command, sinks=job.config.run.sinks, began=began
        )
        wait_for_ranks(run, _STOPPED_WAIT_S)
        finish_run_of_ranks(run, quiet=True, as_json=False)


@contextlib.contextmanager
def _leaving() -> Iterator[None]:
    try:
        yield
    finally:
        leave_group()
