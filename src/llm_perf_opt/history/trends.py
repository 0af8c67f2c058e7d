"""Trends from the rows of an index: grouping of runs, and what coincides with a step change."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from llm_perf_opt.analysis.metrics import COMPONENT, METRICS
from llm_perf_opt.core.errors import ConfigError, nearest_key
from llm_perf_opt.history import changes, store
from llm_perf_opt.history.changes import LevelChange, find_levels
from llm_perf_opt.history.data import (
    SHARED,
    Change,
    CoincidentChange,
    History,
    HistoryMethod,
    LeftOut,
    Outcome,
    Point,
    RunRow,
    Trend,
)
from llm_perf_opt.history.rows import PASS_INTERVAL, track_records
from llm_perf_opt.summary.statistics import Better, percentile

MOST_POINTS = 400
"""Latest runs of a trend that are looked at."""
_CLOCK_TOLERANCE_S = 120.0
"""Clocks of machines and file servers may differ by so much."""
_NAMED_OTHERWISE = ("model.name", "model.adapter", "dataset.adapter", "model.dtype", "infer.batch_size")
_MOST_DIFFERING = 4
_HIGHER = ("mfu", "mbu", "device_busy")


@dataclass(frozen=True, slots=True)
class Value:
    """One metric of one run: its level, and the width of its interval as a share of it."""

    run: str
    name: str
    phase: str | None
    unit: str
    value: float
    interval_ratio: float | None = None
    median: float | None = None
    """Median over all values, where ``value`` is the typical one: for trends with runs of earlier releases, which have no other."""


def _usable_runs(
    rows: Iterable[RunRow], *, include_shared: bool = False
) -> tuple[list[RunRow], list[LeftOut]]:
    """Return the runs that belong in trends, in the order they began; of the others, why not."""
    kept, left_out = [], []
    for row in rows:
        reason = reason_unusable(replace(row, shared=None) if include_shared else row)
        if reason is None:
            kept.append(row)
        else:
            left_out.append(LeftOut(row.run, reason))
    return sorted(kept, key=lambda row: (row.started_s or 0.0, row.run)), left_out


def reason_unusable(row: RunRow) -> str | None:
    """Return why a run is not used in trends; ``None``: it is used."""
    if row.status != "ok":
        return f"the run {'failed' if row.status == 'failed' else 'was interrupted'}"
    if row.shared:
        return f"{SHARED}: {row.shared}"
    if row.started_s is None:
        return f"its start '{row.started}' is not a time"
    if row.clock_ahead_s is not None and row.clock_ahead_s > _CLOCK_TOLERANCE_S:
        return f"clocks disagree: its summary was written {row.clock_ahead_s:.0f} s before it began"
    return None


def better_of(name: str) -> Better | None:
    """Which direction of a metric is an improvement; ``None``: neither."""
    if name in METRICS:
        return METRICS[name].better
    if name in _HIGHER:
        return "higher"
    return (
        "lower"
        if name.startswith(COMPONENT) or name.endswith("_s") or name in ("memory_peak", "energy_per_token")
        else None
    )


def _make_trends(runs: Sequence[RunRow], values: Iterable[Value]) -> list[Trend]:
    """Return a trend per metric, configuration and machine; ``runs`` in the order they began."""
    place = {row.run: index for index, row in enumerate(runs)}
    grouped: dict[tuple[str, str, str, str | None], list[Value]] = defaultdict(list)
    for value in values:
        if value.run in place and value.value > 0:
            row = runs[place[value.run]]
            grouped[row.config_hash, row.machine, value.name, value.phase].append(value)
    trends = []
    for (config_hash, machine, name, phase), group in grouped.items():
        ordered = sorted(group, key=lambda value: place[value.run])
        kept = _one_statistic(ordered[-MOST_POINTS:])
        rows = [runs[place[value.run]] for value in kept]
        trend = Trend(
            name,
            phase,
            kept[0].unit,
            better_of(name),
            machine,
            config_hash,
            _label_of(rows[-1]),
            [_point(row, value) for row, value in zip(rows, kept, strict=True)],
            [],
            older=len(ordered) - len(kept),
        )
        if len(kept) < changes.LEAST_RUNS:
            trend.reason = (
                f"{len(kept)} of at least {changes.LEAST_RUNS} runs: too few to detect a step change"
            )
        else:
            levels = find_levels([point.value for point in trend.points])
            found, trend.drift_ratio, trend.wanders = (
                levels.changes,
                levels.drift_ratio,
                levels.is_random_walk,
            )
            edges = [0, *(change.place for change in found), len(kept)]
            trend.changes = [
                _change(trend, change, rows, edges[index], edges[index + 2])
                for index, change in enumerate(found)
            ]
        trends.append(trend)
    _distinguish(trends, runs)
    return sorted(trends, key=lambda t: (t.label, t.machine, t.config_hash, t.metric, t.phase or ""))


def _one_statistic(values: list[Value]) -> list[Value]:
    """Return the values with one statistic for all of them: medians if a run of an older release has only those."""
    if all(value.median is not None for value in values):
        return values
    return [value if value.median is None else replace(value, value=value.median) for value in values]


def method(trends: Sequence[Trend]) -> HistoryMethod:
    """Describe how changes were searched."""
    return HistoryMethod(
        changes.NAME,
        changes.ALPHA,
        changes.PERMUTATIONS,
        changes.SEED,
        changes.LEAST_RUNS,
        changes.LEAST_SIDE,
        changes.LEAST_CHANGE_RATIO,
        sum(trend.reason is None for trend in trends),
    )


def _distinguish(trends: Sequence[Trend], runs: Sequence[RunRow]) -> None:
    """Make labels shared by several configurations of a machine distinct by adding their differences."""
    rows = {row.run: row for row in runs}
    groups: dict[tuple[str, str], dict[str, list[Trend]]] = defaultdict(lambda: defaultdict(list))
    for trend in trends:
        groups[trend.label, trend.machine][trend.config_hash].append(trend)
    for configurations in groups.values():
        if len(configurations) < 2:
            continue
        facts = {key: _facts(rows[found[0].points[-1].run]) for key, found in configurations.items()}
        names = list(dict.fromkeys(name for each in facts.values() for name in each))
        differing = [
            name for name in names if len({json.dumps(each.get(name)) for each in facts.values()}) > 1
        ]
        for key, found in configurations.items():
            settings = [
                f"{name}={'default' if (value := facts[key].get(name)) is None else value}"
                for name in differing[:_MOST_DIFFERING]
            ]
            for trend in found:
                trend.label = " · ".join([trend.label, ", ".join(settings) or f"configuration {key}"])


def _facts(row: RunRow) -> dict[str, object]:
    """Return everything that distinguishes two configurations."""
    known = {
        name: getattr(row, name)
        for name in ("architecture", "weights", "device", "cache", "compiled", "batch_size", "dtype")
    }
    return {**settings_of(row), **{name: value for name, value in known.items() if value is not None}}


_DIMENSIONS = "model.arch."
"""Many keys of a model that its name covers; where only they differ, :func:`_distinguish` names them."""


def _label_of(row: RunRow) -> str:
    """Name a configuration: the model, and what was set."""
    settings = settings_of(row)
    parts = [
        f"{key}={value}"
        for key, value in settings.items()
        if key not in _NAMED_OTHERWISE and not key.startswith(_DIMENSIONS)
    ]
    facts = [row.model or "unnamed", row.dtype, f"batch {row.batch_size:g}" if row.batch_size else None]
    shown = ", ".join(parts[:6]) + (f" and {len(parts) - 6} more" if len(parts) > 6 else "")
    return " · ".join(part for part in (*facts, shown) if part)


def settings_of(row: RunRow) -> dict[str, object]:
    """Return the settings of a run."""
    found = json.loads(row.settings)
    return found if isinstance(found, dict) else {}


def _coincident_changes(before: RunRow, after: RunRow) -> list[CoincidentChange]:
    """Return recorded differences of two runs: commit and versions."""
    one, two = ({"commit": row.commit, **_versions(row)} for row in (before, after))
    return [
        CoincidentChange(name, one.get(name), two.get(name))
        for name in dict.fromkeys((*one, *two))
        if one.get(name) != two.get(name)
    ]


def _versions(row: RunRow) -> Mapping[str, str]:
    found = json.loads(row.versions)
    return found if isinstance(found, dict) else {}


def _point(row: RunRow, value: Value) -> Point:
    half = None if value.interval_ratio is None else value.interval_ratio / 2
    low, high = (None, None) if half is None else (value.value * max(0.0, 1 - half), value.value * (1 + half))
    return Point(row.run, row.started, value.value, low, high, row.commit, row.version)


def _change(trend: Trend, found: LevelChange, rows: Sequence[RunRow], start: int, end: int) -> Change:
    values = [point.value for point in trend.points]
    caveat = (
        "neighbouring runs are alike beyond the steps: a slow drift can look like a change"
        if found.drifting or trend.wanders
        else None
    )
    return Change(
        place=found.place,
        earliest=found.earliest,
        latest=found.latest,
        before=percentile(sorted(values[start : found.place]), 0.5),
        after=percentile(sorted(values[found.place : end]), 0.5),
        ratio=found.ratio,
        low_ratio=found.low_ratio,
        high_ratio=found.high_ratio,
        p_value=found.p_value,
        outcome=_outcome(trend.better, found.ratio),
        came_with=_coincident_changes(rows[max(found.earliest - 1, 0)], rows[found.latest]),
        doubt=caveat,
    )


def _outcome(better: Better | None, ratio: float) -> Outcome:
    if better is None:
        return "changed"
    return "worse" if (ratio > 1) == (better == "lower") else "better"


# The history of the runs in an index: trends, and the step changes in them.


DEFAULT_METRICS = ("tpot", "ttft", "program", "ttft_p99", "tpot_p99", "goodput")
_LEVELS = ("typical", "median", "value")


def make_history(
    folder: Path, metrics: Sequence[str], *, model: str | None = None, include_shared: bool = False
) -> History:
    """Read an index and follow the metrics in it; ``metrics`` empty: the default ones.

    ``include_shared``: include runs that shared their device; their times may be too long.
    """
    info = store.read_info(folder)
    rows = store.iter_runs(folder, None if model is None else pl.col("model") == model)
    kept, left_out = _usable_runs(rows, include_shared=include_shared)
    runs = store.count_runs(folder)
    wanted = list(metrics) or list(DEFAULT_METRICS)
    if metrics and runs:
        _check_names(folder, wanted)
    trends = _make_trends(kept, read_values(folder, wanted, kept))
    findings = [row for row in store.read_findings(folder) if model is None or row.model == model]
    return History(
        info.directory,
        runs,
        trends,
        method(trends),
        [*info.left_out, *sorted(left_out, key=lambda entry: entry.path)],
        track_records(findings),
    )


def read_values(folder: Path, metrics: Sequence[str], runs: Sequence[RunRow]) -> list[Value]:
    """Return the level of metrics in some runs, with the interval of each run's own repeats."""
    of_runs = pl.DataFrame({"run": [row.run for row in runs]}, schema={"run": pl.String()}).lazy()
    scanned = store.scan_metrics(folder).join(of_runs, on="run", how="semi")
    levels = scanned.filter(pl.col("name").is_in(list(metrics)) & pl.col("statistic").is_in(_LEVELS))
    widths = dict(
        scanned.filter(pl.col("name") == PASS_INTERVAL).select("run", "value").collect().iter_rows()
    )
    found: dict[tuple[str, str, str | None], dict[str, float]] = defaultdict(dict)
    unit_of_metric = {}
    for row in levels.collect().iter_rows(named=True):
        found[row["run"], row["name"], row["phase"]][row["statistic"]] = row["value"]
        unit_of_metric[row["name"]] = row["unit"]
    return [
        Value(
            run,
            name,
            phase,
            unit_of_metric[name],
            next(statistics[each] for each in _LEVELS if each in statistics),
            widths.get(run),
            statistics.get("median") if "typical" in statistics else None,
        )
        for (run, name, phase), statistics in found.items()
    ]


def _check_names(folder: Path, wanted: Sequence[str]) -> None:
    known = set(store.scan_metrics(folder).select(pl.col("name").unique()).collect()["name"])
    for name in wanted:
        if name not in known:
            near = nearest_key(name, known)
            hint = f"did you mean '{near}'?" if near else f"this index has {', '.join(sorted(known)[:30])}"
            raise ConfigError(f"--metric {name}: no run has it", hint=hint, key=name)
