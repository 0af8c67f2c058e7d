"""The start of a search: a finished run or one that is made first, with its findings, configuration and times."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from llm_perf_opt.config.hydra_bridge.compose import compose_raw
from llm_perf_opt.config.hydra_bridge.stored_settings import (
    executing_settings,
    missing_settings,
    refuse_executing,
)
from llm_perf_opt.config.hydra_bridge.values import override
from llm_perf_opt.config.legacy import translate_overrides
from llm_perf_opt.core import layout, units
from llm_perf_opt.core.errors import ConfigError, InputError, ToolError
from llm_perf_opt.core.files import atomic_write_text
from llm_perf_opt.core.secrets import mask_arguments
from llm_perf_opt.improve.configurations import merged
from llm_perf_opt.process.launch import run_process
from llm_perf_opt.remedies.base import key_of, split_overrides
from llm_perf_opt.remedies.data import FILE_NAME, Baseline, Improvement, Metric, load_improvement
from llm_perf_opt.runs.experiments import is_run, own_presets, run_overrides
from llm_perf_opt.summary import Summary
from llm_perf_opt.summary.file import load_summary

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
    """Read a finished run; its overrides, and ``further`` ones after them, are the baseline.

    Settings of the run that can execute code must be among ``further``.
    """
    start = read_run(path)
    command = ["llm-perf-opt", "improve", str(path), *mask_arguments(further)]
    missing = missing_settings(start.overrides, further)
    refuse_executing(missing, start.overrides, source=start.run, command=command)
    return Start(start.run, start.summary, [*start.overrides, *further])


def from_best(path: Path, further: Sequence[str]) -> list[str]:
    """Return the best configuration of a finished search as overrides, and ``further`` ones after them.

    Settings of the file that can execute code must be among ``further``.
    """
    found = load_improvement(path)
    stored = merged(found.baseline.overrides, found.best.overrides)
    command = ["llm-perf-opt", "improve", str(path), *mask_arguments(further)]
    missing = missing_settings(stored, further)
    refuse_executing(missing, stored, source=path / FILE_NAME, command=command)
    return [*stored, *further]


def from_search(out: Path, earlier: Improvement, repeated: Sequence[str]) -> Start:
    """Return the baseline of a resumed search.

    Every setting in its file is checked: those that can execute code must be among ``repeated``, and nothing else may be.
    """
    own = [item for text in earlier.method.own for item in split_overrides(text)]
    trials = [item for trial in earlier.tried for item in (*trial.on_top_of, *trial.overrides)]
    stored = list(dict.fromkeys([*earlier.baseline.overrides, *own, *trials]))
    for item in repeated:
        if not executing_settings([item]):
            raise ConfigError(
                f"--resume goes on with its own configuration: {key_of(item)} cannot be changed",
                hint="give --resume DIR; only settings that can execute code are repeated, unchanged",
                key=key_of(item),
            )
    # Checked one by one: settings that are tried in turn need not be valid together.
    groups = [earlier.baseline.overrides, *([item] for item in stored)]
    missing = [item for group in groups for item in missing_settings(group, repeated, applied=False)]
    command = ["llm-perf-opt", "improve", "--resume", str(out), *mask_arguments(repeated)]
    refuse_executing(list(dict.fromkeys(missing)), stored, source=out / FILE_NAME, command=command)
    start = read_run(out / (earlier.baseline.run or FOLDER))
    return Start(start.run, start.summary, list(earlier.baseline.overrides))


def read_run(path: Path) -> Start:
    """Read a finished run and its overrides; its settings are not applied yet."""
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
    return Start(path if path.is_dir() else path.parent, summary, run_overrides(command))


def newest_like(overrides: Sequence[str], below: Path = Path("tmp")) -> Start | None:
    """Return the newest finished run of this configuration in the default output directories; ``None``: there is none."""
    found = [*below.glob(f"runs/*/{layout.SUMMARY}"), *below.glob(f"improve/*/{FOLDER}/{layout.SUMMARY}")]
    for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:_MOST_LOOKED_AT]:
        try:
            summary = load_summary(path)
        except InputError:
            continue  # an unfinished run, or one of another release, cannot be used
        if summary.run.status == "ok" and _own_overrides(summary) == list(overrides):
            return Start(path.parent.absolute(), summary, list(overrides))
    return None


def _own_overrides(summary: Summary) -> list[str] | None:
    """Return the overrides of a run except its output directory; ``None``: it cannot be expressed by overrides."""
    command = summary.run.command
    return run_overrides(command) if is_run(command) and own_presets(command) is None else None


def set_measured(baseline: Baseline, metric: Metric, value: float) -> None:
    """Take the metric of the baseline from an experiment, if no run has it."""
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
    result = run_process(argv, log_dir=out / "logs", name="baseline", timeout_s=min(timeout_s, _TIMEOUT_S))
    if result.ended == "timeout":
        raise ToolError(
            f"the baseline run did not end within {units.seconds(timeout_s)}",
            hint="give more time (--budget), or fewer samples and tokens (infer.max_new_tokens=32)",
            path=str(run),
        )
    if not (run / layout.SUMMARY).is_file() or load_summary(run).run.status != "ok":
        raise ToolError(
            f"the baseline run failed: {result.tail(3)}", hint=f"see {run / layout.RUN_LOG}", path=str(run)
        )
    return Start(run, load_summary(run), list(overrides))


def _known(run: Path, overrides: Sequence[str]) -> Start | None:
    """Return the run left by an interrupted search; ``None``: it did not finish and is repeated."""
    summary = load_summary(run)
    own = _own_overrides(summary)
    if own != list(overrides):
        raise ConfigError(
            f"{run.parent} is the baseline of another configuration: {' '.join(own or ()) or 'the default'}",
            hint="give another --out",
        )
    return Start(run, summary, list(overrides)) if summary.run.status == "ok" else None


# The result as a preset for ``llm-perf-opt run --config-dir DIR --config-name best``.


BEST_CONFIG_FOLDER, NAME = "config", "best"
_HEAD = "# @package _global_\n# Found by `llm-perf-opt improve`: the baseline's settings and what was kept.\n"


def write_best(overrides: Sequence[str], out: Path) -> Path:
    """Write the preset; presets among the overrides become its defaults, values its values."""
    translated = translate_overrides(list(overrides))
    raw = compose_raw(translated)
    choices = OmegaConf.select(raw, "hydra.runtime.choices") or {}
    defaults: list[Any] = ["config"]
    values: dict[str, Any] = {}
    for word in translated:
        key = key_of(word)
        if key in choices:
            defaults.append({f"override /{key}": choices[key]})
        elif not word.startswith("~"):
            found = OmegaConf.select(raw, key)
            _put(
                values, key.split("."), OmegaConf.to_container(found) if OmegaConf.is_config(found) else found
            )
    document = {"defaults": [*defaults, "_self_"], **values}
    return atomic_write_text(
        out / BEST_CONFIG_FOLDER / f"{NAME}.yaml",
        _HEAD + yaml.safe_dump(_plain(document), sort_keys=False, allow_unicode=True),
    )


def remove_best(out: Path) -> None:
    """Remove an earlier preset, because nothing is kept any more."""
    (out / BEST_CONFIG_FOLDER / f"{NAME}.yaml").unlink(missing_ok=True)


def command(out: Path) -> str:
    """Return the command line that runs it."""
    return shlex.join(
        ["llm-perf-opt", "run", "--config-dir", str(out / BEST_CONFIG_FOLDER), "--config-name", NAME]
    )


def _put(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
    tree[path[-1]] = value


def _plain(value: Any) -> Any:
    """Return values that YAML supports: an enumeration is its name."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.value if hasattr(value, "value") else value
