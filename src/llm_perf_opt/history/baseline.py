"""``compare --baseline``: the side to compare with, from the index of neighbouring runs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.history import store
from llm_perf_opt.history.data import RunRow
from llm_perf_opt.history.index import reading_index, row_of
from llm_perf_opt.history.trends import better_of, read_values, reason_unusable, settings_of

_MOST_DIFFERENCES = 6
_FACTS = ("model", "architecture", "weights", "dtype", "batch_size", "cache", "compiled")


def find_baseline(run: Path, options: argparse.Namespace) -> tuple[Path, str]:
    """Return the directory of the baseline of ``run`` and a note with its name and the reason."""
    ours = row_of(run)
    directory = (options.index or _index_around(run)).expanduser().absolute()
    with reading_index(directory) as (folder, info, _):
        others = _Others(folder, Path(info.directory), _key(run, Path(info.directory)))
        if options.baseline not in ("latest", "best"):
            row = _named(others, options.baseline, directory)
            return others.home(row), f"A is run {row.run} of the index, as requested."
        alike = _same_settings(others, ours, options, directory)
        if options.baseline == "latest":
            row = _latest(alike, ours, directory)
            return others.home(row), f"A is run {row.run}, the latest before B of {_like(options)}."
        row, value = _best(alike, folder, options.by)
        return (
            others.home(row),
            f"A is run {row.run}, the best of {len(alike)} by {options.by} ({value:g}) of {_like(options)}. The best of "
            "many runs was partly lucky: B looks slightly worse than it is.",
        )


@dataclass(frozen=True, slots=True)
class _Others:
    """The runs of an index without the one that is compared, read on demand."""

    folder: Path
    root: Path
    ours: str | None
    """Key of the run that is compared; ``None``: it is not in the index."""

    def home(self, row: RunRow) -> Path:
        """Return the directory of a run."""
        return (self.root / row.summary_path).parent

    def __call__(self, where: pl.Expr | None = None) -> Iterator[RunRow]:
        """Yield the runs for which ``where`` holds."""
        return (row for row in store.iter_runs(self.folder, where) if row.run != self.ours)


def _index_around(run: Path) -> Path:
    """Return the nearest directory above a run that has an index; without one, the directory it lies in."""
    home = _home(run)
    return next((folder for folder in home.parents if (folder / store.RUNS).is_file()), home.parent)


def _home(run: Path) -> Path:
    run = run.expanduser().absolute()
    return run if run.is_dir() else run.parent


def _key(run: Path, root: Path) -> str | None:
    """Return the name of a run in the index of ``root``, independent of the path spelling."""
    home, root = _home(run).resolve(), root.resolve()
    return home.relative_to(root).as_posix() if home.is_relative_to(root) else None


def _like(options: argparse.Namespace) -> str:
    configuration = "any configuration" if options.any_configuration else "the same configuration"
    return f"{configuration} on {'any machine' if options.any_machine else 'the same machine'}"


def _named(others: _Others, name: str, directory: Path) -> RunRow:
    wanted = Path(name).expanduser().absolute()
    below = wanted.relative_to(directory).as_posix() if wanted.is_relative_to(directory) else name
    rows = list(others(pl.col("run").is_in([name, below]) | (pl.col("id") == name)))
    found = [row for row in rows if row.run in (name, below)] or rows
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(sorted(row.run for row in found)[:5])
        raise ConfigError(
            f"--baseline {name} names {len(found)} runs: {names}",
            hint="give the directory as the index has it",
            key="baseline",
        )
    raise InputError(
        f"--baseline {name}: no such run among the {sum(1 for _ in others())} others in {directory}",
        hint="latest, best, or a run as `llm-perf-opt history DIR --json` names it",
    )


def _same_settings(
    others: _Others, ours: RunRow, options: argparse.Namespace, directory: Path
) -> list[RunRow]:
    same = pl.lit(True)
    if not options.any_configuration:
        same &= pl.col("config_hash") == ours.config_hash
    if not options.any_machine:
        same &= pl.col("machine") == ours.machine
    alike = [row for row in others(same) if _is_usable(row)]
    if alike:
        return [row for row in alike if not row.shared] or alike
    raise _none_with_same_settings(others, ours, options, directory)


def _is_usable(row: RunRow) -> bool:
    # A run that shared its device is better than none: `compare` reports it and leaves one-sided gates undecided.
    return reason_unusable(replace(row, shared=None)) is None


def _none_with_same_settings(
    others: _Others, ours: RunRow, options: argparse.Namespace, directory: Path
) -> InputError:
    count = usable = 0
    nearest: RunRow | None = None
    for row in others():
        count += 1
        if _is_usable(row):
            usable += 1
            nearest = row if nearest is None else min(nearest, row, key=lambda one: _distance(one, ours))
    if nearest is None:
        return InputError(
            f"--baseline {options.baseline}: {directory} has no other run to compare with"
            + (f" ({count} failed or have no time)" if count else ""),
            hint="run the baseline first, or give the directory of the runs: --index DIR",
        )
    found = differences(nearest, ours)
    shown = "; ".join(found[:_MOST_DIFFERENCES]) + (
        f"; and {len(found) - _MOST_DIFFERENCES} more" if len(found) > _MOST_DIFFERENCES else ""
    )
    return InputError(
        f"--baseline {options.baseline}: none of {usable} runs in {directory} has {_like(options)}; the nearest, "
        f"{nearest.run}, differs in {shown}",
        hint="--any-configuration or --any-machine takes it all the same; or --index DIR for other runs",
    )


def _distance(row: RunRow, ours: RunRow) -> tuple[int, float]:
    return len(differences(row, ours)), -(row.started_s or 0.0)


def differences(a: RunRow, b: RunRow) -> list[str]:
    """Describe what differs between the configurations and machines of two runs."""
    found = [f"machine: {a.machine} → {b.machine}"] if a.machine != b.machine else []
    one, two = settings_of(a), settings_of(b)
    one |= {name: getattr(a, name) for name in _FACTS}
    two |= {name: getattr(b, name) for name in _FACTS}
    names = sorted({*one, *two})
    return found + [
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
    values = [(value.value, value.run) for value in read_values(folder, [metric], rows)]
    if not values:
        raise ConfigError(
            f"--by {metric}: none of {len(rows)} runs has it", hint="--by tpot, ttft, program, …", key=metric
        )
    value, run = (max if better_of(metric) == "higher" else min)(values)
    return known[run], value
