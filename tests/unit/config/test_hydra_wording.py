"""The messages that ``hydra_bridge.errors`` reads are still those of the installed Hydra and OmegaConf."""

from __future__ import annotations

import re

import hydra
import pytest
from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra

from llm_perf_opt.config import keys
from llm_perf_opt.config.hydra_bridge import errors
from llm_perf_opt.config.hydra_bridge.compose import VERSION_BASE, compose_raw, register_schema
from llm_perf_opt.config.keys import CONF_DIR
from llm_perf_opt.core.errors import ConfigError

NEWER = not hydra.__version__.startswith("1.3.")
"""Hydra 1.4 and OmegaConf 2.4 (``.venv-optuna``) word some messages differently."""
VALUES = {
    "infer.max_new_tokens=many": (
        "Value 'many' of type 'str' could not be converted to Integer",
        "infer.max_new_tokens: 'many' is not a valid integer",
    ),
    "pipeline.nsys.enable=maybe": (
        "Value 'maybe' is not a valid bool (type str)",
        "pipeline.nsys.enable: 'maybe' is not a valid true/false value",
    ),
    "run.mode=medium": (
        "Invalid value 'medium', expected one of [deep, light]",
        "run.mode: 'medium' is not one of deep, light",
    ),
    "run.device=[a]": (
        "Cannot convert 'list' to string: '['a']'",
        "run.device: the value has the wrong type",
    ),
    "model.dtype=[1]": (
        "Value [1] (list) is not a valid input for <enum 'Dtype'>",
        "model.dtype: the value has the wrong type",
    ),
    "pipeline.workload.command=3": (
        f"Invalid value assigned: int is not a ListConfig, {'TupleConfig, list,' if NEWER else 'list'} or tuple.",
        "pipeline.workload.command: the value has the wrong type",
    ),
    "pipeline.workload.command={a:1}": (
        "Cannot merge incompatible container types" if NEWER else "Cannot merge DictConfig with ListConfig",
        "pipeline.workload.command: the value has the wrong type",
    ),
    "model.arch=3": ("Cannot assign int to Dict[str, Any]", "model.arch: the value has the wrong type"),
    "infer.batch_size=null": (
        "field 'infer.batch_size' is not Optional",
        "infer.batch_size: null is not allowed here",
    ),
}
"""For each pattern an override, what OmegaConf says of it, and what a user is told."""


def hydras_own_error(override: str) -> tuple[str, str]:
    """The message of the exception, and the first line of its first cause."""
    register_schema()
    GlobalHydra.instance().clear()
    with (
        pytest.raises(Exception) as caught,
        initialize_config_dir(str(CONF_DIR), version_base=VERSION_BASE),
    ):
        compose("config", overrides=[override], return_hydra_config=True)
    cause: BaseException = caught.value
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return str(caught.value), str(cause).splitlines()[0]


@pytest.mark.parametrize("override", VALUES)
def test_message_for_a_value(override: str) -> None:
    text, shown = VALUES[override]
    message, cause = hydras_own_error(override)
    assert cause == text
    key = override.partition("=")[0]
    assert message == f"Error merging override {override}"
    assert [found.group(1) for found in errors.MERGED_OVERRIDE.finditer(message)] == [key]
    with pytest.raises(ConfigError) as caught:
        compose_raw([override])
    assert caught.value.message == shown
    assert caught.value.data["key"] == key


def test_every_pattern_has_its_message() -> None:
    messages = [printed for printed, _ in VALUES.values()]
    for pattern, _ in errors.VALUE_SENTENCES:
        assert any(pattern.search(message) for message in messages), pattern.pattern


def groups(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    found = pattern.search(text)
    assert found is not None, text
    return found.groups()


def test_message_for_an_unknown_key() -> None:
    message, cause = hydras_own_error("pipline.nsys.enable=true")
    assert (
        message
        == "Could not override 'pipline.nsys.enable'.\nTo append to your config use +pipline.nsys.enable=true"
    )
    guess = ". Did you mean: 'pipeline'?" if NEWER else ""
    assert cause == f"Key 'pipline' is not in struct{guess}"
    assert groups(errors.UNKNOWN_KEY, message) == ("pipline.nsys.enable",)
    assert groups(errors.KEY_NOT_IN_STRUCT, cause) == ("pipline",)
    _, cause = hydras_own_error("hydra.nothing=1")
    assert cause == "Key 'nothing' not in 'HydraConf'"
    assert groups(errors.KEY_NOT_IN_STRUCT, cause) == ("nothing",)


def test_message_for_an_argument_that_is_no_override() -> None:
    _, cause = hydras_own_error("bogus")
    newer = "Error when parsing index: 0, string: bogus out of ['bogus']."
    assert cause == (newer if NEWER else "Error parsing override 'bogus'")
    assert groups(errors.UNPARSED_WORD, cause) == ("bogus",)
    with pytest.raises(ConfigError) as caught:
        compose_raw(["bogus"])
    assert caught.value.message == "'bogus' is not an override"


def test_message_for_an_unknown_preset() -> None:
    message, _ = hydras_own_error("dataset/sampling=none")
    assert message.startswith(
        "In 'dataset/omnidocbench': Could not find 'dataset/sampling/none'\n\n"
        "Available options in 'dataset/sampling':\n\tdefault\nConfig search path:\n\t"
    )
    assert groups(errors.UNKNOWN_PRESET, message) == ("dataset/sampling", "none")
    assert groups(errors.PRESET_CHOICES, message)[0].splitlines()[0] == "\tdefault"
    assert errors.FILE_NOT_FOUND in message


def test_the_switches_are_those_of_hydras_own_command_line() -> None:
    actions = [action for action in get_args_parser()._actions if action.option_strings]
    assert {name for action in actions for name in action.option_strings} == keys.KNOWN
    with_value = {name for action in actions if action.nargs is None for name in action.option_strings}
    assert with_value == keys.WITH_VALUE
