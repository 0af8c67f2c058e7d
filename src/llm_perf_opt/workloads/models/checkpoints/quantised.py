"""Whether a quantised checkpoint can be loaded here, and whether what runs is what it stores; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.analysis.static.quantised.scheme import PACKAGES, method_of
from llm_perf_opt.config.schema import Weights
from llm_perf_opt.core.stage import Problem
from llm_perf_opt.workloads.models.checkpoints import loading

if TYPE_CHECKING:
    from llm_perf_opt.config.schema import ModelConfig

_WIDENED_ON_CPU = ("fp8", "mxfp4")
"""Methods that transformers turns into 16 bits where there is no accelerator."""


def checkpoint_quantisation(model: ModelConfig) -> Mapping[str, Any] | None:
    """Return the ``quantization_config`` of the local checkpoint whose weights are loaded; ``None``: there is none."""
    if model.path is None or model.weights is Weights.random:
        return None
    file = Path(model.path).expanduser() / "config.json"
    if not file.is_file():
        return None
    document = loading.read_json(file)
    text = document.get("text_config")
    found = document.get("quantization_config")
    if found is None and isinstance(text, Mapping):
        found = text.get("quantization_config")
    return found if isinstance(found, Mapping) else None


def loading_problem(model: ModelConfig) -> Problem | None:
    """Say which packages a quantised checkpoint needs that are not installed."""
    config = checkpoint_quantisation(model)
    if config is None:
        return None
    method = method_of(config)
    missing = [name for name in PACKAGES.get(method, ()) if not _is_installed(name)]
    if not missing:
        return None
    packages = " ".join(name.replace("_", "-").replace(".", "-") for name in missing)
    return Problem(
        "skip",
        f"{model.path} is quantised ({method}); loading it needs {' and '.join(missing)}, not installed here",
        f"pip install {packages}; or model.weights=random for the same shapes in 16 bits",
        "model.path",
    )


def why_not_quantised(model: ModelConfig, device: str, *, measured: bool) -> str | None:
    """Say why what runs is not in the checkpoint's format; ``None`` where it is, or where nothing runs."""
    if not measured:
        return None
    config = checkpoint_quantisation(model)
    if config is None:
        return "random weights are made in the run's own type"
    method = method_of(config)
    if device == "cpu" and method in _WIDENED_ON_CPU:
        return f"transformers widens {method} weights where there is no accelerator"
    return None


def _is_installed(name: str) -> bool:
    root = name.partition(".")[0]
    if find_spec(root) is None:
        return False
    return root == name or find_spec(name) is not None
