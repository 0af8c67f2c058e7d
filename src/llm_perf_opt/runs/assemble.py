"""Read the files of a run's stages and summarise them. Any subset gives a summary; missing parts are reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from llm_perf_opt.analysis.captures import CapturedWork, join_captures
from llm_perf_opt.analysis.facts import Facts, merge_facts
from llm_perf_opt.analysis.ranks import MOST_ROWS, add_rank_shares, kept_in_bounds, of_further_rank
from llm_perf_opt.analysis.summarise import Subject, summarise
from llm_perf_opt.core import layout
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.hardware.resolve import unknown_hardware
from llm_perf_opt.hardware.silicon import AUTO, open_silicon
from llm_perf_opt.runs.manifest import Manifest, StageRecord, known_facts, read_manifest
from llm_perf_opt.summary import Hardware, RunInfo, StageInfo, StageStatus, Summary, Workload
from llm_perf_opt.summary.codec import decode_file, to_plain

if TYPE_CHECKING:
    from llm_perf_opt.analysis.ncu.summary import CounterFacts

T = TypeVar("T")
_NOTHING_LEFT = ("pending", "skipped")
"""Stages of these states wrote nothing in this run."""


@dataclass(slots=True)
class DeviceChoice:
    """How the hardware limits are found when they are not recorded in the run."""

    name: str | None = None
    """The user's choice; ``None``: the name the captures give."""
    catalogue: Path | None = None
    silicon: str = AUTO
    """Measured operator tables: ``hardware.silicon``."""


@dataclass(slots=True)
class Assembled:
    """A summary and the facts it was made from, to avoid reading files twice."""

    summary: Summary
    facts: list[Facts] = field(default_factory=list)


def assemble_run(run_dir: Path) -> Assembled:
    """Build the summary of a run directory from its files alone."""
    from llm_perf_opt.runs.experiments import add_experiments  # imports every remedy

    manifest = read_manifest(run_dir)
    facts = stage_facts(run_dir, manifest.stages) if not manifest.ranks else _rank_facts(run_dir, manifest)
    known = known_facts(manifest)
    subject = Subject(
        run=RunInfo(
            id=manifest.run_id,
            status="failed" if manifest.status == "running" else manifest.status,
            started=manifest.started,
            seconds=manifest.seconds,
            command=manifest.command,
        ),
        environment=_environment(run_dir, manifest),
        stages=_stages(manifest),
        workload=Workload(
            model=known.model,
            device=known.device,
            batch_size=known.batch_size,
            program=known.program,
            ranks=len(manifest.ranks) or None,
        ),
        sources=shown_sources(facts, run_dir),
        notes=list(manifest.notes),
    )
    catalogue = Path(known.hardware_catalogue) if known.hardware_catalogue else None
    choice = DeviceChoice(known.hardware_device, catalogue, known.hardware_silicon or AUTO)
    hardware = _if_there(run_dir / layout.HARDWARE, Hardware)
    own = None
    if manifest.ranks:
        own = _if_there(run_dir / manifest.ranks[0].directory / layout.HARDWARE, Hardware)
        # Work is counted for the whole model; compared with one device it would look several times too good.
        reason = f"the run used {len(manifest.ranks)} ranks, and limits are those of one device"
        hardware = unknown_hardware((own and own.name) or known.device, reason)
    assembled = assemble(subject, facts, choice, hardware=hardware, root=run_dir)
    if manifest.ranks:
        add_rank_shares(assembled.summary, len(manifest.ranks), own)
    add_experiments(assembled.summary, run_dir)
    return assembled


def _rank_facts(run_dir: Path, manifest: Manifest, most_rows: int = MOST_ROWS) -> list[Facts]:
    """Read the ranks one after the other; of most of them only captures and collectives are kept.

    Memory is bounded over all ranks: each rank is reduced to what is kept before the next is read.
    """
    return list(kept_in_bounds(_facts_of_ranks(run_dir, manifest), most_rows))


def _facts_of_ranks(run_dir: Path, manifest: Manifest) -> Iterator[Facts]:
    first = True
    for one in manifest.ranks:
        folder = run_dir / one.directory
        if one.status == "missing":
            continue
        own = stage_facts(folder, read_manifest(folder).stages)
        yield from own if first else map(of_further_rank, own)
        first = first and not own


def _environment(run_dir: Path, manifest: Manifest) -> dict[str, Any]:
    """Return the environment recorded at the start, and the device lease, which is known at the end."""
    found = _if_there(run_dir / layout.ENVIRONMENT, dict[str, Any]) or {}
    return found if manifest.lease is None else {**found, "device_use": to_plain(manifest.lease)}


def stage_facts(
    run_dir: Path, stages: Mapping[str, StageRecord], *, with_pages_only: bool = False
) -> list[Facts]:
    """Return the facts of the stages in pipeline order; each reads its own files once."""
    from llm_perf_opt.runs.checks import known_stages  # imports every stage

    known = known_stages()
    found = [
        stage.facts(run_dir)
        for name, stage in known.items()
        if name in stages
        and stages[name].status not in _NOTHING_LEFT
        and (stage.has_pages or not with_pages_only)
    ]
    gone = [name for name in stages if name not in known]
    if gone:
        text = f"The stage {', '.join(gone)} of this run is not installed here: what it measured is not read."
        found.append(Facts(notes=[text]))
    return found


def assemble(
    subject: Subject,
    facts: Sequence[Facts],
    choice: DeviceChoice,
    *,
    hardware: Hardware | None = None,
    root: Path | None = None,
) -> Assembled:
    """Merge the facts, join their captures, find the device's limits, join the counters, and summarise.

    Files below ``root`` are named relative to it, so that a run means the same wherever it is moved.
    """
    merged = merge_facts("", facts)
    own = merged.wall_clock.workload.compilations if merged.wall_clock is not None else None
    if merged.compile_traced or merged.compile_logged or (own is not None and own.functions):
        from llm_perf_opt.analysis.compile_account import account_facts, join_sources, run_events

        # Our own runs are timed and profiled in different processes, so compilation ids are not shared.
        events = run_events(own) or join_sources(merged.compile_traced, merged.compile_logged)
        merged = merge_facts("", [merged, account_facts(events)])
    work = join_captures(merged)
    if hardware is None:
        hardware = _look_up(merged, work, choice)
        if hardware.reason and merged.static is not None:
            work.notes.append(f"No hardware limits: {hardware.reason}")
    counters = _counters(merged, work, hardware)
    catalogue = load_catalogue(choice.catalogue) if merged.static is not None else None
    silicon = open_silicon(catalogue, choice.silicon)
    summary = summarise(
        subject, merged, work, hardware, counters=counters, catalogue=catalogue, silicon=silicon
    )
    if root is not None:
        _name_relative_to(summary, root)
    return Assembled(summary, list(facts))


def _look_up(facts: Facts, work: CapturedWork, choice: DeviceChoice) -> Hardware:
    """Find the device's limits by the best available name: the user's, the timings', the captures', the counters'."""
    from llm_perf_opt.hardware.resolve import hardware_by_name

    names = [
        facts.wall_clock.device_name if facts.wall_clock is not None else None,
        work.device_name,
        *(launch.device_name for launch in (facts.counters.launches if facts.counters is not None else ())),
    ]
    return hardware_by_name(
        next((name for name in names if name), None),
        chosen=choice.name,
        catalogue_file=str(choice.catalogue) if choice.catalogue else None,
    )


def _counters(facts: Facts, work: CapturedWork, hardware: Hardware) -> CounterFacts | None:
    if facts.counters is None:
        return None
    from llm_perf_opt.analysis.ncu.summary import join_counters
    from llm_perf_opt.stages.ncu.facts import run_configurations

    return join_counters(facts.counters, work.facts.kernels, hardware, run_configurations(work.used))


def shown_sources(facts: Sequence[Facts], root: Path | None = None) -> dict[str, str]:
    """Return kind of source → files, relative to ``root`` where they are below it."""
    found: dict[str, list[str]] = {}
    for each in facts:
        for kind, paths in each.sources.items():
            for path in paths:
                below = root is not None and path.is_relative_to(root)
                found.setdefault(kind, []).append(str(path.relative_to(root) if root and below else path))
    return {kind: ", ".join(dict.fromkeys(paths)) for kind, paths in found.items()}


def _name_relative_to(summary: Summary, root: Path) -> None:
    def relative(source: str) -> str:
        return str(Path(source).relative_to(root)) if Path(source).is_relative_to(root) else source

    if summary.timings.source is not None:
        summary.timings = replace(summary.timings, source=relative(summary.timings.source))
    if summary.wall_clock is not None:
        summary.wall_clock.source = summary.timings.source
    for phase, budget in summary.budget.items():
        if budget.source is not None:
            source = ", ".join(map(relative, budget.source.split(", ")))
            summary.budget[phase] = replace(budget, source=source)


def _stages(manifest: Manifest) -> dict[str, StageInfo]:
    stages: dict[str, StageInfo] = {}
    for name, entry in manifest.stages.items():
        # A killed run did not finish its manifest.
        status = "failed" if entry.status in ("pending", "running") else entry.status
        reason = f"{entry.reason} (fix: {entry.fix})" if entry.reason and entry.fix else entry.reason
        stages[name] = StageInfo(
            status=cast(StageStatus, status), reason=reason, seconds=entry.seconds, artifacts=entry.artifacts
        )
    return stages


def _if_there(path: Path, kind: type[T]) -> T | None:
    return decode_file(path, kind) if path.is_file() else None
