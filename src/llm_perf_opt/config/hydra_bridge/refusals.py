"""Refuse those parts of Hydra's own configuration that import and call what a text names.

A command line is copied from chats, tickets and job files more readily than a program is, and nobody reads
``hydra.callbacks`` there as "run this". Nothing of ours needs these keys, so they are refused: first in the overrides,
before Hydra reads them, then in what was composed, whatever preset it came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from llm_perf_opt.core.errors import ConfigError

_TARGET = "_target_"
_SHIPPED_CHOICES = {
    "hydra/callbacks": (),
    "hydra/launcher": (
        "basic",
        "joblib",
        "ray",
        "ray_cluster",
        "slurm",
        "submitit_local",
        "submitit_slurm",
    ),
    "hydra/sweeper": ("basic", "optuna", "optuna_search"),
    "hydra/sweeper/sampler": ("tpe", "random", "cmaes", "nsgaii", "nsgaiii", "grid", "gp", "qmc"),
    "hydra/job_logging": ("default", "disabled", "none", "stdout"),
    "hydra/hydra_logging": ("default", "disabled", "hydra_debug", "none"),
}
"""Group → choices that come with Hydra, with the plug-ins of our extras, or with us; any other is somebody's file, or a
plug-in nobody here has looked at."""
_PLUGINS = "hydra_plugins.hydra_"
_SHIPPED_TARGETS = {
    "launcher": (
        "hydra._internal.core_plugins.basic_launcher.BasicLauncher",
        f"{_PLUGINS}joblib_launcher.joblib_launcher.JoblibLauncher",
        f"{_PLUGINS}submitit_launcher.submitit_launcher.LocalLauncher",
        f"{_PLUGINS}submitit_launcher.submitit_launcher.SlurmLauncher",
        f"{_PLUGINS}ray_launcher.ray_launcher.RayLauncher",
    ),
    "sweeper": (
        "hydra._internal.core_plugins.basic_sweeper.BasicSweeper",
        f"{_PLUGINS}optuna_sweeper.optuna_sweeper.OptunaSweeper",
        "optuna.samplers.TPESampler",
        "optuna.samplers.RandomSampler",
        "optuna.samplers.CmaEsSampler",
        "optuna.samplers.GridSampler",
        "optuna.samplers.GPSampler",
        "optuna.samplers.QMCSampler",
        f"{_PLUGINS}optuna_sweeper._impl.create_nsgaii_sampler",
        f"{_PLUGINS}optuna_sweeper._impl.create_nsgaiii_sampler",
    ),
}
"""Whole names of what a launcher or a sweeper may be made of, at any depth."""
_COMMANDS = (
    "hydra.launcher.setup",
    "hydra.launcher.srun_args",
    "hydra.launcher.additional_parameters",
    "hydra.launcher.ray.init.runtime_env",
    "hydra.launcher.ray.remote.runtime_env",
    "hydra.sweeper.custom_search_space",
)
"""Keys whose text an engine runs on its nodes: needed (``module load``), but in a preset of one's own, where it is read."""
_LOGGING = ("job_logging", "hydra_logging")
_LOGGING_CLASSES = ("logging.StreamHandler", "logging.FileHandler", "logging.NullHandler")
"""Whole names: ``logging.os.system`` would be found, and called, as well."""
_LOGGING_CALLS = ("()", ".", "factory")
_LOGGING_STREAMS = ("ext://sys.stdout", "ext://sys.stderr")
_OWN_PACKAGES = ("pkg://hydra.", "pkg://llm_perf_opt.")
_HINT = "leave it out: runs and sweeps do not need it; a stage, model or data set of your own is a plug-in"


def refuse_calls(overrides: Sequence[str]) -> None:
    """Raise :class:`ConfigError` for the first override that would import or call what it names.

    An override that cannot be parsed is left to whoever composes, and explains it.
    """
    for text in overrides:
        try:
            parsed = OverridesParser.create().parse_override(text)
        except HydraException:
            continue
        if any(f"{parsed.key_or_group}.".startswith(f"{key}.") for key in _COMMANDS):
            raise ConfigError(
                f"{parsed.key_or_group} is refused on the command line: its text is run on the nodes",
                hint="write it in a preset of your own (GROUP/NAME.yaml in --config-dir DIR), and give +GROUP=NAME",
                key=parsed.key_or_group,
            )
        key = _refused_key(parsed)
        if key is not None:
            raise _refusal(key)


def refuse_package(path: str) -> None:
    """Raise :class:`ConfigError` for a place of configurations that is a foreign package: it would be imported."""
    if path.startswith("pkg://") and not f"{path}.".startswith(_OWN_PACKAGES):
        raise _refusal(path)


def refuse_composed_calls(raw: DictConfig) -> None:
    """Raise :class:`ConfigError` where the composed configuration would call what somebody else named."""
    hydra: Any = OmegaConf.to_container(raw.hydra, resolve=False)
    for name in hydra.get("callbacks") or {}:
        raise _refusal(f"hydra.callbacks.{name}")
    for name, shipped in _SHIPPED_TARGETS.items():
        if not isinstance(hydra.get(name), Mapping):
            raise ConfigError(
                f"hydra.{name} is a section, not a value",
                hint=f"choose one: hydra/{name}=NAME",
                key=f"hydra.{name}",
            )
        for place, value in _leaves(hydra.get(name), f"hydra.{name}"):
            if place.rpartition(".")[2] == _TARGET and value not in shipped:
                raise _refusal(place)
    for name in _LOGGING:
        for place, value in _leaves(hydra.get(name), f"hydra.{name}"):
            if _is_called_by_logging(place.rpartition(".")[2], str(value)):
                raise _refusal(place)
    refuse_calls([f"{name}=x" for name in (hydra.get("sweeper") or {}).get("params") or {}])


def _refused_key(parsed: Override) -> str | None:
    """Return the key that would execute something; ``None`` where nothing would."""
    key = parsed.key_or_group
    names = key.replace("/", ".").split(".")
    below_hydra = names[1] if names[0] == "hydra" and len(names) > 1 else None
    if _TARGET in names or below_hydra == "callbacks":
        return key
    if parsed.package is not None and parsed.package.startswith("hydra.callbacks"):
        return f"{key}@{parsed.package}"
    if key in _SHIPPED_CHOICES and not _is_shipped(parsed, _SHIPPED_CHOICES[key]):
        return key
    if "." in key and below_hydra in _LOGGING and names[-1] != "level":
        return key
    value = None if parsed.is_sweep_override() else parsed.value()
    if key == "hydra.searchpath":
        for place in value if isinstance(value, list) else [value]:
            refuse_package(str(place))
    if any(place.rpartition(".")[2] == _TARGET for place, _ in _leaves(value, key)):
        return f"{key}={{{_TARGET}: …}}"
    return None


def _is_shipped(parsed: Override, choices: Sequence[str]) -> bool:
    return parsed.is_delete() or (not parsed.is_sweep_override() and str(parsed.value()) in choices)


def _is_called_by_logging(name: str, value: str) -> bool:
    """Whether ``logging.config`` would import, call or set something of the text's choice."""
    if name == "class":
        return value not in _LOGGING_CLASSES
    chosen = value.startswith(("ext://", "cfg://")) and value not in _LOGGING_STREAMS
    return chosen or name in _LOGGING_CALLS


def _leaves(value: Any, place: str) -> Iterator[tuple[str, object]]:
    """Yield every value that is no mapping, with its dotted place."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{place}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, place)
    else:
        yield place, value


def _refusal(key: str) -> ConfigError:
    return ConfigError(f"{key} is refused: Hydra would run whatever it names", hint=_HINT, key=key)
