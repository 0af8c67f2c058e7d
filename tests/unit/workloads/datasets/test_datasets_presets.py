"""The data set presets compose with the schema, and sampling can be overridden without a plus sign."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

import llm_perf_opt
from llm_perf_opt.config.schema import DatasetConfig

CONF = Path(llm_perf_opt.__file__).parent / "conf"
MINIMAL = "datasets_presets_test"


def composed(*overrides: str) -> DatasetConfig:
    store = ConfigStore.instance()
    store.store(name=f"{MINIMAL}_schema", node={"dataset": DatasetConfig})
    store.store(name=MINIMAL, node={"defaults": [f"{MINIMAL}_schema", {"dataset": "omnidocbench"}, "_self_"]})
    with initialize_config_dir(str(CONF), version_base="1.3"):
        value = OmegaConf.to_object(compose(MINIMAL, overrides=list(overrides)).dataset)
    assert isinstance(value, DatasetConfig)
    return value


@pytest.mark.parametrize("name", ["omnidocbench", "prompts", "audio"])
def test_presets_hold_the_documented_defaults(name: str) -> None:
    assert composed(f"dataset={name}") == DatasetConfig(adapter=name)


@pytest.mark.contract("E1")
def test_E1_sampling_keys_and_its_group_need_no_plus_sign() -> None:
    assert composed("dataset.sampling.num_samples_per_epoch=2").sampling.num_samples_per_epoch == 2
    assert composed("dataset/sampling=default").sampling == DatasetConfig().sampling
