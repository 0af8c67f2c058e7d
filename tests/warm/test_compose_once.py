"""What the tests compose is what Hydra composes by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import OmegaConf

from llm_perf_opt.config.hydra_bridge.compose import compose_raw
from llm_perf_opt.core.errors import ConfigError
from tests.warm import compose_once

SETS = [
    [],
    ["infer.max_new_tokens=3"],
    ["model=llama_tiny", "infer.max_new_tokens=4", "pipeline.nsys.enable=true"],
    ["model=llama_tiny", "+model.arch.num_hidden_layers=2", "artifacts.runs_dir=/x"],
    ["profiling/nsys@pipeline.nsys=nsys.decode", "hydra.job.chdir=true"],
    ["profiling/ncu@pipeline.ncu=ncu.rtx3090", "pipeline.ncu.ncu_cli.sections=[A,B]"],
    ["~model.arch", "run.device=cpu"],
    ["model={name: x}"],
    ["hydra.searchpath=[pkg://nowhere]"],
]


def _composed(overrides: list[str]) -> str:
    try:
        return OmegaConf.to_yaml(compose_raw(overrides), resolve=False)
    except ConfigError as error:
        return f"{error}\n{error.hint}"


@pytest.mark.parametrize("overrides", SETS, ids=" ".join)
def test_it_is_what_hydra_composes(overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [_composed(overrides) for _ in range(2)]  # made, and taken from what was kept
    monkeypatch.setattr(
        ConfigLoaderImpl, "_parse_overrides_and_create_caching_repo", compose_once.whole_preparation
    )
    monkeypatch.setattr(config_loader_impl, "create_defaults_list", compose_once.whole_defaults_list)
    monkeypatch.setattr(
        ConfigLoaderImpl, "_compose_config_from_defaults_list", compose_once.whole_composition
    )
    assert kept == [_composed(overrides)] * 2


def test_a_copy_is_changed_and_the_next_is_not() -> None:
    first = compose_raw([])
    OmegaConf.update(first, "infer.max_new_tokens", 12345)
    assert compose_raw([]).infer.max_new_tokens != 12345


def test_presets_of_a_user_are_read_anew(tmp_path: Path) -> None:
    preset = tmp_path / "infer" / "mine.yaml"
    preset.parent.mkdir()
    for tokens in (7, 8):
        preset.write_text(f"# @package infer\nmax_new_tokens: {tokens}\n")
        raw = compose_raw(["+infer@infer=mine"], config_dir=tmp_path)
        assert raw.infer.max_new_tokens == tokens
