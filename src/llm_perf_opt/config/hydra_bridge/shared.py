"""Compose many jobs that differ in values only: presets are read and put together once for all of them.

Hydra composes in two steps: it chooses and merges presets, then sets single values. Here the first is done once for each
choice of presets, and the second by Hydra's own function for every job, so that the result is the one Hydra itself gives.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from llm_perf_opt.config.hydra_bridge.compose import RawConfig, check_overrides, compose_raw
from llm_perf_opt.config.hydra_bridge.errors import explain
from llm_perf_opt.config.hydra_bridge.refusals import refuse_calls, refuse_composed_calls
from llm_perf_opt.config.legacy import translate_overrides

if TYPE_CHECKING:
    from hydra.conf import HydraConf

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
