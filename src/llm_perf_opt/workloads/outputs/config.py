"""``pipeline.<stage>.output.*``: what a stage that runs the model leaves for people to look at."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import ConfigError

DEFAULT_PREDICTION_DIR = "pred"
DEFAULT_VISUALIZATION_DIR = "viz"


@dataclass
class PredictionOutput:
    """``output.prediction.*``: ``predictions.jsonl``."""

    enable: bool = False
    save_dir: str | None = DEFAULT_PREDICTION_DIR
    """Relative: below the stage directory; ``.``: the stage directory; absolute: as it is; null: ``pred``."""


@dataclass
class VisualizationOutput:
    """``output.visualization.*``: ``predictions.md``, ``predictions.html`` and their images."""

    enable: bool = True
    save_dir: str | None = DEFAULT_VISUALIZATION_DIR
    """Same rules; null: ``viz``."""


@dataclass
class OutputConfig:
    """``output.*`` of one stage."""

    prediction: PredictionOutput = field(default_factory=PredictionOutput)
    visualization: VisualizationOutput = field(default_factory=VisualizationOutput)
    extra: dict[str, Any] = field(default_factory=dict)
    """Model name → its own options (:class:`ModelOutputOptions`)."""


@dataclass(frozen=True, slots=True)
class PredictionOptions:
    """``output.extra.<model>.prediction.*``."""

    strip_special_tokens: bool = False
    """Leave control tokens out of ``text`` (``raw_text`` always has them, ``clean_text`` never)."""


@dataclass(frozen=True, slots=True)
class VisualizationOptions:
    """``output.extra.<model>.visualization.*``."""

    max_images: int | None = 16
    """Most pages in the gallery; null: all."""
    thumbnail_width: int = 480
    """Width of the page images in pixels (smaller pages are not enlarged)."""


@dataclass(frozen=True, slots=True)
class ModelOutputOptions:
    """``output.extra.<model>.*``."""

    prediction: PredictionOptions = field(default_factory=PredictionOptions)
    visualization: VisualizationOptions = field(default_factory=VisualizationOptions)


def resolve_output_dir(save_dir: str | None, default: str, stage_dir: Path) -> Path:
    """Return the output directory of a stage: relative below its directory, absolute honoured, null the default."""
    given = Path(save_dir.strip() if save_dir and save_dir.strip() else default).expanduser()
    if given.is_absolute():
        return given
    relative = Path(os.path.normpath(given))
    if relative.parts[:1] == (os.pardir,):
        raise ConfigError(
            f"save_dir '{save_dir}' leaves the stage directory",
            hint="give a path without '..', or an absolute one",
            key="output.save_dir",
        )
    return stage_dir.absolute() / relative


def check_output(output: OutputConfig, stage: str, adapter: str) -> None:
    """Reject invalid output settings, naming the key; accesses no files."""
    where = f"pipeline.{stage}.output"
    model_output_options(output.extra, adapter, f"{where}.extra")
    for name, part in (("prediction", output.prediction), ("visualization", output.visualization)):
        try:
            resolve_output_dir(part.save_dir, ".", Path("/"))
        except ConfigError as error:
            key = f"{where}.{name}.save_dir"
            raise ConfigError(f"{key}: {error.message}", hint=error.hint, key=key) from error


def model_output_options(
    extra: Mapping[str, Any], adapter: str, where: str = "output.extra"
) -> ModelOutputOptions:
    """Read ``extra.<adapter>``; a later generation (``deepseek_ocr2``) falls back on its family's options.

    Options of other models are left alone: presets may be mounted for models that are not in use.
    """
    name = adapter if adapter in extra else adapter.rstrip("0123456789")
    values = extra.get(name)
    if values is None:
        return ModelOutputOptions()
    path = f"{where}.{name}"
    section = _checked_section(values, path, ("prediction", "visualization"))
    prediction = _checked_section(
        section.get("prediction"), f"{path}.prediction", _field_names(PredictionOptions)
    )
    shown = _checked_section(
        section.get("visualization"), f"{path}.visualization", _field_names(VisualizationOptions)
    )
    for key, value in shown.items():
        least = 0 if key == "max_images" else 16
        if value is None and key == "max_images":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise _invalid_value(f"{path}.visualization.{key}", f"an integer of at least {least}", value)
    for key, value in prediction.items():
        if not isinstance(value, bool):
            raise _invalid_value(f"{path}.prediction.{key}", "true or false", value)
    return ModelOutputOptions(PredictionOptions(**prediction), VisualizationOptions(**shown))


def _field_names(kind: type[PredictionOptions] | type[VisualizationOptions]) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind))


def _checked_section(values: Any, path: str, known: tuple[str, ...]) -> dict[str, Any]:
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise _invalid_value(path, "a group of keys", values)
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {path}.{near[0]}?" if near else f"keys: {', '.join(known)}"
            raise ConfigError(f"unknown key {path}.{key}", hint=hint, key=f"{path}.{key}")
    return {str(key): value for key, value in values.items()}


def _invalid_value(key: str, expected: str, value: object) -> ConfigError:
    return ConfigError(f"{key} must be {expected}, got {value!r}", hint=f"set {key} to {expected}", key=key)
