"""The keys that Hydra would call are those that are refused; the installed release still has them where we look."""

from __future__ import annotations

from pathlib import Path

import hydra
import pytest
from omegaconf import OmegaConf

from llm_perf_opt.config.hydra_bridge import refusals
from llm_perf_opt.config.hydra_bridge.compose import compose_raw
from llm_perf_opt.core.errors import ConfigError
from tests.text_facts import mentions


def test_what_comes_with_hydra_is_what_we_know() -> None:
    raw = compose_raw([])
    for name, targets in refusals._SHIPPED_TARGETS.items():
        assert OmegaConf.select(raw, f"hydra.{name}._target_") == targets[0]
    shipped = Path(hydra.__file__).parent / "conf" / "hydra"
    for name in refusals._LOGGING:
        choices = {path.stem for path in (shipped / name).glob("*.yaml")}
        assert choices == set(refusals._SHIPPED_CHOICES[f"hydra/{name}"])


@pytest.mark.parametrize("name", refusals._LOGGING)
def test_every_logging_preset_of_hydra_passes(name: str) -> None:
    for choice in refusals._SHIPPED_CHOICES[f"hydra/{name}"]:
        compose_raw([f"hydra/{name}={choice}"])


def test_the_message_names_the_key_and_what_to_do() -> None:
    with pytest.raises(ConfigError) as caught:
        compose_raw(["+hydra.callbacks.mine._target_=os.system"])
    assert caught.value.data["key"] == "hydra.callbacks.mine._target_"
    assert mentions(caught.value.message, "hydra.callbacks.mine._target_")
    assert caught.value.hint
    assert caught.value.exit_code == 2


def test_a_word_in_a_text_is_no_call() -> None:
    compose_raw(["infer.prompt='<image> find _target_ and {_target_: x}'", "dataset.prompts=['_target_']"])


@pytest.mark.parametrize(
    ("choice", "extra"),
    [
        ("hydra/launcher=slurm", "'llm-perf-opt[slurm]'"),
        ("hydra/launcher=ray_cluster", "'llm-perf-opt[ray]'"),
        ("hydra/launcher=joblib", "hydra-joblib-launcher"),
        ("hydra/sweeper=optuna_search", "'llm-perf-opt[optuna]'"),
    ],
)
def test_an_engine_that_is_not_installed_is_reported_with_its_package(choice: str, extra: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_raw([choice])
    assert caught.value.hint == f"pip install {extra}"


def test_commands_for_nodes_are_for_presets_not_for_command_lines() -> None:
    with pytest.raises(ConfigError) as caught:
        compose_raw(["+hydra.launcher.setup=[ls]"])
    assert caught.value.data["key"] == "hydra.launcher.setup"
    assert "--config-dir" in str(caught.value.hint)
