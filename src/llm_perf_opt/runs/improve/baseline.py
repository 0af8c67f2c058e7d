"""Where a search starts: a finished run, or one that is made first; its findings, its configuration, its times."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.config.hydra_bridge.values import override
from llm_perf_opt.core.errors import InputError, ToolError
from llm_perf_opt.core.run_directory import layout
from llm_perf_opt.model.improve import Baseline, Metric
from llm_perf_opt.model.summary import Summary
from llm_perf_opt.model.summary_file import load_summary
from llm_perf_opt.process.launch import run_process
from llm_perf_opt.runs.remedies.base import key_of

FOLDER = "baseline"
_OWN_KEYS = ("artifacts.runs_dir", "hydra.run.dir", "hydra.sweep.dir")
_TIMEOUT_S = 3600.0


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
    command = list(summary.run.command)
    if command[:2] != ["llm-perf-opt", "run"]:
        raise InputError(
            f"{path} is not a run of this program: its configuration cannot be run again",
            hint="give a directory made by `llm-perf-opt run`, or overrides: llm-perf-opt improve model=…",
            path=str(path),
        )
    switches = [word for word in command[2:] if word.startswith("-")]
    if any(word.startswith("--config") for word in switches):
        raise InputError(
            f"{path} was run with presets of its own ({switches[0]})",
            hint="give its settings as overrides: llm-perf-opt improve key=value …",
            path=str(path),
        )
    words = [word for word in command[2:] if not word.startswith("-")]
    own = [word for word in words if key_of(word) not in _OWN_KEYS]
    return Start(path if path.is_dir() else path.parent, summary, [*own, *further])


def set_measured(baseline: Baseline, metric: Metric, value: float) -> None:
    """Take the metric of the baseline from an experiment, where no run of it told the same."""
    baseline.metric_value = value
    for name in (metric, f"{metric}_s"):
        if hasattr(baseline, name):
            setattr(baseline, name, value)


def run_first(overrides: Sequence[str], out: Path, timeout_s: float = _TIMEOUT_S) -> Start:
    """Run the configuration once, with its diagnosis, in a process of its own."""
    run = out / FOLDER
    if (run / layout.SUMMARY).is_file():
        return Start(run, load_summary(run), list(overrides))
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
