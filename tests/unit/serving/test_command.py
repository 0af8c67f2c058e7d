"""The verb is a front for keys: what it composes is what the stage gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.config.compose import compose_config
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.serving.command import _parser, serve_overrides, split_server_arguments
from llm_perf_opt.stages.serve.config import Arrival, ClientName, EngineName, ServeConfig


def composed(*arguments: str) -> tuple[ServeConfig, dict[str, bool], object]:
    config = compose_config(serve_overrides(_parser().parse_args(arguments)))
    serve = config.pipeline["serve"]
    assert isinstance(serve, ServeConfig)
    return serve, {name: stage.enable for name, stage in config.pipeline.items()}, config.model


def test_options_become_keys_and_only_this_stage_runs() -> None:
    serve, enabled, model = composed(
        "--engine", "vllm", "--model", "llama_tiny", "--rate", "1, 2.5,4", "--concurrency", "8", "--slo", "ttft:500ms,tpot:50ms",
        "--requests", "10", "--arrival", "constant", "--api-key-env", "KEY", "--executable", "/opt/a b/vllm", "--seed", "3",
        "--client", "aiperf", "--prompts-file", "/x y/it's.txt", "--new-tokens-max", "99",
    )  # fmt: skip
    assert enabled.pop("serve")
    assert not any(enabled.values())
    assert (serve.engine, serve.rate, serve.concurrency) == (EngineName.vllm, [1.0, 2.5, 4.0], [8])
    assert (serve.slo, serve.requests, serve.arrival) == (["ttft:500ms", "tpot:50ms"], 10, Arrival.constant)
    assert (serve.api_key_env, serve.executable, serve.seed) == ("KEY", ["/opt/a b/vllm"], 3)
    assert (serve.client, serve.prompts_file, serve.new_tokens_max) == (
        ClientName.aiperf,
        "/x y/it's.txt",
        99,
    )
    assert model.config_name == "llama_tiny"  # type: ignore[attr-defined]


def test_a_url_means_a_running_server() -> None:
    serve, _, model = composed(
        "--url", "http://127.0.0.1:8000", "--model", "org/Name-7B", "--concurrency", "1,8,32"
    )
    assert (serve.engine, serve.url, serve.model) == (
        EngineName.attach,
        "http://127.0.0.1:8000",
        "org/Name-7B",
    )
    assert serve.concurrency == [1, 8, 32]
    assert model.name == "org/Name-7B"  # type: ignore[attr-defined]
    assert not serve.allow_remote


def test_a_directory_is_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    _, _, model = composed("--model", str(tmp_path))
    assert model.path == str(tmp_path)  # type: ignore[attr-defined]


def test_a_hub_name_is_handed_on() -> None:
    serve, _, _ = composed("--engine", "vllm", "--model", "org/Name-7B")
    assert serve.model == "org/Name-7B"


def test_a_url_and_an_engine_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="already runs"):
        composed("--url", "http://127.0.0.1:1", "--engine", "vllm")


@pytest.mark.parametrize("arguments", [("--rate", "fast"), ("--requests", "many"), ("--concurrency", "1.5")])
def test_values_that_are_none_are_refused(arguments: tuple[str, str]) -> None:
    with pytest.raises(ConfigError):
        composed(*arguments)


def test_environment_variables_and_arguments_of_the_server() -> None:
    own, of_server = split_server_arguments(
        ["--env", "BIND=0|1", "--env", "LIST=a, b=c", "--", "--max-num-seqs", "8", "--x={'a': 1}"]
    )
    config = compose_config(
        [*serve_overrides(_parser().parse_args(own)), *of_server, "pipeline.serve.env.N=1"]
    )
    serve = config.pipeline["serve"]
    assert isinstance(serve, ServeConfig)
    assert serve.env == {"BIND": "0|1", "LIST": "a, b=c", "N": "1"}
    assert serve.args == ["--max-num-seqs", "8", "--x={'a': 1}"]
    assert split_server_arguments(["--env", "A=1"]) == (["--env", "A=1"], [])


@pytest.mark.parametrize("text", ["NAME", "=1", "1A=1", "A B=1"])
def test_a_variable_needs_a_name_and_a_value(text: str) -> None:
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        composed("--env", text)
