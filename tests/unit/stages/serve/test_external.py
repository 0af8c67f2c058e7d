"""Other clients: commands as their sources want them, and their results read by the readers that ingest has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.stages.serve.config import ClientName, EngineName, ServeConfig
from llm_perf_opt.stages.serve.external import client_command, client_problems, run_client
from llm_perf_opt.stages.serve.facts import read_facts
from llm_perf_opt.stages.serve.load import LoadLevel

OPEN, CLOSED = LoadLevel("open", rate_per_s=2.5), LoadLevel("closed", concurrency=8)


def config(client: str, **keys: object) -> ServeConfig:
    return ServeConfig(engine=EngineName.attach, url="http://127.0.0.1:1", client=ClientName(client), **keys)  # type: ignore[arg-type]


@pytest.mark.parametrize("client", ["aiperf", "guidellm", "vllm_bench"])
@pytest.mark.parametrize("level", [OPEN, CLOSED], ids=["open", "closed"])
def test_load_and_lengths_are_in_the_command(client: str, level: LoadLevel, tmp_path: Path) -> None:
    command = client_command(
        config(client, prompt_tokens=77, new_tokens=33), level, "http://127.0.0.1:1", "m", tmp_path
    )
    text = " ".join(command)
    arguments = text.replace("=", " ").replace(",", " ").split()
    assert ("2.5" in arguments) == (level is OPEN)
    assert ("8" in arguments) == (level is CLOSED)
    assert "77" in text
    assert "33" in text
    assert str(tmp_path) in text


def test_a_key_is_never_an_argument() -> None:
    problems = client_problems(config("aiperf", api_key_env="KEY"))
    assert any(problem.severity == "error" and "api_key_env" in problem.message for problem in problems)


def test_a_client_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (problem,) = client_problems(config("guidellm"))
    assert (problem.severity, problem.message) == ("skip", "guidellm is not installed")


def test_a_client_of_another_environment_is_used(tmp_path: Path) -> None:
    program = tmp_path / "aiperf"
    program.touch()
    named = config("aiperf", client_executable=[str(program)], client_args=["--tokenizer", "/models/x"])
    assert client_command(named, OPEN, "http://127.0.0.1:1", "m", tmp_path)[-2:] == [
        "--tokenizer",
        "/models/x",
    ]
    assert client_problems(named) == []
    assert client_command(named, OPEN, "http://127.0.0.1:1", "m", tmp_path)[:2] == [str(program), "profile"]
    engine = ServeConfig(engine=EngineName.vllm, executable=[str(program)], client=ClientName.vllm_bench)
    assert client_command(engine, OPEN, "http://127.0.0.1:1", "m", tmp_path)[:3] == [
        str(program),
        "bench",
        "serve",
    ]


def fake_vllm(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    program = folder / "vllm"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_results_are_kept_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = {
        "date": "x", "backend": "openai", "model_id": "m", "num_prompts": 2, "request_rate": "inf", "max_concurrency": 8, "duration": 1.0,
        "completed": 2, "failed": 0, "request_throughput": 2.0, "output_throughput": 6.0, "total_input_tokens": 8, "total_output_tokens": 6,
        "mean_ttft_ms": 15.0, "ttfts": [0.01, 0.02], "itls": [[0.1, 0.1], [0.1, 0.1]], "latencies": [0.21, 0.22], "start_times": [0.0, 0.1],
        "input_lens": [4, 4], "output_lens": [3, 3], "errors": ["", ""],
    }  # fmt: skip
    (tmp_path / "made.json").write_text(json.dumps(result))
    fake_vllm(tmp_path / "bin", f"cp {tmp_path}/made.json result.json", monkeypatch)
    (kept,) = run_client(
        config("vllm_bench"),
        CLOSED,
        "http://127.0.0.1:1",
        "m",
        tmp_path / "scratch",
        tmp_path / "run" / "serve",
        0,
    )
    assert kept.name == "vllm_bench-0.json"
    facts = read_facts(tmp_path / "run")
    assert facts.serving is not None
    assert (facts.serving.load[0].completed, facts.serving.load[0].concurrency) == (2, 8)


def test_a_client_without_results_is_an_error_with_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_vllm(tmp_path / "bin", "echo planted trouble >&2; exit 3", monkeypatch)
    with pytest.raises(ToolError, match="planted trouble"):
        run_client(
            config("vllm_bench"),
            OPEN,
            "http://127.0.0.1:1",
            "m",
            tmp_path / "scratch",
            tmp_path / "run" / "serve",
            0,
        )
