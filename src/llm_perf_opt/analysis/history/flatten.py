"""A summary as rows of the index: one of the run, and one of every statistic of every metric."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from llm_perf_opt.analysis.compare.metrics import COMPONENT, kind_of, summary_scalars, timing_scalars
from llm_perf_opt.analysis.compare.origin import Side, overrides_of
from llm_perf_opt.model.history import MetricRow, RunRow
from llm_perf_opt.model.summary import Stat, Summary

PASS_INTERVAL = "pass_interval"
"""Metric: width of the 95 % interval of a pass's time ÷ that time, by the run's own repeats."""

_PHASES = {
    "preprocess": "preprocess",
    "vision": "vision",
    "prefill": "prefill",
    "decode": "decode",
    "tpot": "decode",
}
_STATISTICS = ("median", "p5", "p95", "mean", "std")
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


def unit_of(name: str) -> str:
    """Return the unit that a name ends with; without one it is a count."""
    return next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "count")


def summary_settings(summary: Summary) -> dict[str, Any]:
    """Return what a summary itself says of its configuration, for runs without a ``config.yaml``."""
    found: dict[str, Any] = {"workload.program": summary.workload.program}
    for word in overrides_of(Side("", [], [summary])):
        key, _, value = word.partition("=")
        found[key.lstrip("+~")] = value
    return {key: value for key, value in found.items() if value is not None}


def settings_hash(settings: Mapping[str, Any], summary: Summary) -> str:
    """Return what two runs share that measured the same: settings, and what they came to on the device."""
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


def machine_of(summary: Summary) -> str:
    """Name a machine by what its speed depends on; host names are not recorded."""
    cpu = summary.environment.get("cpu")
    cpu = cpu if isinstance(cpu, dict) else {}
    processor = f"{cpu['name']} ({cpu.get('cores')} cores)" if cpu.get("name") else None
    hardware = summary.hardware.name
    parts = [hardware if hardware != cpu.get("name") else None, processor]
    return " · ".join(part for part in parts if part) or "unknown machine"


def seconds_since_1970(text: str) -> float | None:
    """Read a time; one without a zone is taken as UTC, and ``None`` returned for what is none."""
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
        machine=machine_of(summary),
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
        config_hash=settings_hash(settings, summary),
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
        yield MetricRow(run, "total", None, "median", total, "s")
    if timings.interval_ratio is not None:
        yield MetricRow(run, PASS_INTERVAL, None, "value", timings.interval_ratio, "ratio")
    for name, value in summary_scalars(summary).items():
        yield MetricRow(run, name, None, "value", value, kind_of(name).unit)
    yield from _by_phase(summary, run)
    yield from _telemetry(summary, run)
    for name, scalar in summary.metrics.items():
        if scalar is not None:
            yield MetricRow(run, name, None, "value", scalar, unit_of(name))


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
        yield from _stat(run, name, None, unit_of(name), getattr(telemetry, name))
    for name in ("per_token", "per_sample"):
        value = getattr(telemetry.energy_j, name)
        if value is not None:
            yield MetricRow(run, f"energy_{name}", None, "value", value, "J")
