"""Every key of earlier releases, in one table. Old keys work for one release; new keys win."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from llm_perf_opt.core.console.logs import ONCE

LOGGER = logging.getLogger("llm_perf_opt.config")


def _identity(value: Any) -> Any:
    return value


def _split_metrics(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class LegacyKey:
    """An old key (a trailing ``.*`` takes the whole subtree) and where its value belongs now."""

    old: str
    new: str
    convert: Callable[[Any], Any] = _identity


_OUTPUT = "pipeline.torch_profiler.output"
_OCR = f"{_OUTPUT}.extra.deepseek_ocr"


def _output_keys(root: str) -> tuple[LegacyKey, ...]:
    return (
        LegacyKey(f"{root}.save_predictions", f"{_OUTPUT}.prediction.enable"),
        LegacyKey(f"{root}.predictions.enable", f"{_OUTPUT}.prediction.enable"),
        LegacyKey(f"{root}.prediction.enable", f"{_OUTPUT}.prediction.enable"),
        LegacyKey(f"{root}.prediction.save_dir", f"{_OUTPUT}.prediction.save_dir"),
        LegacyKey(f"{root}.predictions.strip_special_tokens", f"{_OCR}.prediction.strip_special_tokens"),
        LegacyKey(f"{root}.prediction.strip_special_tokens", f"{_OCR}.prediction.strip_special_tokens"),
        LegacyKey(f"{root}.visualization.enable", f"{_OUTPUT}.visualization.enable"),
        LegacyKey(f"{root}.visualization.save_dir", f"{_OUTPUT}.visualization.save_dir"),
        LegacyKey(f"{root}.visualization.max_images", f"{_OCR}.visualization.max_images"),
        LegacyKey(f"{root}.visualization.thumbnail_width", f"{_OCR}.visualization.thumbnail_width"),
    )


LEGACY_KEYS: tuple[LegacyKey, ...] = (
    LegacyKey("device", "run.device"),
    LegacyKey("repeats", "run.repeats"),
    LegacyKey("run.stage1_repeats", "dataset.sampling.num_samples_per_epoch"),
    LegacyKey("analysis.static.enabled", "pipeline.static_analysis.enable"),
    LegacyKey("analysis.static.*", "pipeline.static_analysis"),
    LegacyKey("runners.analysis.static.enabled", "pipeline.static_analysis.enable"),
    LegacyKey("runners.analysis.static.*", "pipeline.static_analysis"),
    LegacyKey("torch_profiler.enabled", "pipeline.torch_profiler.enable"),
    LegacyKey("torch_profiler.*", "pipeline.torch_profiler"),
    *_output_keys("outputs"),
    *_output_keys("output"),
    LegacyKey("pipeline.ncu.nvtx_include", "pipeline.ncu.ncu_cli.nvtx.include"),
    LegacyKey("pipeline.ncu.set", "pipeline.ncu.ncu_cli.set"),
    LegacyKey("pipeline.ncu.metrics", "pipeline.ncu.ncu_cli.metrics", _split_metrics),
    LegacyKey("pipeline.ncu.sections", "pipeline.ncu.ncu_cli.sections"),
    LegacyKey("pipeline.ncu.target_processes", "pipeline.ncu.ncu_cli.target_processes"),
    LegacyKey("pipeline.ncu.csv", "pipeline.ncu.ncu_cli.export.csv"),
)
LEGACY_ROOTS = frozenset({"device", "repeats", "analysis", "runners", "torch_profiler", "outputs", "output"})
_RUNNER_PRESETS = {
    "stage1.default": ["pipeline.static_analysis.enable=true", "pipeline.torch_profiler.enable=true"],
    "stage1.no-static": ["pipeline.static_analysis.enable=false", "pipeline.torch_profiler.enable=true"],
    "stage2": [
        "pipeline.static_analysis.enable=false",
        "pipeline.torch_profiler.enable=false",
        "pipeline.nsys.enable=true",
        "pipeline.ncu.enable=true",
    ],
    "default": [],
}
"""Choice of the old group ``runner``, and name of a file in ``conf/runner/`` → the overrides that replace it."""
_DTYPES = {
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "float": "float32",
}
"""Short names of data types, as other tools take them."""


def translate_overrides(overrides: Sequence[str]) -> list[str]:
    """Rewrite command-line overrides that Hydra would refuse: old root keys, the old runner group, ``model=DIRECTORY``, ``fp16``."""
    translated: list[str] = []
    for item in overrides:
        key, separator, value = item.partition("=")
        runner = re.fullmatch(r"\+?runner(@[\w.]+)?", key)
        if runner and value in _RUNNER_PRESETS:
            new = _RUNNER_PRESETS[value]
            LOGGER.info(
                "'%s' is deprecated; use %s", item, " ".join(new) or "nothing: it is the default", extra=ONCE
            )
            translated.extend(new)
        elif key == "model" and _is_checkpoint_path(value):
            quoted = value.replace("\\", "\\\\").replace("'", "\\'")
            translated.extend(["model=hf", f"model.path='{quoted}'"])
        elif key == "model.dtype":
            translated.append(
                f"{key}={','.join(_DTYPES.get(each.lower(), each) for each in value.split(','))}"
            )
        elif separator and key.split(".", 1)[0] in LEGACY_ROOTS:
            translated.append(f"+{item}")
        else:
            translated.append(item)
    return translated


def _is_checkpoint_path(value: str) -> bool:
    """Whether ``model=`` names a directory and no preset: presets have no slash, lists of a sweep have commas."""
    return value.startswith(("/", "./", "../", "~/")) and "," not in value


def note_config_name(config_name: str) -> None:
    """Say what to use instead of ``--config-name runner/…``."""
    group, _, preset = config_name.removesuffix(".yaml").partition("/")
    if group == "runner" and preset in _RUNNER_PRESETS:
        instead = " ".join(["llm-perf-opt run", *_RUNNER_PRESETS[preset]])
        LOGGER.info("'--config-name %s' is deprecated; use %s", config_name, instead, extra=ONCE)


def new_key(key: str) -> str:
    """Return the key that replaces an old one; any other key as it is."""
    for entry in LEGACY_KEYS:
        old = entry.old.removesuffix(".*")
        if key == old:
            return entry.new
        if entry.old.endswith(".*") and key.startswith(f"{old}."):
            return f"{entry.new}{key.removeprefix(old)}"
    return key


def current_overrides(overrides: Sequence[str]) -> list[str]:
    """Return overrides with the keys of today in place of old ones, for a command that only prints the configuration."""
    explicit = explicit_keys(overrides)
    current: list[str] = []
    for item in overrides:
        key, separator, value = item.partition("=")
        new = new_key(key.lstrip("+"))
        if not separator or new == key.lstrip("+"):
            current.append(item)
        elif new not in explicit:  # a new key wins
            converted = next((e.convert(value) for e in LEGACY_KEYS if e.new == new and e.old == key), value)
            current.append(
                f"{new}={converted}" if isinstance(converted, str) else f"{new}=[{value.strip(chr(39))}]"
            )
    return current


def explicit_keys(overrides: Sequence[str]) -> set[str]:
    """Return the keys a user set on the command line: these win over a legacy key's value."""
    return {item.partition("=")[0].lstrip("+~") for item in overrides}


def translate_config(config: DictConfig, overrides: Sequence[str] = ()) -> list[str]:
    """Move legacy values to their new place, in ``config`` itself; return one line for each old key used."""
    explicit = explicit_keys(overrides)
    messages: list[str] = []
    with open_dict(config):
        for entry in LEGACY_KEYS:
            messages.extend(_translate_key(config, entry, explicit))
        for root in LEGACY_ROOTS:
            if root in config and not OmegaConf.to_container(config, resolve=False).get(root):  # type: ignore[union-attr]
                del config[root]
    return messages


def _translate_key(config: DictConfig, entry: LegacyKey, explicit: set[str]) -> list[str]:
    whole = entry.old.endswith(".*")
    old = entry.old.removesuffix(".*")
    value = OmegaConf.select(config, old, throw_on_missing=False)
    if value is None:
        return []
    if not whole:
        _remove_key(config, old)
        return [_move_value(config, old, entry.new, entry.convert(value), explicit)]
    if not isinstance(value, DictConfig):
        return []
    messages = [
        _move_value(config, f"{old}.{key}", f"{entry.new}.{key}", value[key], explicit) for key in list(value)
    ]
    _remove_key(config, old)
    return messages


def _move_value(config: DictConfig, old: str, new: str, value: Any, explicit: set[str]) -> str:
    if new in explicit:
        return f"'{old}' is deprecated and ignored: '{new}' is set too"
    plain = OmegaConf.to_container(value) if isinstance(value, DictConfig | ListConfig) else value
    OmegaConf.update(config, new, plain, merge=True, force_add=True)
    return f"'{old}' is deprecated: use '{new}'"


def _remove_key(config: DictConfig, path: str) -> None:
    """Delete a key, and the parents it leaves empty."""
    parent_path, _, last = path.rpartition(".")
    parent = OmegaConf.select(config, parent_path) if parent_path else config
    if isinstance(parent, DictConfig) and last in parent:
        del parent[last]
        if parent_path and not len(parent) and parent_path.split(".", 1)[0] in LEGACY_ROOTS:
            _remove_key(config, parent_path)
