"""Compose the presets of ``conf/`` with a user's overrides, and read Hydra's own settings from the result."""

from __future__ import annotations

import functools
import os
import pickle
import re
import reprlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from hydra import compose, initialize_config_dir
from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from llm_perf_opt.config.hydra_bridge.errors import explain
from llm_perf_opt.config.hydra_bridge.refusals import refuse_calls, refuse_composed_calls
from llm_perf_opt.config.keys import CONF_DIR
from llm_perf_opt.config.legacy import translate_overrides
from llm_perf_opt.config.store import SCHEMA_NAME, schema_node
from llm_perf_opt.core.errors import ConfigError

if TYPE_CHECKING:
    from hydra.conf import HydraConf

RawConfig: TypeAlias = DictConfig
"""A composed configuration, Hydra's own settings included, before its keys and values are checked."""
VERSION_BASE = "1.3"
"""The release of Hydra whose defaults apply, whatever release is installed."""
_NO_PRESET = re.compile(r"null|true|false|\{\}|[-+.\deE]*", re.IGNORECASE)
"""Values that cannot name a preset: nothing, a truth value, a number."""


@functools.cache
def register_schema() -> None:
    """Store the schema, on which the presets build, once per process."""
    ConfigStore.instance().store(name=SCHEMA_NAME, node=schema_node(), provider="llm_perf_opt")


def compose_raw(
    overrides: Sequence[str], *, config_dir: Path | None = None, config_name: str = "config"
) -> RawConfig:
    """Compose with Hydra; its errors become one readable message.

    The result becomes Hydra's current configuration, without which ``${hydra:…}`` cannot be resolved.
    """
    register_schema()
    add_search_path(config_dir)
    GlobalHydra.instance().clear()
    try:
        check_overrides(overrides)
        refuse_calls(overrides)
        with initialize_config_dir(str(CONF_DIR), version_base=VERSION_BASE, job_name="llm_perf_opt"):
            raw = compose(config_name, overrides=translate_overrides(overrides), return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise with_given_value(explain(error), overrides) from error
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError, AssertionError) as error:
        # Hydra's own answer to an override that its grammar takes and its composition does not.
        reason = reprlib.repr(str(error).splitlines()[0] if str(error) else type(error).__name__)
        raise ConfigError(
            f"the overrides cannot be composed: {reason}", hint="give key=value, and presets by their name"
        ) from error
    finally:
        GlobalHydra.instance().clear()
    refuse_composed_calls(raw)
    HydraConfig.instance().set_config(raw)
    return raw


def with_given_value(error: ConfigError, overrides: Sequence[str]) -> ConfigError:
    """Let a hint that names the right key show it with the value that was given: what to type."""
    found = re.fullmatch(r"did you mean '([\w.]+)'\?", error.hint or "")
    given = [item for item in overrides if item.partition("=")[0].lstrip("+") == error.data.get("key")]
    if found and given and "=" in given[-1]:
        typed = translate_overrides([f"{found[1]}={given[-1].partition('=')[2]}"])
        error.hint = f"did you mean {' '.join(typed)}?"
    return error


def plain_tree(raw: RawConfig) -> Any:
    """Return a composed configuration as mappings and lists, references as they are written."""
    return OmegaConf.to_container(raw, resolve=False, enum_to_str=True)


def copied(raw: RawConfig) -> RawConfig:
    """Return a copy; by way of bytes, which takes a third of the time of OmegaConf's own."""
    copy: RawConfig = pickle.loads(pickle.dumps(raw, pickle.HIGHEST_PROTOCOL))
    return copy


def run_directory(raw: RawConfig) -> Path:
    """Return where a run of this configuration writes, symbolic links as given."""
    return Path(os.path.abspath(str(OmegaConf.select(raw, "hydra.run.dir"))))  # noqa: PTH100 - keeps symbolic links


def sweep_directory(raw: RawConfig) -> Path:
    """Return the directory that holds the runs of a sweep."""
    return Path(str(OmegaConf.select(raw, "hydra.sweep.dir"))).absolute()


def sweep_subdirectory(raw: RawConfig, number: int) -> str:
    """Return the name of one job's directory in that of its sweep; the configuration receives the job's number."""
    OmegaConf.set_readonly(raw.hydra, False)
    OmegaConf.update(raw, "hydra.job.num", number, force_add=True)
    return str(OmegaConf.select(raw, "hydra.sweep.subdir"))


def sweeper_params(raw: RawConfig) -> list[str]:
    """Return ``hydra.sweeper.params``, what a preset sweeps over, as overrides."""
    params = OmegaConf.select(raw, "hydra.sweeper.params", default=None) or {}
    return [f"{key}={value}" for key, value in params.items()]


def changes_directory(raw: RawConfig) -> bool:
    """Tell whether the job runs in its run directory (``hydra.job.chdir``)."""
    return bool(OmegaConf.select(raw, "hydra.job.chdir"))


def check_overrides(overrides: Sequence[str]) -> None:
    """Hydra takes ``=3`` for a group without a name and ``model=null`` for no preset: both end in a traceback."""
    for item in overrides:
        key, _, value = item.partition("=")
        if not key.strip("+~ "):
            raise ConfigError(f"'{item}' is not an override: it names no key", hint="give key=value")
        if _NO_PRESET.fullmatch(value.strip()) and (CONF_DIR / key.strip("+ ")).is_dir():
            presets = sorted(path.stem for path in (CONF_DIR / key.strip("+ ")).glob("*.yaml"))
            raise ConfigError(
                f"{item} names no preset", hint=f"the presets are: {', '.join(presets)}", key=key.strip("+ ")
            )


def add_search_path(config_dir: Path | None) -> None:
    """Add a user's ``--config-dir`` to the search path, the way Hydra's own command line does."""
    if config_dir is None:
        return
    if not config_dir.is_dir():
        raise ConfigError(
            f"--config-dir {config_dir} is not a directory",
            hint="give the directory that contains your config groups",
        )
    _register_search_path(str(config_dir.resolve()))


@functools.cache
def _register_search_path(folder: str) -> None:
    """Register a directory once: a sweep composes it for every job."""

    class _UserConfigs(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            search_path.append("user", f"file://{folder}")

    Plugins.instance().register(_UserConfigs)


# Compose many jobs that differ in values only: presets are read and put together once for all of them.
#
# Hydra composes in two steps: it chooses and merges presets, then sets single values. Here the first is done once for each
# choice of presets, and the second by Hydra's own function for every job, so that the result is the one Hydra itself gives.


_MOST_BASES = 32
"""Choices of presets that are kept; a sweep over more of them composes some anew."""


class SharedComposition:
    """Composes the jobs of one sweep."""

    def __init__(self, *, config_dir: Path | None, config_name: str) -> None:
        self._config_dir, self._config_name = config_dir, config_name
        self._bases: OrderedDict[tuple[str, ...], bytes] = OrderedDict()

    def compose(self, overrides: Sequence[str]) -> RawConfig:
        """Return what :func:`~llm_perf_opt.config.hydra_bridge.compose.compose_raw` returns for these overrides."""
        check_overrides(overrides)
        refuse_calls(overrides)
        try:
            parsed = OverridesParser.create().parse_overrides(translate_overrides(overrides))
            values = [each for each in parsed if _is_value(each)]
            raw = self._base([each for each in parsed if not _is_value(each)])
            if OmegaConf.select(raw, "hydra.aliases"):  # Hydra 1.4: a key may stand for others
                return compose_raw(overrides, config_dir=self._config_dir, config_name=self._config_name)
            OmegaConf.set_readonly(raw.hydra, False)
            ConfigLoaderImpl._apply_overrides_to_config(values, raw)
        except (HydraException, OmegaConfBaseException) as error:
            raise explain(error) from error
        own = [each for each in parsed if not each.is_hydra_override()]
        raw.hydra.overrides.task = [each.input_line for each in own]
        _set_dirname(raw, own)
        refuse_composed_calls(raw)
        # As ``set_config`` does, without its copy: nobody changes this one.
        HydraConfig.instance().cfg = cast("HydraConf", raw)
        return raw

    def _base(self, chosen: Sequence[Override]) -> RawConfig:
        """Return a configuration of its own with these presets; as bytes it is copied several times faster."""
        key = tuple(str(each.input_line) for each in chosen)
        if key not in self._bases:
            raw = compose_raw(key, config_dir=self._config_dir, config_name=self._config_name)
            self._bases[key] = pickle.dumps(raw, pickle.HIGHEST_PROTOCOL)
            if len(self._bases) > _MOST_BASES:
                self._bases.popitem(last=False)
        self._bases.move_to_end(key)
        base: RawConfig = pickle.loads(self._bases[key])
        return base


def _set_dirname(raw: RawConfig, overrides: Sequence[Override]) -> None:
    """Set the name made of all overrides, which Hydra 1.3 stores; later releases make it when it is asked for."""
    dirname = getattr(config_loader_impl, "get_overrides_dirname", None)
    if dirname is not None:
        naming = raw.hydra.job.config.override_dirname
        raw.hydra.job.override_dirname = dirname(
            overrides, kv_sep=naming.kv_sep, item_sep=naming.item_sep, exclude_keys=list(naming.exclude_keys)
        )


def _is_value(override: Override) -> bool:
    """Whether an override only sets a key that is there; presets have no dot, Hydra's own keys choose presets too."""
    key = override.get_key_element()
    return (
        override.type is OverrideType.CHANGE
        and override.package is None
        and "." in key
        and "/" not in key
        and not override.is_hydra_override()
    )


# Where the user started the program.


def original_directory() -> Path:
    """Return where the user started: Hydra may have changed into the run directory since."""
    from hydra.core.hydra_config import HydraConfig  # late: stages are imported to read runs, without Hydra

    if HydraConfig.initialized():
        return Path(HydraConfig.get().runtime.cwd)
    return Path.cwd()
