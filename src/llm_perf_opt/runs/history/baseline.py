"""``compare --baseline``: the side to compare with, from the index of the runs around the other."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.analysis.history.trends import better_of, settings_of, why_unusable
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.model.history import RunRow
from llm_perf_opt.runs.history import store
from llm_perf_opt.runs.history.history import read_values
from llm_perf_opt.runs.history.index import open_index, row_of

_MOST_DIFFERENCES = 6
_FACTS = ("model", "architecture", "weights", "dtype", "batch_size", "cache", "compiled")


def find_baseline(run: Path, options: argparse.Namespace) -> tuple[Path, str]:
    """Return the directory of the baseline of ``run`` and a note that says which it is and why."""
    ours = row_of(run)
    directory = (options.index or index_around(run)).expanduser().absolute()
    folder, info, _ = open_index(directory)
    root = Path(info.directory)
    rows = [row for row in store.read_runs(folder) if (root / row.summary_path).parent != _home(run)]
    if options.baseline not in ("latest", "best"):
        row = _named(rows, options.baseline, directory)
        return (root / row.summary_path).parent, f"A is run {row.run} of the index, as asked for."
    alike = _alike(rows, ours, options, directory)
    if options.baseline == "latest":
        row = _latest(alike, ours, directory)
        return (
            root / row.summary_path
        ).parent, f"A is run {row.run}, the latest before B of {_like(options)}."
    row, value = _best(alike, folder, options.by)
    return (
        (root / row.summary_path).parent,
        f"A is run {row.run}, the best of {len(alike)} by {options.by} ({value:g}) of {_like(options)}. The best of "
        "many is lucky too: expect B to look a little worse than it is.",
    )


def index_around(run: Path) -> Path:
    """Return the nearest directory above a run that has an index; without one, the directory it lies in."""
    home = _home(run)
    return next((folder for folder in home.parents if (folder / store.RUNS).is_file()), home.parent)


def _home(run: Path) -> Path:
    run = run.expanduser().absolute()
    return run if run.is_dir() else run.parent


def _like(options: argparse.Namespace) -> str:
    configuration = "any configuration" if options.any_configuration else "the same configuration"
    return f"{configuration} on {'any machine' if options.any_machine else 'the same machine'}"


def _named(rows: Sequence[RunRow], name: str, directory: Path) -> RunRow:
    wanted = Path(name).expanduser().absolute()
    exact = [row for row in rows if row.run == name or (directory / row.run) == wanted]
    found = exact or [row for row in rows if row.id == name]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(row.run for row in found[:5])
        raise ConfigError(
            f"--baseline {name} names {len(found)} runs: {names}",
            hint="give the directory as the index has it",
            key="baseline",
        )
    raise InputError(
        f"--baseline {name}: no such run among the {len(rows)} others in {directory}",
        hint="latest, best, or a run as `llm-perf-opt history DIR --json` names it",
    )


def _alike(
    rows: Sequence[RunRow], ours: RunRow, options: argparse.Namespace, directory: Path
) -> list[RunRow]:
    usable = [row for row in rows if why_unusable(row) is None]
    if not usable:
        raise InputError(
            f"--baseline {options.baseline}: {directory} has no other run to compare with"
            + (f" ({len(rows)} failed, were disturbed or have no time)" if rows else ""),
            hint="run the baseline first, or say where runs are: --index DIR",
        )
    alike = [
        row
        for row in usable
        if (options.any_configuration or row.config_hash == ours.config_hash)
        and (options.any_machine or row.machine == ours.machine)
    ]
    if alike:
        return alike
    nearest = min(usable, key=lambda row: (len(differences(row, ours)), -(row.started_s or 0.0)))
    said = differences(nearest, ours)
    shown = "; ".join(said[:_MOST_DIFFERENCES]) + (
        f"; and {len(said) - _MOST_DIFFERENCES} more" if len(said) > _MOST_DIFFERENCES else ""
    )
    raise InputError(
        f"--baseline {options.baseline}: none of {len(usable)} runs in {directory} has {_like(options)}; the nearest, "
        f"{nearest.run}, differs in {shown}",
        hint="--any-configuration or --any-machine takes it all the same; or --index DIR for other runs",
    )


def differences(a: RunRow, b: RunRow) -> list[str]:
    """Say what differs between the configurations and machines of two runs."""
    said = [f"machine: {a.machine} → {b.machine}"] if a.machine != b.machine else []
    one, two = settings_of(a), settings_of(b)
    one |= {name: getattr(a, name) for name in _FACTS}
    two |= {name: getattr(b, name) for name in _FACTS}
    names = sorted({*one, *two})
    return said + [
        f"{name}: {_shown(one.get(name))} → {_shown(two.get(name))}"
        for name in names
        if one.get(name) != two.get(name)
    ]


def _shown(value: object) -> str:
    return "the default" if value is None else str(value)


def _latest(rows: Sequence[RunRow], ours: RunRow, directory: Path) -> RunRow:
    before = [row for row in rows if ours.started_s is None or (row.started_s or 0.0) <= ours.started_s]
    if not before:
        raise InputError(
            f"--baseline latest: all {len(rows)} runs like it in {directory} began after it ({ours.started})",
            hint="name one of them: --baseline RUN",
        )
    return max(before, key=lambda row: (row.started_s or 0.0, row.run))


def _best(rows: Sequence[RunRow], folder: Path, metric: str) -> tuple[RunRow, float]:
    known = {row.run: row for row in rows}
    values = [(value.value, value.run) for value in read_values(folder, [metric]) if value.run in known]
    if not values:
        raise ConfigError(
            f"--by {metric}: none of {len(rows)} runs has it", hint="--by tpot, ttft, program, …", key=metric
        )
    value, run = (max if better_of(metric) == "higher" else min)(values)
    return known[run], value
