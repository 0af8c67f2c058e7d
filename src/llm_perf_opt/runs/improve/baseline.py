"""Where a search starts: a finished run, or one that is made first; its findings, its configuration, its times."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.config.hydra_bridge.values import override
from llm_perf_opt.core.errors import ConfigError, InputError, ToolError
from llm_perf_opt.core.run_directory import layout
from llm_perf_opt.model.improve import Baseline, Metric
from llm_perf_opt.model.summary import Summary
from llm_perf_opt.model.summary_file import load_summary
from llm_perf_opt.process.launch import run_process
from llm_perf_opt.runs.repeat import is_run, own_presets, run_overrides

FOLDER = "baseline"
_TIMEOUT_S = 3600.0
_MOST_LOOKED_AT = 20


@dataclass(slots=True)
class Start:
    """The run whose findings are tried."""

    run: Path
    summary: Summary
    overrides: list[str]


def from_run(path: Path, further: Sequence[str] = ()) -> Start:
    """Read a finished run; its overrides, and ``further`` ones after them, are the baseline."""
    path = path.expanduser().absolute()
    if not path.exists():
        raise InputError(
            f"{path} does not exist", hint="give the directory of a finished run", path=str(path)
        )
    summary = load_summary(path)
    command = summary.run.command
    if not is_run(command):
        raise InputError(
            f"{path} is not a run of this program: its configuration cannot be run again",
            hint="give a directory made by `llm-perf-opt run`, or overrides: llm-perf-opt improve model=…",
            path=str(path),
        )
    presets = own_presets(command)
    if presets is not None:
        raise InputError(
            f"{path} was run with presets of its own ({presets})",
            hint="give its settings as overrides: llm-perf-opt improve key=value …",
            path=str(path),
        )
    folder = path if path.is_dir() else path.parent
    return Start(folder, summary, [*run_overrides(command), *further])


def newest_like(overrides: Sequence[str], below: Path = Path("tmp")) -> Start | None:
    """Return the newest finished run of this configuration where runs and searches go by themselves; ``None``: there is none."""
    found = [*below.glob(f"runs/*/{layout.SUMMARY}"), *below.glob(f"improve/*/{FOLDER}/{layout.SUMMARY}")]
    for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:_MOST_LOOKED_AT]:
        try:
            summary = load_summary(path)
        except InputError:
            continue  # a run that is not over, or of another release: it only does not help here
        if summary.run.status == "ok" and _own_overrides(summary) == list(overrides):
            return Start(path.parent.absolute(), summary, list(overrides))
    return None


def _own_overrides(summary: Summary) -> list[str] | None:
    """Return what a run was asked for, but for where it goes; ``None``: that cannot be said by overrides."""
    command = summary.run.command
    return run_overrides(command) if is_run(command) and own_presets(command) is None else None


def set_measured(baseline: Baseline, metric: Metric, value: float) -> None:
    """Take the metric of the baseline from an experiment, where no run of it told the same."""
    baseline.metric_value = value
    for name in (metric, f"{metric}_s"):
        if hasattr(baseline, name):
            setattr(baseline, name, value)


def run_first(overrides: Sequence[str], out: Path, timeout_s: float = _TIMEOUT_S) -> Start:
    """Run the configuration once, with its diagnosis, in a process of its own."""
    run = out / FOLDER
    known = _known(run, overrides) if (run / layout.SUMMARY).is_file() else None
    if known is not None:
        return known
    argv = [
        sys.executable,
        "-m",
        "llm_perf_opt",
        "run",
        "-q",
        *overrides,
        override("artifacts.runs_dir", str(run)),
    ]
    result = run_process(argv, log_dir=out / "logs", name="baseline", timeout_s=timeout_s)
    if not (run / layout.SUMMARY).is_file() or load_summary(run).run.status != "ok":
        raise ToolError(
            f"the baseline run failed: {result.tail(3)}", hint=f"see {run / layout.RUN_LOG}", path=str(run)
        )
    return Start(run, load_summary(run), list(overrides))


def _known(run: Path, overrides: Sequence[str]) -> Start | None:
    """Return the run that an interrupted search left there; ``None``: it did not come to its end, and is made again."""
    summary = load_summary(run)
    own = _own_overrides(summary)
    if own != list(overrides):
        raise ConfigError(
            f"{run.parent} holds the baseline of another configuration: {' '.join(own or ()) or 'the default'}",
            hint="give another --out",
        )
    return Start(run, summary, list(overrides)) if summary.run.status == "ok" else None
