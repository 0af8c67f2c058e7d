"""Read what the stages of a run left, and summarise it. Any subset gives a summary; what is missing is said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from llm_perf_opt.analysis.facts import Facts
from llm_perf_opt.analysis.join import Joined, join
from llm_perf_opt.analysis.ranks.paper import add_rank_shares
from llm_perf_opt.analysis.ranks.slim import MOST_ROWS, kept_in_bounds, of_further_rank
from llm_perf_opt.analysis.summarise import Subject, missing_clock_note, summarise
from llm_perf_opt.core.run_directory import layout
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.hardware.resolve import unknown_hardware
from llm_perf_opt.hardware.silicon import AUTO, open_silicon
from llm_perf_opt.model.codec import decode_file, to_plain
from llm_perf_opt.model.summary import Hardware, RunInfo, StageInfo, StageStatus, Summary, Workload
from llm_perf_opt.runs.experiments import add_experiments
from llm_perf_opt.runs.pipeline import known_stages
from llm_perf_opt.runs.records.manifest import Manifest, StageRecord, known_facts, read_manifest

T = TypeVar("T")

_NOTHING_LEFT = ("pending", "skipped")
"""Stages of these states wrote nothing in this run."""


@dataclass(slots=True)
class DeviceChoice:
    """How the hardware limits are found when a run did not settle them."""

    name: str | None = None
    """The user's choice; ``None``: the name the captures give."""
    catalogue: Path | None = None
    silicon: str = AUTO
    """Measured operator tables: ``hardware.silicon``."""


@dataclass(slots=True)
class Assembled:
    """A summary and the facts it was made from, so that nothing is read twice."""

    summary: Summary
    facts: list[Facts] = field(default_factory=list)


def assemble_run(run_dir: Path) -> Assembled:
    """Build the summary of a run directory from its files alone."""
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
        # Work is counted for the whole model; against the limits of one device it would look several times too good.
        reason = f"the run used {len(manifest.ranks)} ranks, and limits are those of one device"
        hardware = unknown_hardware((own and own.name) or known.device, reason)
    assembled = assemble(subject, facts, choice, hardware=hardware, root=run_dir)
    if manifest.ranks:
        add_rank_shares(assembled.summary, len(manifest.ranks), own)
    add_experiments(assembled.summary, run_dir)
    return assembled


def _rank_facts(run_dir: Path, manifest: Manifest, most_rows: int = MOST_ROWS) -> list[Facts]:
    """Read the ranks one after the other; of most of them only captures and collectives are kept.

    One bound for all ranks together: the next is read when the one before it was cut down to what is kept.
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
    """Return what was recorded at the start, and how the device was had, which is known in the end."""
    found = _if_there(run_dir / layout.ENVIRONMENT, dict[str, Any]) or {}
    return found if manifest.lease is None else {**found, "device_use": to_plain(manifest.lease)}


def stage_facts(
    run_dir: Path, stages: Mapping[str, StageRecord], *, with_pages_only: bool = False
) -> list[Facts]:
    """Ask the stages of a run, in pipeline order, what they have to say; each reads its own files once."""
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
        words = (
            f"The stage {', '.join(gone)} of this run is not installed here: what it measured is not read."
        )
        found.append(Facts(notes=[words]))
    return found


def assemble(
    subject: Subject,
    facts: Sequence[Facts],
    choice: DeviceChoice,
    *,
    hardware: Hardware | None = None,
    root: Path | None = None,
) -> Assembled:
    """Join the facts, find the device's limits, analyse, and put everything in its place.

    Files below ``root`` are named relative to it, so that a run means the same wherever it is moved.
    """
    joined = join(facts)
    if root is not None:
        _name_relative_to(joined, root)
    joined.notes = [*missing_clock_note(facts), *joined.notes]
    hardware = hardware or _look_up(joined, choice)
    counters = None
    if joined.counters is not None:
        from llm_perf_opt.analysis.ncu.conditions import condition_notes, counter_conditions
        from llm_perf_opt.analysis.ncu.counters import add_counters, analyse_counters
        from llm_perf_opt.stages.facts.ncu import run_configurations

        counters = analyse_counters(joined.counters, joined.kernels, hardware)
        configurations = run_configurations(joined.used_captures)
        joined.kernels = add_counters(joined.kernels, counters, configurations)
        joined.conditions = counter_conditions(joined.counters, joined.kernels)
        joined.notes += condition_notes(joined.conditions, joined.kernels)
        joined.notes += [f"Counters contradict each other: {text}" for text in counters.violations()]
    catalogue = load_catalogue(choice.catalogue) if joined.static is not None else None
    silicon = open_silicon(catalogue, choice.silicon)
    if joined.shaped_calls or counters is not None:
        from llm_perf_opt.stages.facts.targets import add_kernel_targets

        add_kernel_targets(joined, hardware, silicon, counters)
    summary = summarise(subject, joined, hardware, catalogue, silicon)
    if counters is not None and counters.facts:
        from llm_perf_opt.analysis.ncu.vendor_gains import vendor_rules

        summary.vendor_rules = vendor_rules(summary, counters.facts, counters.matches)
    return Assembled(summary, list(facts))


def shown_sources(facts: Sequence[Facts], root: Path | None = None) -> dict[str, str]:
    """Return kind of source → files, relative to ``root`` where they are below it."""
    found: dict[str, list[str]] = {}
    for each in facts:
        for kind, paths in each.sources.items():
            for path in paths:
                below = root is not None and path.is_relative_to(root)
                found.setdefault(kind, []).append(str(path.relative_to(root) if root and below else path))
    return {kind: ", ".join(dict.fromkeys(paths)) for kind, paths in found.items()}


def _name_relative_to(joined: Joined, root: Path) -> None:
    def relative(source: str | None) -> str | None:
        below = source is not None and Path(source).is_relative_to(root)
        return str(Path(source).relative_to(root)) if source is not None and below else source

    if joined.clock is not None:
        joined.clock.timings.source = relative(joined.clock.timings.source)
    for budget in joined.budget.values():
        parts = (relative(part) or "" for part in (budget.source or "").split(", "))
        budget.source = ", ".join(parts) or None


def _look_up(joined: Joined, choice: DeviceChoice) -> Hardware:
    """Find the device's limits by the best name there is: the user's, the file's, the captures'."""
    from llm_perf_opt.hardware.resolve import hardware_by_name

    name = (joined.clock.device_name if joined.clock is not None else None) or joined.device_name
    hardware = hardware_by_name(
        name, chosen=choice.name, catalogue_file=str(choice.catalogue) if choice.catalogue else None
    )
    if hardware.reason and joined.static is not None:
        joined.notes.append(f"No hardware limits: {hardware.reason}")
    return hardware


def _stages(manifest: Manifest) -> dict[str, StageInfo]:
    stages: dict[str, StageInfo] = {}
    for name, entry in manifest.stages.items():
        # A run that was killed never settled its manifest.
        status = "failed" if entry.status in ("pending", "running") else entry.status
        reason = f"{entry.reason} (fix: {entry.fix})" if entry.reason and entry.fix else entry.reason
        stages[name] = StageInfo(
            status=cast(StageStatus, status), reason=reason, seconds=entry.seconds, artifacts=entry.artifacts
        )
    return stages


def _if_there(path: Path, kind: type[T]) -> T | None:
    return decode_file(path, kind) if path.is_file() else None
