"""A summary as rows of the index: one of the run, and one of every statistic of every metric."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from llm_perf_opt.analysis.metrics import COMPONENT, kind_of, serving_values, summary_scalars, timing_scalars
from llm_perf_opt.analysis.origin import Side, overrides_of
from llm_perf_opt.config.schema import SECTIONS, WorkloadCommandConfig
from llm_perf_opt.core import layout
from llm_perf_opt.core.errors import InputError, LlmPerfError
from llm_perf_opt.core.files import parse_yaml, read_document
from llm_perf_opt.history.data import FindingRecord, FindingRow, MetricRow, RunRow
from llm_perf_opt.remedies.data import FindingGrade, Grade, Improvement, holds_phase
from llm_perf_opt.remedies.track_record import HELPED, NOT_SHOWN, Record, search_identity
from llm_perf_opt.summary import Stat, Summary
from llm_perf_opt.summary.statistics import percentile

PASS_INTERVAL = "pass_interval"
"""Metric: width of the 95 % interval of a pass's time ÷ that time, by the run's own repeats."""
_PHASES = {
    "preprocess": "preprocess",
    "vision": "vision",
    "prefill": "prefill",
    "decode": "decode",
    "tpot": "decode",
}
_STATISTICS = ("typical", "median", "p5", "p95", "mean", "std")
_UNITS = {
    "_bytes_per_s": "bytes/s",
    "_flops_per_s": "flops/s",
    "_per_s": "1/s",
    "_bytes": "bytes",
    "_flops": "flops",
    "_ratio": "ratio",
    "_hz": "Hz",
    "_w": "W",
    "_j": "J",
    "_c": "°C",
    "_s": "s",
}


def _unit_of(name: str) -> str:
    """Return the unit that a name ends with; without one it is a count."""
    return next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "count")


def _summary_settings(summary: Summary) -> dict[str, Any]:
    """Return the configuration recorded in a summary, for runs without a ``config.yaml``."""
    found: dict[str, Any] = {"workload.program": summary.workload.program}
    for word in overrides_of(Side("", [], [summary])):
        key, _, value = word.partition("=")
        found[key.lstrip("+~")] = value
    return {key: value for key, value in found.items() if value is not None}


def _settings_hash(settings: Mapping[str, Any], summary: Summary) -> str:
    """Return a hash that is equal for runs that measured the same: settings, and their resolved values on the device."""
    workload = summary.workload
    device = (workload.device or "").partition(":")[0]
    parts = [
        dict(sorted(settings.items())),
        [
            workload.model,
            workload.architecture,
            workload.weights,
            workload.dtype,
            device,
            workload.batch_size,
        ],
        [workload.program, workload.cache, workload.compiled],
    ]
    return hashlib.sha256(json.dumps(parts, default=str).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _machine_of(summary: Summary) -> str:
    """Name a machine by its performance-relevant properties; host names are not recorded."""
    cpu = summary.environment.get("cpu")
    cpu = cpu if isinstance(cpu, dict) else {}
    processor = f"{cpu['name']} ({cpu.get('cores')} cores)" if cpu.get("name") else None
    hardware = summary.hardware.name
    parts = [hardware if hardware != cpu.get("name") else None, processor]
    return " · ".join(part for part in parts if part) or "unknown machine"


def seconds_since_1970(text: str) -> float | None:
    """Read a time; without a zone it is UTC; ``None`` if invalid."""
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def run_row(
    summary: Summary, settings: Mapping[str, Any], *, run: str, path: str, size: int, mtime_ns: int
) -> RunRow:
    """Return the row of a run."""
    environment, workload = summary.environment, summary.workload
    if (workload.ranks or 1) > 1:
        settings = {**settings, "workload.ranks": workload.ranks}
    started_s = seconds_since_1970(summary.run.started)
    versions = _versions(environment)
    use = environment.get("device_use")
    return RunRow(
        run=run,
        summary_size=size,
        summary_mtime_ns=mtime_ns,
        summary_path=path,
        id=summary.run.id,
        status=summary.run.status,
        started=summary.run.started,
        started_s=started_s,
        clock_ahead_s=None if started_s is None else max(0.0, started_s - mtime_ns / 1e9),
        seconds=summary.run.seconds,
        machine=_machine_of(summary),
        device=workload.device,
        hardware=summary.hardware.name,
        model=workload.model,
        architecture=workload.architecture,
        dtype=workload.dtype,
        weights=workload.weights,
        batch_size=workload.batch_size,
        samples=workload.samples,
        prompt_tokens=workload.prompt_tokens,
        new_tokens=workload.new_tokens,
        cache=workload.cache,
        compiled=workload.compiled,
        config_hash=_settings_hash(settings, summary),
        settings=json.dumps(dict(sorted(settings.items())), default=str),
        shared=_text(use.get("shared")) if isinstance(use, dict) else None,
        commit=_text(environment.get("commit")),
        version=_text(environment.get("llm_perf_opt")),
        torch=_text(environment.get("torch")),
        transformers=versions.get("transformers"),
        python=_text(environment.get("python")),
        driver=next((value for key, value in versions.items() if key.startswith("driver ")), None),
        versions=json.dumps(versions),
        schema_version=summary.schema_version,
    )


def _versions(environment: Mapping[str, Any]) -> dict[str, str]:
    found = {"llm_perf_opt": environment.get("llm_perf_opt"), "python": environment.get("python")}
    found["platform"] = environment.get("platform")
    for group, prefix in (("packages", ""), ("runtime", ""), ("drivers", "driver ")):
        values = environment.get(group)
        found |= (
            {f"{prefix}{name}": value for name, value in values.items()} if isinstance(values, dict) else {}
        )
    return {name: str(value) for name, value in found.items() if isinstance(value, str | int | float)}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def metric_rows(summary: Summary, run: str) -> Iterator[MetricRow]:
    """Yield every statistic of every metric of a run."""
    timings = summary.timings
    stats = {
        name: getattr(timings, f"{name}_s")
        for name in ("preprocess", "vision", "prefill", "ttft", "decode", "tpot", "program")
    }
    stats["tokens_per_s"] = timings.tokens_per_s
    stats |= {COMPONENT + name.removesuffix("_s"): stat for name, stat in timings.components.items()}
    for name, stat in stats.items():
        yield from _stat(run, name, _PHASES.get(name), kind_of(name).unit, stat)
    total = timing_scalars(summary).get("total")
    if total is not None:
        yield MetricRow(run, "total", None, "typical", total, "s")
    if timings.interval_ratio is not None:
        yield MetricRow(run, PASS_INTERVAL, None, "value", timings.interval_ratio, "ratio")
    for name, value in summary_scalars(summary).items():
        yield MetricRow(run, name, None, "value", value, kind_of(name).unit)
    for load, values in serving_values(summary).items():
        for name, value in values.items():
            yield MetricRow(run, name, load, "value", value, kind_of(name).unit)
    yield from _by_phase(summary, run)
    yield from _telemetry(summary, run)
    for name, scalar in summary.metrics.items():
        if scalar is not None:
            yield MetricRow(run, name, None, "value", scalar, _unit_of(name))


def _stat(run: str, name: str, phase: str | None, unit: str, stat: Stat | None) -> Iterator[MetricRow]:
    if stat is None:
        return
    for statistic in _STATISTICS:
        value = getattr(stat, statistic)
        if value is not None:
            yield MetricRow(run, name, phase, statistic, value, unit)
    yield MetricRow(run, name, phase, "n", stat.n, "count")


def _by_phase(summary: Summary, run: str) -> Iterator[MetricRow]:
    for phase, use in summary.utilisation.items():
        for name in ("mfu_ratio", "mbu_ratio", "device_busy_ratio"):
            value = getattr(use, name)
            if value is not None:
                yield MetricRow(run, name.removesuffix("_ratio"), phase, "value", value, "ratio")
    for phase, memory in summary.memory.items():
        yield MetricRow(run, "memory_peak", phase, "value", memory.peak_bytes, "bytes")
    for phase, budget in summary.budget.items():
        for part in budget.parts:
            yield MetricRow(run, f"budget.{part.name}", phase, "value", part.share_ratio, "ratio")


def _telemetry(summary: Summary, run: str) -> Iterator[MetricRow]:
    telemetry = summary.telemetry
    if telemetry is None:
        return
    for name in ("clock_hz", "power_w", "temperature_c"):
        yield from _stat(run, name, None, _unit_of(name), getattr(telemetry, name))
    for name in ("per_token", "per_sample"):
        value = getattr(telemetry.energy_j, name)
        if value is not None:
            yield MetricRow(run, f"energy_{name}", None, "value", value, "J")


# Settings of a run that determine what was measured, from its ``config.yaml``: not output paths or durations.


_MEASURED_SECTIONS = ("model", "infer", "dataset", "run")
_NOT_MEASURED = {
    "run.repeats",
    "run.target_interval_ratio",
    "run.max_measure_s",
    "run.top_n_kernels",
    "run.exclusive",
    "run.sinks",
    "run.device",
    "run.ranks",
    "run.ranks_timeout_s",
    "dataset.generated.cache_dir",
    "infer.verify_tokens",
    "pipeline.workload.repeats",
    "pipeline.workload.timeout_s",
}
"""How often, how long, where: the same thing is measured whatever they are. The device and the number of ranks are in the
summary, settled: under ``torchrun`` the setting does not say how many there were."""


_MOST_CONFIG_BYTES = 8 << 20


def settings_of_run(folder: Path, summary: Summary, problems: list[str] | None = None) -> dict[str, Any]:
    """Return the settings that are not the default; without a readable ``config.yaml``, those in the summary.

    ``problems`` gets the reason why an existing ``config.yaml`` cannot be read.
    """
    path = folder / layout.CONFIG
    found: Mapping[str, Any] | str | None = None
    try:
        if path.stat().st_size > _MOST_CONFIG_BYTES:
            found = f"it is larger than {_MOST_CONFIG_BYTES} bytes"
        else:
            found = _from_yaml(_without_place(read_document(path)))
    except FileNotFoundError:
        found = None
    except OSError as error:
        found = str(error.strerror)
    except InputError as error:
        found = error.message.replace(str(path), "it")
    if isinstance(found, Mapping):
        return dict(found)
    if found is not None and problems is not None:
        problems.append(found)
    return {key: value for key, value in _summary_settings(summary).items() if key not in _NOT_MEASURED}


def _without_place(text: bytes) -> bytes:
    """Remove the run directory, so that runs of one configuration have the same text, which is parsed once."""
    return b"\n".join(line for line in text.splitlines() if not line.startswith(b"  runs_dir:"))


@functools.lru_cache(maxsize=512)
def _from_yaml(text: bytes) -> Mapping[str, Any] | str:
    """Return the settings of a ``config.yaml``, or why it is invalid."""
    try:
        document = parse_yaml(text)
    except ValueError as error:
        return f"it is not valid YAML: {error}"
    if not isinstance(document, dict):
        return "it is not a mapping"
    pipeline = document.get("pipeline")
    tree = {name: document[name] for name in _MEASURED_SECTIONS if name in document}
    if isinstance(pipeline, dict) and "workload" in pipeline:
        tree["pipeline"] = {"workload": pipeline["workload"]}
    defaults = _defaults()
    return {
        key: value
        for key, value in _leaves(tree)
        if key not in _NOT_MEASURED
        and (key not in defaults or defaults[key] != value)
        and value not in ({}, None)
    }


@functools.cache
def _defaults() -> dict[str, Any]:
    """Return the defaults of this release: a key that a later release adds changes no older run's configuration."""
    tree: dict[str, Any] = {
        name: dataclasses.asdict(SECTIONS[name]()) for name in _MEASURED_SECTIONS if name in SECTIONS
    }
    tree["pipeline"] = {"workload": dataclasses.asdict(WorkloadCommandConfig())}
    return {key: str(value) if isinstance(value, str) else value for key, value in _leaves(tree)}


def _leaves(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


# The track record of findings: how often their advice helped, by rule and machine.


LOGGER = logging.getLogger("llm_perf_opt.history")
_FINDINGS_FILE = "findings.parquet"
"""Of an index; Polars is imported only where there is one."""


def finding_rows(result: Improvement, search: str, *, size: int, mtime_ns: int) -> Iterator[FindingRow]:
    """Yield a row for every finding that a search graded."""
    for grade in result.grades:
        yield FindingRow(
            search=search,
            file_size=size,
            file_mtime_ns=mtime_ns,
            started=result.started,
            device=result.baseline.device,
            model=result.baseline.model,
            metric=result.metric,
            finding=grade.finding,
            phase=grade.phase,
            grade=grade.grade,
            predicted_gain_s=grade.predicted_gain_s,
            measured_gain_s=grade.measured_gain_s,
            helped=grade.helped,
            tried=grade.tried,
        )


def track_records(rows: Iterable[FindingRow]) -> list[FindingRecord]:
    """Sum up the searches of each rule on each machine, those tried most often first.

    A search by a metric that does not contain the phase of a finding is ignored.
    """
    grouped: dict[tuple[str, str | None, str | None], list[FindingRow]] = defaultdict(list)
    for row in rows:
        if not holds_phase(row.metric, row.phase):
            continue
        grouped[row.finding, row.phase, row.device].append(row)
    found = []
    for (finding, phase, device), group in grouped.items():
        reported = [row for row in group if row.grade != NOT_SHOWN]
        found.append(
            FindingRecord(
                finding=finding,
                phase=phase,
                device=device,
                trials=len(reported),
                helped=sum(row.grade in HELPED for row in reported),
                not_shown=len(group) - len(reported),
                predicted_gain_s=_median(row.predicted_gain_s for row in group),
                measured_gain_s=_median(row.measured_gain_s for row in group),
                last=max((row.started for row in group), default=None),
            )
        )
    return sorted(found, key=lambda r: (-r.trials, -r.helped, r.finding, r.phase or "", r.device or ""))


def indexed_records(run: Path) -> dict[str, Record]:
    """Return the searches in the nearest index above a run, by their identity; none where there is no index."""
    home = next((folder for folder in run.absolute().parents if (folder / _FINDINGS_FILE).is_file()), None)
    if home is None:
        return {}
    from llm_perf_opt.history import store

    try:
        root, rows = Path(store.read_info(home).directory), store.read_findings(home)
    except LlmPerfError as error:  # the record is optional: a damaged index must not break the report
        LOGGER.warning("the track record of the index was left out: %s", error.message)
        return {}
    found: dict[str, Record] = {}
    for row in rows:
        name = search_identity(root / row.search, row.started)
        record = found.setdefault(name, Record(row.started, row.device, row.model, row.metric, version=""))
        record.grades.append(
            FindingGrade(
                finding=row.finding,
                phase=row.phase,
                predicted_gain_s=row.predicted_gain_s,
                measured_gain_s=row.measured_gain_s,
                helped=row.helped,
                tried=row.tried,
                grade=cast("Grade", row.grade),
            )
        )
    return found


def _median(values: Iterable[float | None]) -> float | None:
    known = sorted(value for value in values if value is not None)
    return percentile(known, 0.5) if known else None
