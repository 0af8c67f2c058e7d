from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from llm_perf_opt.config.hydra_bridge.values import format_value, leaves, override
from llm_perf_opt.config.schema import DatasetConfig, Weights
from llm_perf_opt.core.errors import ConfigError


@pytest.fixture(scope="module", autouse=True)
def hydra(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder: Path = tmp_path_factory.mktemp("conf")
    (folder / "config.yaml").write_text("key: null\n")
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(folder), version_base="1.3"):
        yield
    GlobalHydra.instance().clear()


def through_hydra(value: Any) -> Any:
    config = compose("config", overrides=[override("key", value)])
    return OmegaConf.to_container(config, resolve=True)["key"]  # type: ignore[index,call-overload]


# NUL cannot be in an argument list; "???" is OmegaConf's own mark of a missing value.
texts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")).filter(
    lambda t: t != "???"
)
awkward = st.text(st.sampled_from("\\'\"${}[]:,=#~@ \tab%!")).filter(lambda t: t != "???")
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts | awkward
keys = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True).filter(
    lambda k: k not in ("null", "true", "false", "nan", "inf")
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=5,
)


@given(values)
def test_every_value_comes_back_the_same(value: Any) -> None:
    assert through_hydra(value) == value


@pytest.mark.contract("E6")
@pytest.mark.parametrize(
    "path",
    [
        '/data/my pages, 2024/a=b/it\'s "here"',
        "/data/$HOME/${oc.env:HOME}/{x}/[y]",
        "/data/ünï/日本/#1~@%",
        "relative/with\\back\\slashes\\",
        "null",
        "1e3",
        "",
        "line\nbreak\t",
    ],
)
def test_E6_any_path_survives_the_override_grammar(path: str) -> None:
    assert through_hydra(path) == path


def test_plain_text_stays_readable() -> None:
    assert override("model.adapter", "deepseek_ocr") == "model.adapter=deepseek_ocr"
    assert override("a", "/data/x.txt") == "a=/data/x.txt"
    assert override("a", Weights.random) == "a=random"
    assert override("a", "true") == "a='true'"
    assert override("a", True) == "a=true"


def test_leaves_of_dataclasses_and_mappings() -> None:
    found = dict(leaves(DatasetConfig(root="/x"), "dataset"))
    assert found["dataset.root"] == "/x"
    assert found["dataset.sampling.num_epochs"] == 1
    assert found["dataset.fallback_patterns"] == DatasetConfig().fallback_patterns
    assert dict(leaves({"a": {}, "b": {"c": [1, {"d": 2}]}}, "m")) == {"m.a": {}, "m.b.c": [1, {"d": 2}]}


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(ConfigError, match="key"):
        list(leaves({"a.b": 1}, "m"))
    with pytest.raises(ConfigError, match="object"):
        format_value(object())
