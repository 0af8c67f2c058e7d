"""Join every source into one summary. Any subset of sources gives a summary; what is missing is said in its notes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from llm_perf_opt.analysis.cautions import cautions
from llm_perf_opt.analysis.findings import find_all
from llm_perf_opt.analysis.ledger import ModuleTime, build_ledger
from llm_perf_opt.analysis.roofline.predictions import missing_reasons, predict_phases
from llm_perf_opt.analysis.roofline.utilisation import phase_utilisation
from llm_perf_opt.analysis.shares import add_shares
from llm_perf_opt.analysis.timeline.module_times import split_by_shares
from llm_perf_opt.analysis.verdicts import judge, measured_passes
from llm_perf_opt.core.errors import InputError, LlmPerfError
from llm_perf_opt.core.phases import WHOLE
from llm_perf_opt.ingest.timings import WallClock, load_timings
from llm_perf_opt.model.codec import from_plain
from llm_perf_opt.model.summary import (
    CoverageSummary,
    Hardware,
    RunInfo,
    StageInfo,
    StageStatus,
    Static,
    Summary,
    Timings,
    Utilisation,
    Workload,
)
from llm_perf_opt.runs.captures import Captures, analyse_counters, read_captures
from llm_perf_opt.runs.manifest import Manifest, read_manifest
from llm_perf_opt.runs.sources import HARDWARE_NAME, Sources, run_sources

RANDOM_WEIGHTS_NOTE = "Random weights: the timings are real, the generated text is meaningless."


@dataclass(slots=True)
class Request:
    """What a summary is made from, besides the sources themselves."""

    run: RunInfo
    sources: Sources
    root: Path | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, StageInfo] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    hardware: Hardware | None = None
    """Known limits; ``None``: look the device up by the name the captures give."""
    device: str | None = None
    dtype: str | None = None
    catalogue: Path | None = None
    workload: Workload = field(default_factory=Workload)
    strict: bool = False
    """Whether a source that cannot be read is an error (the user named it) or a note (a stage left it)."""


def assemble_run(run_dir: Path) -> Summary:
    """Build the summary of a run directory from its files alone."""
    manifest = read_manifest(run_dir)
    return assemble(
        Request(
            run=RunInfo(
                id=manifest.run_id,
                status="failed" if manifest.status == "running" else manifest.status,
                started=manifest.started,
                seconds=manifest.seconds,
                command=manifest.command,
            ),
            sources=run_sources(run_dir),
            root=run_dir,
            environment=_read_json(run_dir / "env.json") or {},
            stages=_stages(manifest),
            notes=list(manifest.notes),
            hardware=_run_hardware(run_dir),
            device=manifest.facts.get("hardware_device"),
            catalogue=Path(manifest.facts["hardware_catalogue"])
            if manifest.facts.get("hardware_catalogue")
            else None,
            workload=Workload(
                model=manifest.facts.get("model"),
                device=manifest.facts.get("device"),
                batch_size=manifest.facts.get("batch_size"),
            ),
        )
    )


def assemble(request: Request) -> Summary:
    """Read the sources, analyse them, and put everything in its place."""
    notes = list(request.notes)
    clock = _wall_clock(request, notes)
    static, facts = _static(request, notes)
    captures = read_captures(request.sources, clock, notes, strict=request.strict)
    workload = _workload(request, clock, captures, facts)
    hardware = request.hardware or _look_up(request, clock, captures, notes)
    analyse_counters(captures, hardware, notes)
    dtype = workload.dtype or request.dtype
    summary = Summary(
        run=request.run,
        environment=request.environment,
        hardware=hardware,
        workload=workload,
        notes=notes,
        stages=request.stages,
        timings=clock.timings if clock is not None else Timings(),
        static=static,
        sources=request.sources.shown(request.root),
        operators=captures.operators,
        kernels=captures.kernels,
        budget=captures.budget,
        timeline=captures.timeline,
        repeat_spread=clock.repeat_spread if clock is not None else {},
        metrics={**(clock.metrics if clock is not None else {}), **captures.metrics},
    )
    _relate(summary, clock, captures, dtype)
    _explain(summary, clock, captures, dtype, request.catalogue)
    add_shares(summary, prefill_includes_vision=clock is not None and clock.prefill_includes_vision)
    if workload.weights == "random" and RANDOM_WEIGHTS_NOTE not in notes:
        summary.notes.insert(0, RANDOM_WEIGHTS_NOTE)
    return summary


def _relate(summary: Summary, clock: WallClock | None, captures: Captures, dtype: str | None) -> None:
    """Relate work, time and limits: floors, utilisation, coverage."""
    nested = clock.prefill_includes_vision if clock is not None else False
    steps = clock.decode_steps if clock is not None else None
    if summary.static is not None:
        summary.predictions = predict_phases(
            summary.static,
            summary.hardware,
            dtype,
            summary.timings,
            decode_steps=steps,
            prefill_includes_vision=nested,
        )
        summary.utilisation = phase_utilisation(
            summary.static,
            summary.timings,
            summary.hardware,
            dtype,
            decode_steps=steps,
            prefill_includes_vision=nested,
        )
        if not summary.predictions:
            summary.notes.extend(
                reason
                for reason in missing_reasons(summary.static, summary.hardware, dtype)
                if reason not in summary.notes
            )
    summary.notes.extend(cautions(summary))
    for phase, ratio in captures.device_busy_ratio.items():
        summary.utilisation.setdefault(phase, Utilisation()).device_busy_ratio = ratio
    _busy_from_totals(summary, captures)
    summary.coverage = CoverageSummary(
        time_attributed_ratio=captures.time_attributed_ratio,
        kernel_time_classified_ratio=captures.kernel_time_classified_ratio,
        flops_counted_ratio=summary.static.coverage.counted_ratio if summary.static is not None else None,
    )


def _busy_from_totals(summary: Summary, captures: Captures) -> None:
    """Without a time axis: kernel time of the whole capture against the wall-clock of all samples."""
    total = captures.metrics.get("kernel_time_s")
    if WHOLE in captures.device_busy_ratio or captures.has_time_axis or not total:
        return
    first, decode, passes = (
        summary.timings.ttft_s,
        summary.timings.decode_s,
        measured_passes(summary.workload),
    )
    if first is None or decode is None or passes is None:
        return
    busy = total + (captures.metrics.get("copy_s") or 0.0)
    wall = passes * (first.median + decode.median)
    of = "samples" if passes == summary.workload.samples else "batches"
    summary.metrics["device_busy_s"] = busy
    summary.metrics["measured_wall_s"] = wall
    use = summary.utilisation.setdefault(WHOLE, Utilisation())
    use.device_busy_ratio = min(1.0, busy / wall)
    use.arithmetic = (
        f"{busy:.3f} s of device work ÷ ({passes} {of} × ({first.median:.4f} + {decode.median:.4f}) s); "
        "streams that overlap are counted twice, so this is an upper bound"
    )
    if busy > wall:
        summary.notes.append(
            "The kernel table holds more device time than the wall-clock file: they are not of the same run, or streams overlap."
        )


def _device_times(captures: Captures) -> dict[tuple[str, str], ModuleTime]:
    """Device time per pass, in decode per step: what the static model counts the work of.

    The capture itself tells how often it holds a phase; where it does not, its times are of an unknown number.
    """
    return {
        (module, phase): ModuleTime(total_s / count, round(launches / count))
        for (module, phase), (total_s, launches) in captures.module_times.items()
        if (count := captures.phase_counts.get(phase))
    }


def _host_times(
    summary: Summary, clock: WallClock | None, captures: Captures
) -> dict[tuple[str, str], float]:
    """Measured time of modules whose work ran on the host."""
    if summary.hardware.kind == "gpu" or (summary.workload.device or "cpu") != "cpu":
        return {}
    nested = clock is not None and clock.prefill_includes_vision
    return split_by_shares(summary.timings, captures.module_shares, prefill_includes_vision=nested)


def _explain(
    summary: Summary, clock: WallClock | None, captures: Captures, dtype: str | None, catalogue: Path | None
) -> None:
    """Ledger, verdicts, findings and what-if: all from what the summary already holds."""
    summary.ledger = build_ledger(
        summary.static,
        summary.timings,
        summary.hardware,
        dtype,
        _device_times(captures),
        _host_times(summary, clock, captures),
    )
    summary.verdicts = judge(summary)
    summary.findings = find_all(summary)
    if captures.ncu_facts:
        from llm_perf_opt.analysis.ncu.vendor_gains import vendor_rules

        summary.vendor_rules = vendor_rules(summary, captures.ncu_facts, captures.ncu_matches)
    if summary.static is not None and dtype is not None:
        from llm_perf_opt.analysis.roofline.what_if import FOCUS, what_if
        from llm_perf_opt.hardware.catalogue import load_catalogue

        known = load_catalogue(catalogue)
        focus = [*FOCUS, *(device.name for device in known.devices if device.origin == "user")]
        summary.what_if = what_if(summary.static, known, dtype=dtype, focus=focus)


def _workload(
    request: Request, clock: WallClock | None, captures: Captures, facts: dict[str, str]
) -> Workload:
    """Prefer what was measured over what was configured."""
    workload = clock.workload if clock is not None else Workload()
    for name in (
        "model",
        "weights",
        "architecture",
        "device",
        "dtype",
        "batch_size",
        "samples",
        "prompt_tokens",
        "image_tokens",
        "new_tokens",
    ):
        if getattr(workload, name) is None:
            setattr(workload, name, getattr(request.workload, name))
    workload.dtype = workload.dtype or request.dtype or captures.dtype or facts.get("dtype")
    workload.model = workload.model or facts.get("name")
    workload.architecture = workload.architecture or facts.get("architecture")
    return workload


def _wall_clock(request: Request, notes: list[str]) -> WallClock | None:
    if request.sources.timings is None:
        notes.append("No wall-clock timings: phases are not timed, so there is no MFU and no MBU.")
        return None
    try:
        return load_timings(request.sources.timings)
    except InputError as error:
        if request.strict:
            raise
        notes.append(f"The timings could not be read: {error.message}")
        return None


def _static(request: Request, notes: list[str]) -> tuple[Static | None, dict[str, str]]:
    """Read the static model and what its document says about the model."""
    path = request.sources.static
    if path is None:
        return None, {}
    from llm_perf_opt.ingest.static import load_model_facts, load_static

    try:
        return load_static(path), load_model_facts(path)
    except InputError as error:
        if request.strict:
            raise
        notes.append(f"The static model could not be read: {error.message}")
        return None, {}


def _look_up(request: Request, clock: WallClock | None, captures: Captures, notes: list[str]) -> Hardware:
    """Find the device's limits by the best name there is: the user's, the file's, the captures'."""
    from llm_perf_opt.hardware.resolve import hardware_by_name

    name = (clock.device_name if clock is not None else None) or captures.device_name
    hardware = hardware_by_name(
        name, chosen=request.device, catalogue_file=str(request.catalogue) if request.catalogue else None
    )
    if hardware.reason and request.sources.static is not None:
        notes.append(f"No hardware limits: {hardware.reason}")
    return hardware


def _run_hardware(run_dir: Path) -> Hardware | None:
    document = _read_json(run_dir / HARDWARE_NAME)
    return from_plain(Hardware, document, HARDWARE_NAME) if document is not None else None


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


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, json.JSONDecodeError) as error:
        raise LlmPerfError(f"cannot read {path}: {error}") from error
    return document if isinstance(document, dict) else None
