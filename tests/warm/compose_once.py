"""Let Hydra choose and merge the same presets once in a process: a test suite composes them two thousand times.

Hydra composes in two steps: it merges the chosen presets, then sets single values. The first takes nine tenths of the time and
depends on the choice of presets alone; here its result is kept and copied. Everything else is Hydra's own code. Folders of a
user's own presets are read anew each time. ``test_compose_once.py`` compares with Hydra as it is.
"""

import copy
import functools
import pickle
from dataclasses import replace
from typing import Any

import hydra
from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra._internal.defaults_list import Overrides
from hydra.core.override_parser.overrides_parser import OverridesParser

from llm_perf_opt.core.stage import stage_types

OURS = ("hydra", "main", "llm_perf_opt", "schema")
"""Providers of presets that do not change while tests run."""

whole_preparation = ConfigLoaderImpl._parse_overrides_and_create_caching_repo
whole_defaults_list = config_loader_impl.create_defaults_list
whole_composition = ConfigLoaderImpl._compose_config_from_defaults_list


def _are_ours(repository: Any) -> bool:
    return all(source.provider in OURS for source in repository.get_sources())


@functools.cache
def install() -> None:
    """Do so from now on; with the release of Hydra whose inner functions these are."""
    if not hydra.__version__.startswith("1.3."):
        return
    lists: dict[tuple[Any, ...], Any] = {}
    composed: dict[int, bytes] = {}

    def prepare(self: Any, config_name: str | None, overrides: list[str]) -> Any:
        """Without a copy of all sources, and without a look for further ones in the main file, which names none."""
        if not _are_ours(self.repository) or any("searchpath" in each for each in overrides):
            return whole_preparation(self, config_name, overrides)
        repository = CachingConfigRepository.__new__(CachingConfigRepository)
        repository.delegate, repository.cache = copy.copy(self.repository), {}
        return OverridesParser.create().parse_overrides(overrides=overrides), repository

    def create_defaults_list(
        repo: Any, config_name: str | None, overrides_list: list[Any], prepend_hydra: bool, skip_missing: bool
    ) -> Any:
        arguments = (repo, config_name, overrides_list, prepend_hydra, skip_missing)
        if not _are_ours(repo):
            return whole_defaults_list(*arguments)
        sources = [(source.provider, source.path) for source in repo.get_sources()]
        asked = Overrides(repo=repo, overrides_list=overrides_list)
        chosen = (asked.override_choices, asked.deletions, asked.append_group_defaults)
        stages = tuple((name, id(kind.config_type)) for name, kind in stage_types().items())
        key = (config_name, prepend_hydra, skip_missing, repr(sources), repr(chosen), stages)
        if key not in lists:
            lists[key] = whole_defaults_list(*arguments)
        return replace(lists[key], config_overrides=asked.config_overrides)

    def compose_from_list(self: Any, defaults: Any, repo: Any) -> Any:
        if not any(known.defaults is defaults for known in lists.values()):
            return whole_composition(self, defaults=defaults, repo=repo)
        if id(defaults) not in composed:
            made = whole_composition(self, defaults=defaults, repo=repo)
            composed[id(defaults)] = pickle.dumps(made, pickle.HIGHEST_PROTOCOL)
        return pickle.loads(composed[id(defaults)])

    ConfigLoaderImpl._parse_overrides_and_create_caching_repo = prepare
    config_loader_impl.create_defaults_list = create_defaults_list
    ConfigLoaderImpl._compose_config_from_defaults_list = compose_from_list
